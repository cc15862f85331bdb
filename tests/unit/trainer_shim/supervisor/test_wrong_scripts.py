"""Scripts that join wrongly are told so in one sentence, by a real `selastic run`."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_run import Start
from training import TRAIN, on

IMPORT = "import torch.distributed as dist\n"


def line_of(script: str, words: str) -> int:
    return next(number for number, line in enumerate(script.splitlines(), 1) if words in line)


def test_a_collective_before_the_pass_is_named_and_fails_the_growth_with_that_reason(
    start: Start, tmp_path: Path
) -> None:
    """It works until somebody joins: the user is told at its first call, and the failed resize says why."""
    script = IMPORT + TRAIN.replace("    for x, y", "    dist.barrier()\n    for x, y")
    (tmp_path / "train.py").write_text(script)
    named = f"torch.distributed.barrier() is called at train.py line {line_of(script, 'dist.barrier')} before the pass"
    run = start("--nproc 2", 64000, 1, 0.02)
    base = run.base()
    run.says(named)
    assert run.text().count(named) == 1
    detail = run.daemon.wait_phase(run.order(base, on()), "failed").detail
    assert named in detail and "a worker that joins in that pass is alone there" in detail
    assert "starting again" not in run.text()


def test_a_collective_at_the_top_is_named_at_once(start: Start, tmp_path: Path) -> None:
    """There is no process group yet, and torch's own words ask for one."""
    script = IMPORT + TRAIN.replace("torch.manual_seed(0)", "dist.barrier()")
    (tmp_path / "train.py").write_text(script)
    run = start("--nproc 2", 64, 1, 0, alone=True)
    assert run.wait() == 1
    assert (
        f"selastic: train.py line {line_of(script, 'dist.barrier')} calls barrier(): under selastic run" in run.text()
    )


def test_what_has_no_meaning_yet_or_any_more_is_told(start: Start, tmp_path: Path) -> None:
    """job.rank before the loop, once, with its line and what to write; a second loop of job.next()."""
    script = (
        "import os, torch\nimport slurm_elastic.trainer_shim as elastic\njob = elastic.join(batch=4)\n"
        "for _ in range(2):\n    if job.rank == 0:\n        os.makedirs('runs')\n"
        "model = torch.nn.Linear(1, 1)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "net = job.replicate(model)\njob.keep(opt=opt)\n"
        "for steps in (3, 6):\n    while job.next(steps):\n        opt.zero_grad()\n"
        "        for _ in job.share(4):\n            net(torch.ones(1, 1)).sum().backward()\n        opt.step()\n"
    )
    (tmp_path / "train.py").write_text(script)
    run = start("--nproc 2", alone=True)
    assert run.wait() == 1, run.text()
    asks = f"train.py line {line_of(script, 'job.rank')} asks for job.rank, which is -1 on every worker before the loop"
    assert run.text().count(asks) == 1
    assert "job.next() was called again after the loop had ended" in run.text() and "starting again" not in run.text()


def test_a_script_without_a_loop_is_told_so(start: Start, tmp_path: Path) -> None:
    """Before its first step where it trains by itself; at its end where it only joins, or not even that."""
    by_itself = TRAIN[: TRAIN.index("net =")] + (
        "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for x, y in torch.utils.data.DataLoader(data):\n"
        "    torch.nn.functional.cross_entropy(model(x), y).backward()\n    opt.step()\n    print('trained')\n"
    )
    scripts = {"by_itself.py": by_itself, "joins.py": TRAIN[: TRAIN.index("for epoch")], "plain.py": "print('over')\n"}
    for name, script in scripts.items():
        (tmp_path / name).write_text(script)
        run = start(f"--nproc 2 --job-dir {tmp_path / name[:3]}", 64, 1, 0, script=name, alone=True)
        if name == "by_itself.py":
            assert run.wait() == 1 and "trained" not in run.text()
            assert "called step() of a SGD, and has given the job no model" in run.text()
        else:
            assert run.wait() == 0
            assert run.text().count("the script has ended without a loop of the job") == 1, run.text()


def test_a_worker_that_leaves_the_loop_alone_is_told_so(start: Start, tmp_path: Path) -> None:
    """As with a counter that begins anew on a joiner: it is the end, and no restart that would train on."""
    (tmp_path / "train.py").write_text(TRAIN.replace("job.log(", "    if job.rank == 0:\n        break\njob.log("))
    run = start("--nproc 2", 400, 2, 0, alone=True)
    assert run.wait() == 1, run.text()
    assert "has left the job's loop, and others went on" in run.text() and "starting again" not in run.text()


@pytest.mark.parametrize("behind", ["", "    job.once(print)"])
def test_a_worker_that_leaves_a_pass_alone_is_told_so(start: Start, tmp_path: Path, behind: str) -> None:
    """By a condition of its own rows, say: within two steps; or as nobody goes on, where it waits for the others."""
    leaves = f"    if job.rank == 1 and job.global_step == 9:\n            break\n{behind}\njob.log("
    script = TRAIN.replace("job.log(", f"    {leaves}")
    (tmp_path / "train.py").write_text(script)
    run = start("--nproc 2 --hang-after 1" if behind else "--nproc 2", 400, 2, 0, alone=True)
    assert run.wait() == 1, run.text()
    line = line_of(script, "job.once" if behind else "break")
    alone = f"rank 1 has left a pass over job.loader() at train.py line {line}, and rank 0 went on"
    assert (f"waits for the other ranks at train.py line {line}; all wait" if behind else alone) in run.text()
    assert "starting again" not in run.text()


CENTRED = """class Centred(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        self.center.data = y.detach().mean(0)
        return y - self.center
centred = Centred(4, 3)
centred.register_buffer('center', torch.zeros(3))
model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), centred)
last = 0
"""
LOSS = "job.step(torch.nn.functional.cross_entropy(net(x), y))"


@pytest.mark.parametrize(
    ("model", "step", "told"),
    [
        (CENTRED, LOSS, "forward() changes its buffer '1.center' by the rows that a rank is given"),
        (
            "last = 0",
            "out = net(x) + last; last = out.detach().mean(0); job.step(out.square().mean())",
            "'last' goes from one step into the loss of the next",
        ),
        ("", "job.step((net(x) @ net(x).t()).logsumexp(1).mean())", "the loss is no mean over samples"),
        (
            "scale = 1.0",
            "loss = torch.nn.functional.cross_entropy(net(x), y); scale = 0.9 * scale + 0.1 * loss.item(); "
            "job.step(loss / scale)",
            "the script trains by 'scale', which is ",
        ),
    ],
)
def test_what_each_rank_would_train_by_its_own_rows_is_told(
    start: Start, tmp_path: Path, model: str, step: str, told: str
) -> None:
    """In a world of two from its first step on; torch's running statistics are each rank's own."""
    made = "model = torch.nn.Linear(4, 3).to(job.device)\n"
    script = TRAIN.replace(made, model if model == CENTRED else f"{made}{model}\n").replace(LOSS, step)
    (tmp_path / "train.py").write_text(script)
    run = start("--nproc 2", 400, 1, 0, alone=True)
    assert run.wait() == 1, run.text()
    assert told in run.text() and "starting again" not in run.text()
