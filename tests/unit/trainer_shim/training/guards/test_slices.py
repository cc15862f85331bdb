"""By which variables a script trains on is read off its source: what is logged, or names a file, is not among them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.trainer_shim.training.guards import slices
from slurm_elastic.trainer_shim.training.guards.slices import at_head, only_logged

OBJECTS = {"loss", "x", "net", "opt", "batches", "schedule", "steps", "group", "losses", "print", "float", "min"}
"""What any training has, and functions."""
LOOP = """
count, best, bad, total, ema = 0, 9.0, 0, 0.0, 1.0
{before}
for x in batches:
    look()
    loss = net(x)
    {loss}
    loss.backward()
    opt.step()
    {after}
"""
TRAINER = """
class Trainer:
    count = ended = 0
    def rate(self):
        return 0.1 / (1 + self.count)
    def fit(self):
        for x in batches:
            look()
            self.one(x)
    def one(self, x):
        net(x).backward()
        {inside}
        opt.step()
        self.count += 1
Trainer().fit()
"""
CALLED = """
def train(x, number, place):
    print(place)
    (net(x) * number).backward()
    opt.step()
count = ema = 0
for x in batches:
    look()
    {call}
    count += 1
    ema += 1
"""


class Thing:
    """Anything that is called, or has attributes."""

    param_groups: Any = ({},)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    __getattr__ = __rmul__ = __mul__ = __truediv__ = __add__ = __call__

    def __float__(self) -> float:
        return 1.0


def head(folder: Path, source: str) -> set[str]:
    """What the script trains by where look() is called."""
    found: list[set[str]] = []
    (folder / "train.py").write_text(source)
    names = {name: Thing() for name in ("net", "opt", "schedule", "writer", "evaluate")}
    values = {**names, "__name__": "__main__", "batches": [0], "look": lambda: found.append(at_head(sys._getframe(1)))}
    exec(compile(source, folder / "train.py", "exec"), values)
    return found[0] - OBJECTS


@pytest.mark.parametrize(
    ("loss", "after", "live"),
    [
        ("pass", "count += 1\n    if count >= 9: break", {"count"}),
        ("pass", "count += 1\n    opt.param_groups[0]['lr'] = 0.1 / count", {"count"}),
        ("loss = loss * 0.9 ** count", "count += 1", {"count"}),
        ("ema = 0.9 * ema + 0.1 * float(loss)\n    loss = loss / ema", "pass", {"ema"}),
        ("pass", "bad = 0 if best > 1 else bad + 1\n    best = min(best, 1)\n    if bad > 3: break", {"bad", "best"}),
        ("weight = 1.0\n    if count > 5: weight = 0.5\n    loss = loss * weight", "count += 1", {"count"}),
        ("pass", "count += 1\n    if count % 2: continue\n    schedule.step()", {"count"}),
        ("pass", "count += 1\n    match count:\n        case 9: break", {"count"}),
        ("try: fine = best > 1\n    except KeyError: fine = False\n    if fine: loss = loss * 2", "pass", {"best"}),
        # Only logged, or names of files.
        ("pass", "schedule.step_update(count, metric=total)\n    count += 1\n    total += float(loss)", {"count"}),
        ("pass", "total += float(loss)\n    if writer.isnan(total): break", set()),
        ("pass", "count += 1\n    if count % 5 == 0: print(count, total / count)\n    total += float(loss)", set()),
        ("pass", "count += 1\n    if count % 5 == 0: loss = float(loss)\n    print(loss)", set()),
        ("pass", "if total > best: best = total; writer.save(f'best-{count}.pt')\n    count += 1", set()),
        ("count = 0", "count += 1\n    if count > 3: break", set()),  # begun anew in each step
    ],
)
def test_a_loop(tmp_path: Path, loss: str, after: str, live: set[str]) -> None:
    assert head(tmp_path, LOOP.format(before="", loss=loss, after=after)) == live


@pytest.mark.parametrize(
    ("inside", "live"),
    [
        ("for group in opt.param_groups: group['lr'] = self.rate()", {"self.count"}),
        ("if self.count > 3: self.ended = 1", set()),
        ("writer.add_scalar('rate', self.rate(), self.count)", set()),
    ],
)
def test_a_trainer(tmp_path: Path, inside: str, live: set[str]) -> None:
    """Attributes, read by methods that its loop calls."""
    assert head(tmp_path, TRAINER.format(inside=inside)) & {"self.count", "self.ended"} == live


@pytest.mark.parametrize(
    ("call", "live"),
    [
        ("train(x, count, ema)", {"count"}),
        ("train(x, place=count, number=ema)", {"ema"}),
        ("train(x, 1, 2); print(count)", set()),
        ("train(x, 1, 2) if ema < 5 else None", {"ema"}),
        ("ema < 5 and train(x, 1, 2)", {"ema"}),
        ("print(count) if ema < 5 else train(x, 1, 2)", {"ema"}),
    ],
)
def test_a_function(tmp_path: Path, call: str, live: set[str]) -> None:
    """By which of its arguments it trains."""
    assert head(tmp_path, CALLED.format(call=call)) - {"train"} == live


def test_what_a_function_is_given_is_not_its_own(tmp_path: Path) -> None:
    """As a rank, which differs from worker to worker."""
    body = "    for x in batches:\n        look()\n        if rank == 1: continue\n        net(x).backward()\n"
    assert "rank" not in head(tmp_path, f"def train(rank):\n{body}train(0)\n")


TICKS = """
count, rate = 0, 0.1
def tick():
    global count, rate
    count += 1
    rate = 0.1 / count
def place():
    global rate
    rate = 0.1 * len(batches)
def log():
    global count
    count += 1
class Meter:
    seen = total = 0
    def update(self, value):
        self.total += value
    def __call__(self, value):
        self.seen += 1
        return self.seen > 3
class Stopper:
    bad = seen = 0
    meter = None
    def __init__(self):
        self.meter, self.other = Meter(), Meter()
    def __call__(self, loss):
        self.seen += 1
        self.meter.update(loss)
        self.bad = self.bad + 1 if loss else 0
        return self.bad > 3
    def by_its_meter(self, loss):
        self.meter.update(1)
        return self.meter(loss) or self.other.total
stopper = Stopper()
for x in batches:
    look()
    net(x).backward()
    {call}
    for group in opt.param_groups: group["lr"] = {rate}
    if {ends}: break
"""


@pytest.mark.parametrize(
    ("call", "rate", "ends", "live"),
    [
        ("tick()", "rate", "0", {"count"}),
        ("place()", "rate", "0", set()),
        ("log()", "rate", "0", {"rate"}),
        ("", "0.1", "stopper(x)", {"stopper.bad"}),
        ("stopper(x)", "0.1 / stopper.seen", "0", {"stopper.seen"}),
        ("", "0.1", "stopper.by_its_meter(x)", {"stopper.meter.seen", "stopper.other"}),
        ("stopper.meter.update(x)", "0.1", "stopper.meter.seen > 3", {"stopper.meter"}),
    ],
)
def test_what_functions_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, rate: str, ends: str, live: set[str]
) -> None:
    """Variables and attributes, also of an object's objects: what is made anew, and what is only added up for a log."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "train.py"), raising=False)
    found = head(tmp_path, TICKS.format(call=call, rate=rate, ends=ends))
    assert {name for name in found if name.startswith(("count", "rate", "stopper"))} == live


@pytest.mark.parametrize(
    ("used", "logged"),
    [
        ("print(epoch, tally.tolist())", True),
        ("hits = tally.diag()\nshare = hits.sum() / tally.sum()\nwriter.add_scalar('hits', share.item(), 3)", True),
        ("tally = tally * 0", True),
        ("torch.save(tally, 'tally.pt')", False),
        ("share = tally.mean()\nif share > 0.5: stop()", False),
        ("weights = balanced(tally)\nprint(weights)", False),
        ("loss = (loss * tally).mean()\nloss.backward()", False),
        ("def evaluate():\n    return tally.max()", False),
    ],
)
def test_a_tally_is_only_logged(tmp_path: Path, used: str, logged: bool) -> None:
    (tmp_path / "train.py").write_text(f"tally = torch.zeros(9)\ntally += torch.bincount(net(x))\n{used}\n")
    assert only_logged(str(tmp_path / "train.py"), "tally") == logged


def test_a_source_that_cannot_be_followed_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of it, whatever is wrong with the slice."""
    source = LOOP.format(before="", loss="loss = loss * count", after="count += 1")
    assert head(tmp_path, source) == {"count"}

    def fails(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(slices, "_placed", fails)
    assert head(tmp_path, source) == set()
