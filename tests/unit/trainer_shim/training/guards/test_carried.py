"""What a script trains by, keeps for itself, and has anew on a worker that starts again, ends it there by name."""

from __future__ import annotations

import random
import weakref
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from local_jobs import DATA, refused, wrapped
from torch.utils.data import ConcatDataset, TensorDataset

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.state.kept_parts import State
from slurm_elastic.trainer_shim.training.guards.carried import text_of

WRAPPED = """
import random, torch
import slurm_elastic.trainer_shim as elastic
job = elastic.join(batch=8{join})
made.append(job)
resume(job)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
count, bad, best, total = 0, 0, 9.0, 0.0
stopper, draw = stopper(), random.Random(0)
{keep}
net = job.wrap(model, optimizer)
for epoch in job.epochs(4):
    {head}
    for x, y in job.loader(data):
        loss = ((net(x) - y) ** 2).mean()
        {inside}
        job.step(loss)
        {after}
        if job.global_step == dies:
            raise InterruptedError
    {tail}
    job.once(print)
"""
OWN = """
import torch
import slurm_elastic.trainer_shim as elastic
job = elastic.join(batch=8)
made.append(job)
resume(job)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
net = job.replicate(model)
job.keep(optimizer=optimizer)
def blocks(seed=0):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(4, 3, generator=generator)
{before}
count = 0
while job.next(12):
    {top}
    for _ in job.share(2):
        net({batch}).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    {after}
    if job.global_step == dies:
        raise InterruptedError
"""


class Stopper:
    """An early stopper of the script's own."""

    def __init__(self) -> None:
        self.waited = 0

    def __call__(self, loss: torch.Tensor) -> bool:
        self.waited += 1
        return self.waited > 30


class Cached:
    """A dataset that remembers what it has read."""

    def __init__(self, data: TensorDataset) -> None:
        self.data, self.read = data, dict[int, Any]()
        self.hits = 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> Any:
        self.hits += number in self.read
        return self.read.setdefault(number, self.data[number])


PARTS = {"join": "", "keep": "", "head": "", "inside": "", "after": "", "tail": ""}
WAITS = "bad = 0 if loss < best else bad + 1; best = min(best, loss.item())"


def run(made: list[elastic.Job], folder: Path, source: str, saved: State | None = None, dies: int = -1) -> State:
    """One process's training from what was saved, until it dies in that step or ends. Its state."""

    def resume(job: elastic.Job) -> None:
        if saved is not None:
            at = saved.progress
            job.begin_at(at.epoch, step=at.step, samples=at.samples, in_epoch=at.cursor)
            job._session.state.variables = saved.variables

    (folder / "train.py").write_text(source)
    values = {
        "__name__": "__main__",
        "made": made,
        "resume": resume,
        "data": DATA,
        "stopper": Stopper,
        "cached": Cached,
        "dies": dies,
    }
    torch.manual_seed(0)
    with suppress(InterruptedError):
        exec(compile(source, folder / "train.py", "exec"), values)
    job = made.pop()
    job.close()
    return job._session.state


def restarted(made: list[elastic.Job], folder: Path, source: str, told: str) -> None:
    """It dies twice."""
    saved = run(made, folder, source, dies=5)
    with refused(told) if told else nullcontext():
        run(made, folder, source, run(made, folder, source, saved, dies=8))


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"after": "count += 1\n        if count >= 11: job.stop()"}, "'count', which is 0 .* and was 4"),
        ({"tail": "count += 1\n    if count == 3: break"}, "'count', which is 0 .* and was 1"),
        ({"inside": "loss = loss * 0.9 ** count", "tail": "count += 1"}, "'count', which is 0"),
        (
            {"inside": "optimizer.param_groups[0]['lr'] = 0.1 / count", "head": "count += 1"},
            "'count', which is 1 .* was 2",
        ),
        ({"inside": "total = 0.9 * total + 0.1; loss = loss * total"}, "'total', which is 0.0"),
        ({"after": "if stopper(loss): job.stop()"}, "'stopper.waited', which is 0"),
        ({"inside": "loss = loss * draw.random()"}, "'draw', which is a generator #"),
        ({"after": f"{WAITS}\n        if bad > 30: break"}, r"'(bad|best)', which is (0|9\.0) on"),
        (
            {"keep": "warm = False", "inside": "loss = loss * (1 + warm); warm = True"},
            "'warm', which is False .* was True",
        ),
        (
            {"keep": "import numpy; draw = numpy.random.RandomState(0)", "inside": "loss = loss * draw.rand()"},
            "'draw', which is a generator #",
        ),
        # Of each step, though it does not look so; a dataset's; logged, kept, by what the job says, or meant.
        ({"inside": "if epoch < 9: late = loss.item()\n        loss = loss * late"}, ""),
        ({"keep": "data = cached(data)"}, ""),
        ({"after": "count += 1; total += loss.item(); print(total / count)"}, ""),
        ({"after": f"count += 1; {WAITS}; print('best', count, bad)"}, ""),
        ({"after": "count += 1\n        if count > 30: break", "keep": "job.keep(globals(), 'count')"}, ""),
        ({"after": "if stopper(loss): job.stop()", "keep": "job.keep(vars(stopper), 'waited')"}, ""),
        ({"head": "count = job.global_step", "after": "count += 1\n        if count > 30: break"}, ""),
        ({"head": "if count != epoch: count = epoch; optimizer.param_groups[0]['lr'] /= 2"}, ""),
        ({"after": "count += 1\n        if count > 30: break", "join": ", meant=['count']"}, ""),
    ],
)
def test_a_pass(made: list[elastic.Job], tmp_path: Path, parts: dict[str, str], told: str) -> None:
    restarted(made, tmp_path, WRAPPED.format(**{**PARTS, **parts}), told)


OPENS = "if world != job.generation: world, stream = job.generation, blocks(job.global_step)"


@pytest.mark.parametrize(
    ("before", "top", "batch", "after", "told"),
    [
        ("", "", "torch.ones(4, 3)", "count += 1\n    if count == 9: job.stop()", "'count', which is 0 .* was 5"),
        ("stream = blocks()", "", "next(stream)", "", "'stream' is read on from step to step"),
        ("stream = None", "stream = stream or blocks(job.rank)", "next(stream)", "", "'stream' is read on"),
        ("stream = iter(torch.utils.data.DataLoader(data, 1))", "", "next(stream)[0]", "", "'stream' is read on"),
        ("draw = torch.Generator()", "", "torch.randn(4, 3, generator=draw)", "", "'draw', which is a generator #"),
        ("draw = torch.Generator()", "draw.manual_seed(job.global_step)", "torch.randn(4, 3, generator=draw)", "", ""),
        ("stream, world = None, -1", OPENS, "next(stream)", "", ""),
        ("names = iter('abcdefghijklmnop')", "print(next(names))", "torch.ones(4, 3)", "", ""),
    ],
)
def test_an_own_loop(
    made: list[elastic.Job], tmp_path: Path, before: str, top: str, batch: str, after: str, told: str
) -> None:
    restarted(made, tmp_path, OWN.format(before=before, top=top, batch=batch, after=after), told)


def test_generators_are_told_alike_in_each_process() -> None:
    assert text_of(random.Random(0)) == "a generator #4ccd56fe"
    assert text_of(torch.Generator().manual_seed(3)) == "a generator #9e7dfc0d"


def test_a_checkpoint_has_it(made: list[elastic.Job], tmp_path: Path) -> None:
    """A count that decides is compared where a real restart begins, behind a pass."""
    for dies in (5, -1):
        job = elastic.join(batch=8, checkpoints=tmp_path, checkpoint_every_s=0.0)
        made.append(job)
        model, count = torch.nn.Linear(3, 1), 0
        net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with refused("'count', which is 0 on a worker that begins") if dies < 0 else suppress(InterruptedError):
            for _ in job.epochs(4):
                for batch in job.loader(DATA):
                    job.step(((net(batch[0]) - batch[1]) ** 2).mean())
                    job._session.saving.wait(10)
                    if job.global_step == dies:
                        raise InterruptedError
                count += 1
                if count == 4:
                    break
        made.pop().close()


@pytest.mark.parametrize("top", ["", OPENS.replace("!= job.generation", "is not job._session._carried._world")])
def test_a_stream_that_goes_on_in_a_world_of_other_ranks(made: list[elastic.Job], tmp_path: Path, top: str) -> None:
    """As after a shrink: what the ranks that have left would have read is missed. One made anew is no such stream."""
    after = "if job.global_step == 2: job._session._carried._world = 1, 2"
    before = "stream, world = blocks(), (0, 1)"
    source = OWN.format(before=before, top=top.replace("job.generation,", "(0, 1),"), batch="next(stream)", after=after)
    with refused("'stream' is read on from step to step") if not top else nullcontext():
        run(made, tmp_path, source)


def outlive(job: elastic.Job, net: Any) -> list[bool]:
    """Of each step, whether the outputs of the one before are there as its own come in their place."""
    alive, before = [], weakref.ref(DATA)
    for _ in job.epochs(1):
        for batch in job.loader(ConcatDataset([DATA] * 4)):
            out = net(batch[0])
            alive.append(before() is not None)
            job.step((out - batch[1]).square().mean())
            before = weakref.ref(out)
    return alive


def test_no_tensor_outlives_its_variable(made: list[elastic.Job]) -> None:
    """What looks at a script's variables keeps no step's outputs for another step."""
    job, net, _ = wrapped(made)
    alive = outlive(job, net)
    assert len(alive) == 10 and not any(alive[5:])
