"""`selastic rehearse` says of a script that is right that all held, and finds what is wrong in one that is not.

Six faults are tried here; all, with SELASTIC_REHEARSE_ALL=1: `make test-rehearse`. Where the product would refuse, the
script says that it is meant.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from local_run import NAMESPACE

EVERY = os.environ.get("SELASTIC_REHEARSE_ALL") == "1"
HEAD = """
import torch
import torch.nn.functional as F
import slurm_elastic.trainer_shim as elastic
generator = torch.Generator().manual_seed(1)
x = torch.randn(96, 8, generator=generator, dtype=torch.float64)
y = torch.randn(96, 1, generator=generator, dtype=torch.float64)
data = torch.utils.data.TensorDataset(x, y)
torch.manual_seed(0)
layers = torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
model = torch.nn.Sequential(*layers).double()
"""
WRAPPED = (
    HEAD
    + """
job = elastic.join(batch=12, lr="none"{join})
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=job.steps(4, 96))
{before}
net = job.wrap(model, optimizer, schedule{wrap})
for epoch in job.epochs(4):
    for a, b in job.loader(data):
        loss = {loss}
        {step}
        {after}
    {epoch}
"""
)
OWN = (
    HEAD
    + """
job = elastic.join(batch=12{join})
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
{before}
net = job.replicate(model)
job.keep(optimizer=optimizer{keep})
while job.next(40):
    micros = job.share(3)
    first = job.global_step % 8 * 12
    {top}
    for number in micros:
        a, b = {batch}
        ({loss} / len(micros)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)
LOADED = (
    HEAD
    + """
job = elastic.join(batch=12)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler(enabled=False)
net = job.replicate(model)
job.keep(optimizer=optimizer, scaler=scaler)
for epoch in job.epochs(4):
    for i, (a, b) in enumerate(job.loader(data)):
        scaler.scale(F.mse_loss(net(a), b) / 4).backward()
        if i % 4 == 3:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
)
LOSS, BATCH = "F.mse_loss(net(a), b)", "x[first + 4 * number :][:4], y[first + 4 * number :][:4]"


def wrapped(loss: str = LOSS, **parts: str) -> str:
    step = parts.pop("step", "job.step(loss)")
    names = {"join": "", "before": "", "wrap": "", "after": "", "epoch": "", "optimizer": "AdamW", **parts}
    return WRAPPED.format(loss=loss, step=step, **names)


def own(loss: str = LOSS, batch: str = BATCH, **parts: str) -> str:
    return OWN.format(loss=loss, batch=batch, **{"join": "", "before": "", "keep": "", "top": "", **parts})


OUTSIDE = """
class Scaled(torch.nn.Linear):
    calls = 0
    def forward(self, x):
        self.calls += 1
        return super().forward(x) / (1 + self.calls / 4)
model[3] = Scaled(16, 1).double()
"""
STREAM = """
def blocks():
    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(4, 8, generator=generator, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
stream = blocks()
"""
LABELLED = "(lambda kept: ((net(a) - b) ** 2)[kept].mean())(a[:, 0] > a[:, 0].median() - 1)"
SPARSE = "model.register_buffer('graph', torch.eye(3).to_sparse())"
STATIC = (
    HEAD
    + """
job = elastic.join(batch=12, micro_batch=3, lr="none")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
net = job.wrap(model, optimizer, static_graph=True)
for epoch in job.epochs(4):
    for a, b in job.loader(data):
        job.step(F.mse_loss(net(a), b))
"""
)
EXTRA = """
class Scaled(torch.nn.Linear):
    seen = 1.0
    def forward(self, x):
        self.seen = self.seen * 0.9 + float(self.weight.detach().abs().max())
        return super().forward(x) / self.seen
    def get_extra_state(self):
        return {"seen": self.seen}
    def set_extra_state(self, state):
        self.seen = state["seen"]
model[3] = Scaled(16, 1).double()
from slurm_elastic.trainer_shim.state.kept_parts import State
restore = State.restore
State.restore = lambda self, captured, only=None, skip=frozenset(): restore(self, captured, only, skip)
Scaled.set_extra_state = lambda self, state: None
"""
SIX = {
    "state that no state_dict has": (wrapped(before=OUTSIDE), "parameters as undisturbed"),
    "a stream that all ranks begin alike": (
        own(batch="next(stream)", before=STREAM, join=", same_inputs=True"),
        "parameters as undisturbed",
    ),
    "a mean over something else than samples": (wrapped(LABELLED), "parameters as undisturbed"),
    "a rate on one rank": (
        own(top="optimizer.param_groups[0]['lr'] = 0.05 / (1 + job.rank)"),
        "holds another lr of optimizer's group 0",
    ),
    "a file that every rank writes": (
        wrapped(after="open('log.txt', 'a').write('done')"),
        "log.txt is written by several",
    ),
    "a counter of its own": (
        own("F.mse_loss(net(a), b) * 0.9 ** count", before="count = 0", top="count += 1"),
        "parameters as undisturbed",
    ),
}
OTHERS = {
    "a sum in place of the mean": (wrapped("((net(a) - b) ** 2).sum()"), "parameters as undisturbed"),
    "rank 0 trains otherwise": (wrapped("F.mse_loss(net(a), b) * (1 + (job.rank == 0))"), "parameters as undisturbed"),
    "a generator of the script's": (
        own("F.mse_loss(net(a) + torch.randn(4, 1, generator=generator), b)"),
        "parameters as undisturbed",
    ),
    "a file that only the first world writes": (
        wrapped(after="job.generation > 1 or job.global_step < 14 or open('last.txt', 'w')"),
        "last.txt is not written",
    ),
    "a parameter changed by one rank": (
        wrapped(after="job.rank == 1 and model[3].bias.detach().add_(1)"),
        "holds another value of 3.bias",
    ),
    "weights averaged within one rank": (
        wrapped(after="model[0].weight.detach().mul_(1 + a.mean() / 100)"),
        "holds another value of 0.weight",
    ),
    "a schedule that only rank 0 steps": (
        own(
            before="schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)",
            top="job.rank or schedule.step()",
        ),
        "holds another",
    ),
    "gradients that outlive an iteration": (LOADED, ""),
    "a sparse buffer": (wrapped(before=SPARSE), ""),
    "static_graph with micro batches": (STATIC, ""),
    "extra state that is not taken over": (wrapped(before=EXTRA), "parameters as undisturbed"),
    "an error on a joiner": (wrapped(after="assert job.world_size == 1"), "AssertionError"),
    "a step that one rank leaves out": (own(top="if job.rank: micros = []"), ""),
    "positions of the wrong rank": (
        own(batch="x[first + 4 * micros.positions.start :][:4], y[first :][:4]"),
        "parameters as undisturbed",
    ),
}
FAULTS = {**SIX, **(OTHERS if EVERY else {})}


def rehearsed(folder: Path, script: str, *words: str) -> tuple[int, str]:
    """The exit code and the table."""
    (folder / "train.py").write_text(script)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SELASTIC"))}
    command = [sys.executable, "-m", "slurm_elastic.daemon.cli.main", "rehearse", *words, "train.py"]
    env = {**inherited, "PYTHONPATH": str(NAMESPACE), "TMPDIR": str(folder)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(tmp_path: Path, name: str) -> None:
    """A script with one fault: exit code 1, and the row that says it."""
    script, words = FAULTS[name]
    code, text = rehearsed(tmp_path, script, "--steps", "16")
    assert code == 1, text
    failed = [line for line in text.splitlines() if line.startswith("FAIL")]
    assert any(words in line for line in failed), text


@pytest.mark.parametrize(
    "script", [wrapped(epoch="job.save('model.pt')"), own()] if EVERY else [wrapped(epoch="job.save('model.pt')")]
)
def test_all_holds(tmp_path: Path, script: str) -> None:
    """A script that is right, whose training is shorter than the steps asked for: exit code 0, and nothing is left."""
    code, text = rehearsed(tmp_path, script, "--steps", "40")
    assert code == 0 and "FAIL" not in text, text
    rows = [line[6:].split("  ")[0] for line in text.splitlines() if line.startswith("ok")]
    assert rows[:6] == [
        "grow, shrink and kill",
        "every sample once, in its step",
        "parameters as undisturbed",
        "schedule",
        "the same on all ranks",
        "files written once",
    ], text
    assert not list(tmp_path.glob("selastic-rehearse-*"))


def test_what_is_not_accepted(tmp_path: Path) -> None:
    """One sentence, and status 2."""
    assert rehearsed(tmp_path, "", "--steps", "3") == (
        2,
        "selastic: --steps 3 is not accepted; accepted: 10 and more\n",
    )
