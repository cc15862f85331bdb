"""`selastic convert`: what it changes is what the script trained before, and what it leaves is named in the diff."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from local_run import Run
from worker_harness import Control, Zygote, result, tail

from slurm_elastic.client.conversion.rewriting import converted
from slurm_elastic.client.main import main

ZOO = Path(__file__).parents[2] / "support" / "convert_zoo"
PACE = ZOO.parent / "training_scripts"
COMPLETE = ("single", "optional_torchrun")
LEFT = {
    "made_by_functions": ["chosen decides which samples", "batches decides which samples"],
    "many_passes": [
        "takes one step",
        "this loop trains, too",
        "needs one of its own",
        "total is changed",
        "ends its loops",
    ],
    "optional_parts": ["ema may have no value", "patience is changed in the loop and not kept", "ends its loops"],
    "per_gpu": [
        "is the global batch, here too, and 8",
        "known in the loop",
        "no no_sync()",
        "under a condition",
        "no barrier",
    ],
    "sampled": ["balanced decides which samples", "what drop_last leaves out", "range(0, 9, 3) goes in steps"],
    "torchrun": ["known in the loop", "is the global batch, here too, and batch_size // world_size"],
    "unseen_parts": ["no mean over samples", "every rank writes this file", "job.tracker", "net itself", "each batch"],
}
"""What is named in each script's diff."""
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="it trains, and torch is not installed here")


def of_zoo(name: str) -> str:
    return converted((ZOO / f"{name}.py").read_text(), ZOO / f"{name}.py")[0]


def said(script: str, name: str = "x.py") -> list[str]:
    """What is left to the author of a script."""
    return [sentence for _, sentence in converted(script, Path(name))[1]]


@pytest.mark.parametrize("name", [*COMPLETE, *LEFT])
def test_the_diff_and_the_status(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """0 where nothing is left, 3 where something is; that stands in comments of the diff, and on stderr by its line.
    The diff is the one that lies beside the script; it goes to patch as it is, and what comes out is a program."""
    monkeypatch.chdir(ZOO)
    before = (ZOO / f"{name}.py").read_text()
    assert main(["convert", f"{name}.py"]) == (0 if name in COMPLETE else 3)
    found = capsys.readouterr()
    if os.environ.get("SELASTIC_WRITE_DIFFS"):
        (ZOO / f"{name}.diff").write_text(found.out)
    assert found.out == (ZOO / f"{name}.diff").read_text() and (ZOO / f"{name}.py").read_text() == before
    comments = re.sub(r"\n\+ *# (?!elastic:)", " ", found.out)
    named = [line for line in comments.splitlines() if "# elastic:" in line]
    for sentence in LEFT.get(name, ()):
        assert any(sentence in line for line in named), (sentence, named)
        assert sentence in found.err
    assert bool(named) == (name in LEFT)
    script = tmp_path / "train.py"
    script.write_text(before)
    subprocess.run(["patch", str(script)], input=found.out, text=True, check=True, capture_output=True)
    assert script.read_text() == of_zoo(name)
    compile(script.read_text(), "train.py", "exec")


# -- what is complete trains as before ---------------------------------------------------------------------------------


@pytest.fixture
def begin(zygote: Zygote, tmp_path: Path) -> Iterator[Control]:
    """A supervisor's side of the training of `train.py`."""
    control = Control(zygote, tmp_path, [], tmp_path / "train.py")
    yield control
    control.close()


def paced(name: str, folder: Path, before: str) -> str:
    """A converted script that does not end while the test holds it, with its pace set in front of a line."""
    head = f"import argparse, sys\nsys.path.append({str(PACE)!r})\nfrom script_options import Pace\n"
    knobs = f"pace = Pace(argparse.Namespace(pace=0.005, out={str(folder)!r}, hold_from=3))\n"
    return head + knobs + of_zoo(name).replace(before, f"pace(); {before}")


def alone(zygote: Zygote, script: Path, *args: str) -> None:
    log = script.with_suffix(".log")
    zygote.spawn(script.stem, script, list(args), {}, log)
    assert zygote.wait(script.stem) == 0, tail(log.read_text())


@needs_torch
def test_a_script_of_one_process_trains_the_same_alone_and_resized(
    zygote: Zygote, begin: Control, tmp_path: Path
) -> None:
    """The parameters, the averaged weights, the best result and the list of losses of the script as it was; and each
    sample of each epoch once."""

    (tmp_path / "before.py").write_text((ZOO / "single.py").read_text())
    (tmp_path / "train.py").write_text(paced("single", tmp_path, "seen += len(x)"))
    alone(zygote, tmp_path / "before.py", "--name", "before", str(tmp_path))
    alone(zygote, tmp_path / "train.py", "--name", "alone", str(tmp_path))
    begin.start("a")
    begin.resize("a", "b")
    begin.resize("b")
    assert begin.exits("a", "b") == [0, 0], begin.story()
    before = result(tmp_path, "before")
    for name in ("alone", "final"):
        after = result(tmp_path, name)
        for part in ("model", "ema"):
            for key, value in before[part].items():
                assert float((after[part][key] - value).abs().max()) < 1e-12, (name, part, key)
        assert after["best"] == pytest.approx(before["best"], rel=1e-9) and len(after["losses"]) == 3
        assert after["losses"] == pytest.approx(before["losses"], rel=1e-9)
    begin.checked(samples=203, epochs=3, steps=33, worlds=3)


@needs_torch
def test_a_script_for_torchrun_trains_on_two_workers(tmp_path: Path) -> None:
    """Under `selastic run`, with each epoch's line written once, at the schedule's rate; its author has done what the
    comments say."""
    text = re.sub(r"    (local_rank|rank|world_size) = .*\n", "", of_zoo("torchrun"))
    text = text.replace("batch_size // world_size", "batch_size").replace("if rank == 0", "if job.rank == 0")
    (tmp_path / "train.py").write_text(text)
    run = Run(tmp_path, "--nproc", "2", "train.py")
    assert run.wait() == 0, run.text()
    lines = [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]
    assert lines == [[number, pytest.approx(0.1 * 0.7 ** (number + 1))] for number in range(3)]
    assert "0/13" in run.text() and (tmp_path / "model.pt").exists()


@needs_torch
def test_what_is_left_ends_in_one_sentence_and_not_in_another_training(tmp_path: Path, zygote: Zygote) -> None:
    """Where the author does nothing about a comment, the job refuses it: a sampler, a loop in steps of its own."""
    for name, old, new, sentence in (
        ("sampler", "range(0, 9, 3)", "range(3)", "with a WeightedRandomSampler, whose order it does not know"),
        ("steps", "sampler=balanced, ", "", "outside job.epochs()"),
    ):
        script = tmp_path / f"{name}.py"
        script.write_text(converted((ZOO / "sampled.py").read_text().replace(old, new), script)[0])
        zygote.spawn(name, script, [], {}, tmp_path / f"{name}.log")
        assert zygote.wait(name) == 1 and sentence in (tmp_path / f"{name}.log").read_text()


# -- single patterns ---------------------------------------------------------------------------------------------------

HEAD = """import torch
from torch.utils.data import DataLoader
data = torch.arange(8.0)[:, None]
net = torch.nn.Linear(1, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""
LOADER = "loader = DataLoader(data, batch_size=4)\n"
EPOCHS = "for epoch in range(3):\n    for x in loader:\n"
STEP = "        opt.zero_grad()\n        net(x).mean().backward()\n        opt.step()\n"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("batch_size=4", "batch_size=4, shuffle=True, num_workers=2, pin_memory=True", ""),
        ("batch_size=4", "batch_sampler=mine(data, 4)", "mine(data, 4) decides which samples"),
        ("batch_size=4", "batch_size=4, sampler=mine(data)", "mine(data) decides which samples"),
        ("batch_size=4", "batch_size=4, drop_last=drop", "drop_last leaves out"),
        ("batch_size=4", "**options", "** may decide what is trained on"),
        ("batch_size=4", "batch_size=4, weights=w", "weights may decide what is trained on"),
        ("data, batch_size=4", "data", "say the global batch"),
        ("DataLoader(data, batch_size=4)", "batches_of(data)", "the DataLoader that this trains on is not seen"),
        ("range(3)", "range(0, 3, 1)", ""),
        ("range(3)", "range(0, 3, 2)", "goes in steps of its own"),
        ("range(3)", "range(start, 3)", ""),
        ("x in loader", "i, x in enumerate(loader, 1)", ""),
        ("x in loader", "i, x in tqdm(enumerate(loader))", ""),
        ("x in loader", "i, x in enumerate(tqdm(loader))", "the bar goes around it"),
        ("x in loader", "x in zip(loader, loader)", "the DataLoader that this trains on is not seen"),
        ("        opt.step()", "        if x.sum() > 3:\n            opt.step()", "under a condition"),
        ("        opt.step()", "        opt.step(closure)", "under a condition, or more than once"),
        ("        opt.zero_grad()", "        if n % 2 == 0:\n            opt.zero_grad()", "under a condition"),
        ("        opt.step()", "        opt.step()\n        if epoch == 2:\n            break", ""),
        ("        opt.step()", "        opt.step()\n        if x.sum() > 3:\n            break", "ends its loops"),
        ("net(x).mean()", "net(x).sum()", "a sum over the batch"),
        ("net(x).mean()", 'torch.nn.functional.mse_loss(net(x), x, reduction="sum")', "no mean over samples"),
        ("net(x).mean()", "torch.nn.CrossEntropyLoss(weight=w)(net(x), x)", "no mean over samples"),
        ("        opt.step()", "        opt.step()\n        ema.update(net)", ""),  # which is nothing that there is
        ("loader = ", "ema = Average(net)\nloader = ", ""),
        ("        opt.step()", "        opt.step()\n        torch.save(net, 'x')", ""),
        ("    for x", "    torch.distributed.all_reduce(data)\n    for x", "all ranks: in the loop"),
        (
            "    for x in loader:\n",
            "    h = 0\n    for x in loader:\n        y, h = f(x, h)\n",
            "h is of this rank's",
        ),
        ("    for x", "    if not args.distributed:\n        torch.distributed.barrier()\n    for x", "no barrier"),
        ("    for x", "    if args.distributed:\n        torch.distributed.barrier()\n    for x", ""),
        ("    for x", '    if int(os.environ["LOCAL_RANK"]) == 0:\n        f()\n    for x', "once for each"),
        ("        opt.step()", "        opt.step()\nupdate_bn(loader, net)", "this needs one of its own"),
        ("        opt.step()", "        opt.step()\n        for p in net.parameters():\n            p.clamp_(0)", ""),
        ("for epoch", "more = DataLoader(data, 3)\nfor x in range(3):\n    pass\nfor epoch", ""),
        (
            "for epoch in range(3):\n",
            "more = DataLoader(data, 3)\nfor epoch in range(3):\n    go(more)\n",
            "another batch",
        ),
        ("    for x", "    torch.nn.DataParallel(net)\n    for x", "leave the model whole"),
    ],
)
def test_a_pattern_is_known_or_named(old: str, new: str, named: str) -> None:
    """Each is on a closed list, or its line is named; the script is a program in either case."""
    script = HEAD + LOADER + EPOCHS + STEP
    assert old in script and said(script) == []
    changed = script.replace(old, new)
    if "go(" in new:
        changed = changed.replace("for epoch", "def go(more):\n    for x in more:\n" + STEP + "for epoch")
    ast.parse(converted(changed, Path("x.py"))[0])
    found = said(changed)
    assert any(named in sentence for sentence in found) if named else not found, found


@pytest.mark.parametrize(
    ("line", "changed", "there", "named"),
    [
        ("best = 0.0", "    best = max(best, epoch)\nuse(best)", '"best"', ""),
        ("count = 0", "        count += 1\nuse(count)", '"count"', ""),
        (
            "total = 0.0",
            "        total += x.sum().item()\n    if total > 3:\n        opt.x = 1",
            "",
            "total is changed",
        ),
        ("total = 0.0", "        total += x.sum().item()\n    print(total)", "", ""),
        ("seen = []", "    seen.append(epoch)", "seen=seen", ""),
        ("import copy\nema = copy.deepcopy(net)", "        ema.lerp_(net)", "ema=ema", ""),
        ("ema = Average(net)", "        ema.update(net)", "", "ema is changed in the loop and not kept"),
        ("if flag:\n    ema = Average(net)", "        ema.update(net)", "", "ema is changed in the loop and not kept"),
        ("if a:\n    best = 1\nelif b:\n    best = 2", "    best = max(best, epoch)\nuse(best)", "", "best is changed"),
        (
            "if a:\n    best = 1\nprint(best)",
            "    best = max(best, epoch)\nuse(best)",
            '"best"',
            "",
        ),  # or it fails there
        ('log = {"loss": []}', '    log["loss"].append(epoch)', "log=log", ""),
        ("h = 0", "        y, h = step(x, h)\nuse(h)", "", "h is changed in the loop"),
        ("bad = 0", "        if x.sum() > 3:\n            bad += 1\nuse(bad)", "", "bad is changed in the loop"),
        ("h = 0", "    opt = torch.optim.SGD(net.parameters(), h)", "opt=opt", "opt is another object from here on"),
        ("scaler = torch.amp.GradScaler()", "    scaler.update()", "scaler=scaler", ""),
    ],
)
def test_what_goes_on_is_kept_or_named(line: str, changed: str, there: str, named: str) -> None:
    """Averages, counters, best results: where they certainly have a value when the loop begins."""
    script = f"{HEAD}{line}\n{LOADER}{EPOCHS}{STEP}{changed}\n"
    (kept,) = [entry for entry in converted(script, Path("x.py"))[0].splitlines() if "job.keep(" in entry]
    found = said(script)
    assert there in kept if there else "opt=opt" in kept and kept.count(",") == 0
    assert any(named in sentence for sentence in found) if named else not found, found


def test_the_batch_is_the_loaders_and_the_job_joins_where_it_is_known() -> None:
    """Also where the same name has another value later; and the script's seed goes with it where it came first."""
    script = "torch.manual_seed(3)\nsize = 4\n" + LOADER.replace("=4", "=size") + "size = 99\n" + EPOCHS + STEP
    text, found = converted(HEAD + script, Path("x.py"))
    assert "size = 4\njob = elastic.join(batch=size, seed=3)\nloader = DataLoader" in text and not found


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("def f(:", "is no Python program"),
        ("print(1)", "has no loop over epochs that comes to a backward()"),
        ("for it in range(9):\n  for k in range(4):\n    loss.backward()", "goes over iterations"),
        ("while True:\n  loss.backward()", "goes over iterations"),
        ("for x in data:\n  loss.backward()", "goes over its data once"),
        ("import slurm_elastic.trainer_shim as elastic", "imports slurm_elastic already"),
        ("import lightning as L", "leaves its loop to lightning"),
        ("class T:\n  def f(self):\n    for e in range(3):\n      loss.backward()", "has its loop in T"),
        ("while e < 3:\n  for x in data:\n    loss.backward()", "goes over epochs with while"),
        (
            "for f in range(3):\n  for e in range(3):\n    for x in data:\n      loss.backward()",
            "trains again and again",
        ),
        ("job = 3\nfor e in range(3):\n  loss.backward()", "has a variable `job`"),
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
    path, script = tmp_path / "train.py", HEAD + LOADER + EPOCHS + STEP
    path.write_bytes(script.replace("\n", "\r\n").encode())
    path.chmod(0o755)
    assert main(["convert", "--write", str(path)]) == 0
    assert capsys.readouterr().out == ""
    written = path.read_bytes().decode()
    assert written.replace("\r\n", "\n") == converted(script, path)[0] and "\n" not in written.replace("\r\n", "")
    assert path.stat().st_mode & 0o777 == 0o755
    assert main(["convert", str(tmp_path / "none.py")]) == 1
    assert "none.py cannot be read: No such file" in capsys.readouterr().err


def test_without_libcst_it_says_how_to_install_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "libcst" or ".conversion." in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "libcst", None)
    assert main(["convert", str(tmp_path / "train.py")]) == 1
    assert "needs libcst" in (found := capsys.readouterr().err) and "pip install libcst" in found


def test_a_module_beside_the_script_is_named(tmp_path: Path) -> None:
    """It is not read: what it does to models, data and files is the author's to look at."""
    (tmp_path / "engine.py").write_text("def f(:")
    (tmp_path / "train.py").write_text(script := f"import engine\n{HEAD}{LOADER}{EPOCHS}{STEP}")
    assert ["is not read" in sentence for sentence in said(script, str(tmp_path / "train.py"))] == [True]
