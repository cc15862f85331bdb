"""A dataset whose samples depend on what was fetched before is refused by name, in its first fetch."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
from local_jobs import loss_of, refused, wrapped

import slurm_elastic.trainer_shim as elastic


class Samples(torch.utils.data.Dataset[Any]):
    """Twenty samples; what else it does, its subclasses say."""

    state: Any = None

    def __init__(self) -> None:
        self.x = torch.randn(20, 3)
        self.opened: Any = None
        self.begin()

    def begin(self) -> None:
        pass

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.of(index), self.x[index, :1]

    def of(self, index: int) -> torch.Tensor:
        return self.x[index]


class Curriculum(Samples):
    """Harder with each call."""

    def begin(self) -> None:
        self.state = 0

    def of(self, index: int) -> torch.Tensor:
        self.state += 1
        return self.x[index] * min(1.0, self.state / 1000)


class CachedNoise(Samples):
    """A sample's augmentation is that of its first time."""

    def begin(self) -> None:
        self.state = {}

    def of(self, index: int) -> torch.Tensor:
        if index not in self.state:
            self.state[index] = self.x[index] + torch.randn(3)
        return self.state[index]


class InOrder(Samples):
    """What comes next, whatever is asked for."""

    def begin(self) -> None:
        self.state = -1

    def of(self, index: int) -> torch.Tensor:
        self.state = (self.state + 1) % 20
        return self.x[self.state]


class Drawn(Samples):
    def begin(self) -> None:
        self.state = random.Random(0)

    def of(self, index: int) -> torch.Tensor:
        return self.x[index] * self.state.random()


class DrawnByNumpy(Samples):
    def begin(self) -> None:
        self.state = numpy.random.default_rng(0)

    def of(self, index: int) -> torch.Tensor:
        return self.x[index] * float(self.state.normal())


class Mixed(Samples):
    """With the sample before."""

    def begin(self) -> None:
        self.state = [torch.zeros(3)]

    def of(self, index: int) -> torch.Tensor:
        self.state.append(self.x[index])
        return self.x[index] + self.state.pop(0)


class Wrapping(Samples):
    """A transform of its own has the state."""

    def begin(self) -> None:
        self.inner = Curriculum()

    def of(self, index: int) -> torch.Tensor:
        return self.inner.of(index)


class Plain(Samples):
    """Opened late, cached, counted, with torch's random numbers."""

    def begin(self) -> None:
        self.state, self.calls, self.cache = None, 0, dict[int, torch.Tensor]()

    def of(self, index: int) -> torch.Tensor:
        self.opened = self.opened or object()
        self.calls += 1
        self.cache.setdefault(index, self.x[index] * 2)
        return self.cache[index] + torch.randn(3)


@pytest.mark.parametrize("kind", [Curriculum, CachedNoise, InOrder, Drawn, DrawnByNumpy, Mixed, Wrapping, Plain])
def test_first_fetch(made: list[elastic.Job], kind: type[Samples]) -> None:
    job, net, _ = wrapped(made)

    def trains() -> None:
        for _ in job.epochs(1):
            for batch in job.loader(kind()):
                job.step(loss_of(net, batch))

    if kind is Plain:
        trains()
    else:
        with refused(f"samples of the {kind.__name__} depend on its attribute 'state', which fetching them changes"):
            trains()


def test_in_loader_workers(made: list[elastic.Job]) -> None:
    """One sentence of the worker's; none where it is meant."""
    for meant in ([], ["state"]):
        job, net, _ = wrapped(made, meant=meant)
        for _ in job.epochs(1):
            if not meant:
                with refused("samples of the Curriculum depend on its attribute 'state'"):
                    next(iter(job.loader(Curriculum(), num_workers=1)))
                job.stop()
                continue
            for batch in job.loader(Curriculum(), num_workers=1):
                job.step(loss_of(net, batch))
        made.pop().close()


class OfEpoch(Samples):
    def begin(self) -> None:
        self.state = 0

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(self.state)), self.x[index, :1]


def test_an_epoch_that_the_script_sets_reaches_the_workers(made: list[elastic.Job]) -> None:
    """They are kept over passes, and those of a worker that starts again are new."""
    job, net, _ = wrapped(made)
    data, seen = OfEpoch(), list[set[float]]()
    loader = job.loader(data, num_workers=1)
    for epoch in job.epochs(3):
        data.state = epoch // 2
        seen.append(set())
        for batch in loader:
            seen[-1].update(batch[0].flatten().tolist())
            job.step(loss_of(net, batch))
    assert seen == [{0.0}, {0.0}, {1.0}]
