"""A training under test, whoever has started it, a Slurm or a test: what the test does as its selasticd, and waits for.

Its folder has what it writes: `audit` is the record of its samples, and files that the test puts there steer it
(TRAIN).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import audited
from fake_daemon import FakeDaemon
from waiting import wait_until

from slurm_elastic.protocol.messages import Happening, Piece, Shape
from slurm_elastic.trainer_shim.training import audit

T = TypeVar("T")
TRAIN = """
import os, sys, time, torch
import slurm_elastic.trainer_shim as elastic
while os.path.exists('cold'): time.sleep(0.1)
samples, epochs, nap = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
job = elastic.join(batch=16, max_batch=64, lr="none")
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(samples, 4), torch.randint(0, 3, (samples,)))
model = torch.nn.Linear(4, 3).to(job.device)
net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
for epoch in job.epochs(epochs):
    for x, y in job.loader(data):
        while os.path.exists('stuck') and job.rank == 0: time.sleep(0.1)
        job.step(torch.nn.functional.cross_entropy(net(x), y))
        nap = float(sys.argv[3]) * (1 if job.samples < samples * epochs / 2 else 20)
        time.sleep(0 if os.path.exists('go') else nap)
job.log(f"trained {job.samples} samples in generation {job.generation}")
"""
"""A script small enough for tests of `selastic run`. Arguments: samples, epochs, seconds to nap after a step. Files in
its folder: `go` ends the naps, `cold` keeps a process that has just begun from joining, `stuck` holds rank 0 in its
step. In the second half of the training the naps last twenty times as long, so that it does not end before the test is
done with it."""


def on(*nodes: str, gpus: int = 1, **more: Any) -> Shape:
    """A companion on these nodes; where none is named, on one that Slurm chooses."""
    return Shape(max(1, len(nodes)), gpus, node_list=nodes, **more)


class Training(ABC):
    """See the module; the subclasses say how it is started, what it says and how it ends."""

    id = 0
    """Of its Slurm job."""
    samples, epochs = 0, 1
    checkpoints = "job/checkpoints"
    """Where they are in the folder."""

    def __init__(self, folder: Path, daemon: FakeDaemon | None) -> None:
        """daemon: the training's, if the test speaks for it."""
        self.folder, self._daemon = folder, daemon

    @property
    def daemon(self) -> FakeDaemon:
        assert self._daemon is not None, "the test does not speak for this training's selasticd"
        return self._daemon

    # --- what is seen -------------------------------------------------------------------------------------------------

    @abstractmethod
    def text(self) -> str:
        """What it has said."""

    def story(self) -> str:
        """What a test that fails tells of it."""
        return self.text()

    def trained(self) -> int:
        """The last step that any rank has contributed to."""
        return max((int(row["step"]) for row in audit.read(self.folder / "audit") if "indices" in row), default=0)

    def saved(self) -> int:
        """The step of the newest checkpoint."""
        found = sorted(self.folder.glob(f"{self.checkpoints}/step-*/checkpoint.json"))
        return int(found[-1].parent.name.removeprefix("step-")) if found else 0

    # --- what is waited for -------------------------------------------------------------------------------------------

    def wait_for(self, predicate: Callable[[], T], timeout: float = 60, *, every: float = 0.05) -> T:
        return wait_until(predicate, timeout, self.story, every=every)

    def says(self, words: str, timeout: float = 60, times: int = 1) -> None:
        wait_until(lambda: self.text().count(words) >= times, timeout, lambda: f"{words!r} in:\n{self.text()}")

    def trains_past(self, step: int, timeout: float = 120) -> None:
        self.wait_for(lambda: self.trained() > step, timeout)

    def trains_on(self, steps: int = 3) -> None:
        """So many more steps are done."""
        self.trains_past(self.trained() + steps)

    # --- what the test does as its selasticd, and as its user ---------------------------------------------------------

    def base(self) -> tuple[Piece, ...]:
        """What it trains on when it has registered (again)."""
        self.wait_for(lambda: self.daemon.registrations, 120)
        return self.daemon.registrations[-1].pieces

    def order(self, keep: tuple[Piece, ...], *add: Shape, batch: int = 0, wait: float = 120) -> int:
        """Order its next resize; the resize's number."""
        number = self.daemon.ordered + 1
        self.daemon.order(number, self.id, keep, add, batch, wait)
        return number

    def resize(self, keep: tuple[Piece, ...], *add: Shape, batch: int = 0, steps: int = 3) -> Happening:
        """Order a resize, and wait until so many more steps are done with it."""
        return self.resized(self.order(keep, *add, batch=batch), steps)

    def resized(self, number: int, steps: int = 3) -> Happening:
        """The resize ends well, and so many more steps are done with it."""
        ended = self.over(number)
        assert ended.what == "running", f"{ended}\n{self.story()}"
        if steps:
            self.trains_past(ended.step + steps)
        return ended

    def over(self, number: int) -> Happening:
        """How the resize ends."""
        ended = self.wait_for(lambda: self.daemon.ended(number), 180, every=0.01)
        assert ended is not None
        return ended

    def grow(self, *nodes: str) -> Piece:
        """A companion's GPU joins, on this node where one is named, on one of each where several are; the companion."""
        return self.resize(self.base(), on(*nodes)).pieces[-1]

    @contextmanager
    def there_is(self, name: str) -> Iterator[None]:
        """While this file is in its folder, for which its workers look."""
        (self.folder / name).touch()
        yield
        (self.folder / name).unlink()

    def go(self) -> None:
        """Let it run to its end at full speed."""
        (self.folder / "go").touch()

    # --- how it ends --------------------------------------------------------------------------------------------------

    @abstractmethod
    def ends(self, timeout: float = 120) -> None:
        """It comes to a good end."""

    def checked(self, record: str = "audit") -> audited.AuditResult:
        """Each sample of each pass was trained on once."""
        result = audited.check(self.folder / record, self.samples, self.epochs)
        assert result.ok, f"{result}\n{self.story()}"
        return result

    def finish(self, timeout: float = 120) -> audited.AuditResult:
        """It runs to a good end, and has trained on each sample of each pass once."""
        self.go()
        self.ends(timeout=timeout)
        return self.checked()

    def trained_once(self) -> None:
        """No step was trained twice."""
        trained: dict[int, set[int]] = {}
        for row in audit.read(self.folder / "audit"):
            if "indices" in row:
                trained.setdefault(row["step"], set()).add(row["generation"])
        assert trained and all(len(generations) == 1 for generations in trained.values()), self.story()
