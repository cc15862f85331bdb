"""`selastic convert`: what it proposes applies with patch, and runs; what it leaves is said."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from local_run import Run

from slurm_elastic.daemon.cli.conversion.rewriting import converted
from slurm_elastic.daemon.cli.main import main
from slurm_elastic.protocol.errors import ElasticError

EPOCHS = '''"""In the shape of PyTorch's imagenet example."""
import json
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

best_loss = 1e9


def main():
    global best_loss
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    batch_size = 16
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    model = DDP(model, device_ids=[int(os.environ["LOCAL_RANK"])])
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    train_dataset = TensorDataset(torch.randn(200, 4), torch.randint(0, 3, (200,)))
    train_sampler = DistributedSampler(train_dataset)
    train_loader = DataLoader(train_dataset, batch_size=batch_size, sampler=train_sampler, num_workers=0)
    val_loader = DataLoader(train_dataset, batch_size=50, shuffle=False)
    for epoch in range(0, 3):
        train_sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer)
        loss = validate(val_loader, model, criterion)
        scheduler.step()
        best_loss = min(loss, best_loss)
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), "model.pt")
            with open("said", "a") as file:
                file.write(json.dumps([epoch, scheduler.get_last_lr()[0]]) + "\\n")  # as it was
    dist.destroy_process_group()


def train(train_loader, model, criterion, optimizer):
    model.train()
    for i, (x, y) in enumerate(train_loader):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(val_loader, model, criterion):
    with torch.no_grad():
        return sum(criterion(model(x), y).item() for x, y in val_loader)


if __name__ == "__main__":
    main()
'''
ITERATIONS = """import json
import os
from contextlib import nullcontext

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

gradient_accumulation_steps = 5
batch_size = 4
max_iters = 12
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="nccl")
    ddp_rank = int(os.environ["RANK"])
    master_process = ddp_rank == 0
    gradient_accumulation_steps //= int(os.environ["WORLD_SIZE"])
else:
    master_process = True
text = torch.arange(1000)


def get_batch():
    ix = torch.randint(len(text) - 8, (batch_size,))
    return torch.stack([text[i : i + 8] for i in ix]).float()


iter_num = 0
best_val_loss = 1e9
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if ddp:
    model = DDP(model)
X = get_batch()  # the very first batch
while True:
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with nullcontext():
            loss = model(X).square().mean() / gradient_accumulation_steps
        X = get_batch()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if master_process:
        with open("said", "a") as file:
            file.write(json.dumps([iter_num, 0]) + "\\n")
    iter_num += 1
    if iter_num > max_iters:
        break
if ddp:
    destroy_process_group()"""
PLAIN = """import argparse, json
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
opt = torch.optim.Adam(net.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), 16, shuffle=True, collate_fn=None)
steps = args.epochs * len(loader)
for epoch in range(1, args.epochs + 1):
    for (x,) in loader:
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()
    torch.save(net.state_dict(), "model.pt")
    with open(f"said", "a") as file:
        file.write(json.dumps([epoch, steps]) + "\\n")
"""
SHARDED = """import json
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(dist.get_default_backend_for_device("cuda"))
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    for layer in model:
        fully_shard(layer, mp_policy=MixedPrecisionPolicy())
    fully_shard(model)
    model.to_empty(device="cpu")
    optim = torch.optim.Adam(model.parameters(), lr=1e-2)
    for number in range(3):
        x = torch.randn(8, 4)
        model(x).sum().backward()
        optim.step()
        optim.zero_grad()
    dist.destroy_process_group()


main()
"""
SCRIPTS = {"epochs": EPOCHS, "iterations": ITERATIONS, "plain": PLAIN}
SAID = {
    "epochs": [[0, 0.07], [1, 0.049], [2, 0.0343]],
    "iterations": [[number, 0] for number in range(13)],
    "plain": [[number, 12] for number in (1, 1, 2, 2, 3, 3)],
}
"""By all ranks; the plain one was written for one process, and is told so."""


@pytest.mark.skipif(find_spec("torch") is None, reason="it trains, and torch is not installed here")
@pytest.mark.parametrize("kind", SCRIPTS)
def test_the_diff_applies_and_the_script_trains_on_two_workers(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed goes to patch as it is; the script is not touched before, and is elastic afterwards."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPTS[kind])
    assert main(["convert", str(script)]) == 0
    proposed = capsys.readouterr()
    assert script.read_text() == SCRIPTS[kind]
    subprocess.run(["patch", str(script)], input=proposed.out, text=True, check=True, capture_output=True)
    assert script.read_text() == converted(SCRIPTS[kind], "train.py")[0]
    run = Run(tmp_path, "--nproc", "2", "train.py")
    assert run.wait() == 0, run.text()
    said = [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]
    assert sorted(said) == [[number, pytest.approx(value)] for number, value in SAID[kind]]
    assert ("every rank writes this file" in proposed.err) == (kind == "plain")


def test_what_is_changed_and_what_is_left() -> None:
    """The usual patterns, line by line; a branch for torchrun is left, and said to be."""
    text, left = converted(EPOCHS, "x.py")
    for gone in ("init_process_group(", "set_device", "DDP(", "DistributedSampler(", "set_epoch", "get_rank"):
        assert gone not in text
    for there in (
        "    job = elastic.join(batch=batch_size)\n",
        "    model = job.replicate(model)\n",
        '    job.keep(globals(), "best_loss", optimizer=optimizer, scheduler=scheduler)\n',
        "    for epoch in job.epochs(3):\n        train_loader = job.loader(train_dataset, num_workers=0)\n",
        "        if job.rank == 0:\n",
        "  # as it was\n",
    ):
        assert there in text
    (line,) = [line for line, sentence in left if "is the global batch" in sentence]
    assert EPOCHS.splitlines()[line - 1].startswith("    model = DDP")
    text, left = converted(ITERATIONS, "x.py")
    assert "job = elastic.join(batch=micro_batches * batch_size, micro_batch=batch_size)\n" in text
    assert 'job.keep(globals(), "iter_num", optimizer=optimizer)\nwhile job.next():\n' in text
    assert text.count("get_batch()\n") == 1 and "    for micro_step in micros:\n        X = get_batch()\n" in text
    assert [line for line, sentence in left if "this is for torchrun" in sentence] == [13, 51]


def test_a_sharded_model_is_sharded_in_each_world() -> None:
    """fully_shard() is the job's, and what the loop is given comes from job.shard(); what has to go is said. With the
    share of an iteration, which is left to the author, it trains."""
    text, left = converted(SHARDED, "x.py")
    assert text.count("elastic.fully_shard(") == 2 and "job.replicate" not in text
    assert "    model = job.shard(model)\n    job.keep(optim=optim)\n    while job.next(3):\n" in text
    said = {line: sentence for line, sentence in left}
    assert "what looks at its parts" in said[14] and "job.share(samples).positions" in said[18] and 10 not in said
    assert any(
        "mesh= out" in sentence for _, sentence in converted(SHARDED.replace("(model)", "(model, mesh=m)"), "x")[1]
    )


def test_a_batch_divided_by_the_worlds_size_is_the_global_one() -> None:
    """The world's size is 0 before the loop: what was divided by it is the job's, and other uses are said."""
    head = "import torch.distributed as dist\nn = dist.get_world_size()\nmodel = torch.nn.Linear(2, 2)\n"
    loop = "for e in range(3):\n    for x in loader:\n        model(x).sum().backward()\n"
    for size in ("64 // dist.get_world_size()", "int(64 / n)", "64 // n"):
        made = f"loader = torch.utils.data.DataLoader(data, batch_size={size})\nlength = len(loader)\n"
        wrapped = "model = torch.nn.parallel.DistributedDataParallel(model)\n"
        text, left = converted(head + made + wrapped + loop, "x.py")
        assert "job = elastic.join(batch=64)\n" in text and re.search(
            r"DataLoader\(data, batch_size=(int\()?64\)", text
        )
        assert not [sentence for _, sentence in left if "batch" in sentence]
    text, left = converted(
        head + "size = 64\nsize //= n\nopt = torch.optim.SGD(model.parameters(), 0.1 * n)\n" + loop, "x"
    )
    assert "//=" not in text
    assert (6, "job.world_size is 0 before the loop: write the number that is meant") in left


@pytest.mark.skipif(find_spec("torch") is None, reason="it trains, and torch is not installed here")
def test_a_converted_sharded_script_trains(tmp_path: Path) -> None:
    """On two workers, when what was left is done."""
    text = converted(SHARDED, "x.py")[0].replace("model(x)", "model(x[job.share(8).positions])")
    (tmp_path / "train.py").write_text(
        text.replace("\n\n\nmain()", "\n    print('trained', len(job.full_state()))\n\n\nmain()")
    )
    run = Run(tmp_path, "--nproc", "2", "train.py")
    assert run.wait() == 0 and "trained 4" in run.text(), run.text()


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("def f(:", "is no Python program"),
        ("print(1)", "has no loop over epochs or iterations that comes to a backward()"),
        ("import slurm_elastic.trainer_shim as elastic", "imports slurm_elastic already"),
        ("import lightning as L", "leaves its loop to lightning"),
        ("class T:\n  def f(self):\n    for e in range(3):\n      loss.backward()", "has its loop in T"),
        ("while e < 3:\n  for x in data:\n    loss.backward()", "goes over epochs with while"),
    ],
)
def test_what_it_cannot_change_is_said_in_one_sentence(
    script: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    path.write_text(script)
    assert main(["convert", str(path)]) == 1
    found = capsys.readouterr()
    assert named in found.err and found.out == "" and len(found.err.splitlines()) == 1


def test_write_changes_the_script_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its mode, and its line ends; a file that is missing is one sentence."""
    path = tmp_path / "train.py"
    path.write_bytes(PLAIN.replace("\n", "\r\n").encode())
    path.chmod(0o755)
    assert main(["convert", "--write", str(path)]) == 0
    assert capsys.readouterr().out == ""
    written = path.read_bytes().decode()
    assert written.replace("\r\n", "\n") == converted(PLAIN, "x.py")[0] and "\n" not in written.replace("\r\n", "")
    assert path.stat().st_mode & 0o777 == 0o755
    assert main(["convert", str(tmp_path / "none.py")]) == 1
    assert "none.py cannot be read: No such file" in capsys.readouterr().err


def test_loops_of_other_shapes() -> None:
    """Every proposal is a program; what it can't know it leaves."""
    cases = {
        "for it in range(start, n):\n    for k in range(4):\n        loss = f(x)\n        loss.backward()\n": (
            "while job.next(n):\n    it = job.global_step\n    micros = job.share(4)\n    for k in micros:\n",
            "divide the loss by len(micros)",
        ),
        "while step < 9:\n    f(x).backward()\n    step += 1\n": (
            "while job.next():\n    if not (step < 9):\n        break\n    f(x).backward()\n",
            "say how an iteration is shared out",
        ),
        "for e in range(start, 9):\n    for x in get_loader():\n        f(x).backward()\n": (
            "job.begin_at(epoch=start)\nfor e in job.epochs(9):\n",
            "the DataLoader that is trained on is not found",
        ),
    }
    for script, (there, said) in cases.items():
        text, left = converted(script, "x.py")
        ast.parse(text)
        assert there in text
        assert any(said in sentence for _, sentence in left)
    with pytest.raises(ElasticError):
        converted("\0", "x.py")
