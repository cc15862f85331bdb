"""The training's way through its worlds: beginning, agreeing on a step, switching, handing state over, saving.

Everything that happens between two steps happens here, in the same order on every rank. What happens in a step is
job.py's.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from . import world as worlds
from .audit import Recorder
from .batch import micros_of, slice_of
from .checkpoint import Saved
from .data import Feed, Micro, Slicing
from .errors import TrainingError
from .link import Coming, Link
from .membership import Membership
from .optimization import Optimization
from .parallel import Strategy
from .saving import Background, Saving
from .state import State
from .telemetry import Meter, Position, Shape, pause
from .tuning import Tuning
from .words import Reader, Said, Sums
from .world import World, WorldNotFormed

SAVE_WAIT_S = 20.0
"""How long a leaving worker waits for its last snapshot to be on disk; below link.LOST_GRACE_S."""


class Course:
    """See the module. One per job."""

    def __init__(self, membership: Membership, tuning: Tuning, directory: Any, every_s: float) -> None:
        self.membership = membership
        self.tuning = tuning
        self.state = State()
        self.meter = Meter()
        self.saving = Saving(directory, every_s, self._saved)
        self.device: torch.device = membership.device()
        self.strategy: Strategy | None = None
        self.optimization: Optimization | None = None
        self.feed: Feed | None = None
        """The pass over a dataset that is under way."""
        self._spoken: deque[tuple[Coming | None, Reader]] = deque()
        self._squares: tuple[float, float, list[int], int] | None = None
        self._lag = 1 if self.device.type == "cuda" else 0
        self._ended = 0.0
        if self.saving.writer is not None:
            membership.on_leave = self._before_leaving
            self.saving.writer.on_free = self._free
        self._held: dict[str, Any] | None = None
        self._still = threading.Lock()
        self._quiet = False
        self._announce = False
        self._pause: tuple[float, float, int, float] | None = None
        self._old_size, self._resumed = 1, 0.0
        audit = os.environ.get("SELASTIC_AUDIT")
        self._audit = Recorder(audit, membership.worker) if audit else None
        if membership.link is not None:
            membership.link.on_tick = self._report
        else:
            self.saving.handle_signals()

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return self.membership.world.rank if self.membership.world else -1

    @property
    def batch(self) -> int:
        return self.state.progress.batch or self.membership.batch or self.tuning.base

    def world(self) -> World:
        if self.membership.world is None:
            raise TrainingError("there is no world yet; it forms when job.epochs() begins")
        return self.membership.world

    def model(self) -> Strategy:
        if self.strategy is None:
            raise TrainingError("job.wrap(model, optimizer) has not been called; wrap the model before the loop")
        return self.strategy

    def optimizers(self) -> Optimization:
        if self.optimization is None:
            raise TrainingError("job.wrap(model, optimizer) has not been called; wrap the model before the loop")
        return self.optimization

    def slicing(self) -> Slicing:
        world = self.world()
        return Slicing(self.batch, world.size, world.rank, self.tuning.limit(), halve=self.tuning.wants_noise)

    def log(self, *words: object) -> None:
        """Print on rank 0, at once."""
        if self.rank == 0:
            print(*words, flush=True)

    # -- in a step -----------------------------------------------------------------------------------------------

    def say(self) -> tuple[Coming | None, Said]:
        """What this rank tells the others with the step now ending."""
        square = self._squares[0] if self._squares is not None else 0.0
        return self.membership.said(self.saving.due(self.rank), self.saving.ending, square)

    def record(self, total: int, own: list[int]) -> None:
        """For the audit, before this rank contributes to a step: the samples it trained on."""
        if self._audit is None:
            return
        progress, world = self.state.progress, self.world()
        place = {"generation": world.generation, "step": progress.step + 1, "epoch": progress.epoch}
        self._audit.write({**place, "batch": total, "rank": world.rank, "size": world.size, "indices": own})

    def stepped(self, micro: Micro, coming: Coming | None, reader: Reader) -> None:
        """A step has been done: count it, advance the schedule, and remember what all ranks said."""
        progress = self.state.progress
        progress.step += 1
        progress.samples += micro.total
        progress.cursor = micro.cursor + micro.total
        self.optimizers().schedule(progress)
        shape = self._shape()
        position = Position(progress.step, progress.samples, progress.epoch, self.tuning.noise(progress).scale)
        typical = micro.total == self.batch and micro.count == shape.accumulation
        self.meter.step(micro.total, shape, position, typical)
        self._spoken.append((coming, reader))
        self._ended = time.perf_counter()
        self._write_held()
        if self._announce:
            self._say_running()

    def _shape(self) -> Shape:
        """Of a full step on rank 0, which has the largest slice."""
        world, slicing = self.world(), self.slicing()
        parts = micros_of(slice_of(self.batch, world.size, 0), slicing.micro_batch or self.batch)
        return Shape(world.generation, self.batch, len(parts[0]), len(parts))

    def measure(self, micro: Micro, squares: tuple[float, float] | None) -> None:
        """Take the squared norms of a measured step: of this rank's gradient, and of the mean over all ranks."""
        if squares is None:
            return
        world, total = self.world(), micro.total
        small, large = squares
        if world.size == 1:
            first = len(slice_of(total, micro.count, 0))
            if micro.count > 1:
                small *= (total / first) ** 2  # the loss was scaled by its share of the step
                self.tuning.measured(self.state.progress, small, large, [first], total)
            return
        sizes = [len(slice_of(total, world.size, rank)) for rank in range(world.size)]
        own = sizes[world.rank]
        small = small * (total / (own * world.size)) ** 2 if own else 0.0
        self._squares = (small, large, sizes, total)

    def _heard_squares(self, sums: Sums) -> None:
        if self._squares is None:
            return
        _, large, sizes, total = self._squares
        self._squares = None
        active = sum(1 for size in sizes if size)
        self.tuning.measured(self.state.progress, sums.square / active, large, sizes, total)

    # -- between two steps ---------------------------------------------------------------------------------------

    def boundary(self) -> None:
        """Act on what all ranks said. In the loader, not in step(): the rest of the loop's body belongs to the step."""
        self.membership.check_lost()
        if len(self._spoken) <= self._lag:
            return
        coming, reader = self._spoken.popleft()
        sums = reader()
        if sums.square:
            self._heard_squares(sums)
        if sums.save or sums.stop:
            self.save()
        if sums.stop:
            self._leave_on_signal()
        if sums.switch and coming is not None:
            self._switch(coming)

    def _switch(self, coming: Coming) -> None:
        """Change worlds. What a script holds of the last step (loss, outputs) may stay: its graph has been used up."""
        progress, model, old = self.state.progress, self.model(), self.world()
        lr = self.tuning.target_rate(progress).lr
        self._send_report(self.meter.rest())
        self._pause, self._old_size = (self._ended, self.meter.median_step(), self.batch, lr), old.size
        keep = coming.rank == 0 and not coming.leave and (model.sharded or self.saving.writer is not None)
        captured = self.state.capture() if keep and not model.sharded else None
        carried = self._snapshot(keep) if model.sharded else None
        # Replicas are copied while the new world forms: until its first step nothing changes them.
        copying = Background(lambda: self.state.copy(captured)) if captured is not None else None
        try:
            position = {"step": progress.step, "samples": progress.samples}
            switched = self.membership.switch(coming, position, model.disconnect)
            self._spoken.clear()
            self._squares = None
            if not switched:
                self._hold(carried, copying)
                self.log(f"world {coming.generation} did not form; training goes on with {old.size} workers")
                self._pause = None
                self.meter.resume()
                return
            self._connect(carried, has_state=not model.sharded or carried is not None)
            self._hold(carried, copying)
            self._resumed = time.perf_counter()
        except WorldNotFormed as error:
            self._hold(carried, copying)
            self.membership.fail(coming.generation, str(error))
        if self._audit is not None and self.rank == 0:
            ranks = [old.size, self.world().size]
            self._audit.write({"resize": ranks, "generation": self.world().generation, "step": progress.step})

    def _hold(self, carried: dict[str, Any] | None, copying: Background | None) -> None:
        """Have the snapshot of a switch complete before the next step, and written after it: writing takes time too."""
        self._held = copying.result() if copying is not None else carried

    def _write_held(self) -> None:
        snapshot, self._held = self._held, None
        if snapshot is not None:
            self.saving.put(snapshot)

    def _before_leaving(self) -> None:
        self._write_held()
        self.saving.wait(SAVE_WAIT_S)

    def begin(self) -> None:
        """Enter the first world, with the state that it starts from."""
        tuning, membership = self.tuning, self.membership
        micro = tuning.micro_batch or tuning.fitted
        limits = {"batch": tuning.base, "max_batch": tuning.max_batch or 0, "micro_batch": micro}
        world = membership.enter(limits)
        captured = None
        if world.rank == 0 and membership.source != "survivor":
            captured = self._restore()
        try:
            self._connect(captured, has_state=world.rank == 0)
        except WorldNotFormed as error:
            membership.fail(world.generation, str(error))

    def _restore(self) -> dict[str, Any] | None:
        """Rank 0 of a first world: the newest checkpoint. A world that the supervisor calls fresh takes none."""
        source, captured = self.membership.source, None
        found = self.saving.newest(must=source == "checkpoint") if source != "fresh" else None
        if found is not None:
            saved, captured = found
            self.state.check(captured)
            self.state.take_progress(captured)
            self.log(f"restored from {saved.path} at step {saved.step}, {saved.samples} samples")
        if self._audit is not None:
            step = self.state.progress.step
            self._audit.write({"restored_from_step": step, "generation": self.world().generation})
        return captured

    def _connect(self, captured: dict[str, Any] | None, has_state: bool) -> None:
        """In a new world: put the model together, and hand state to those without.

        captured: rank 0's state where it is not in its objects: from a checkpoint, or gathered from shards.
        """
        world, model = self.world(), self.model()
        try:
            steps, fitted = worlds.who_has(world, self.state.progress.step if has_state else -1, self.tuning.fitted)
            self.tuning.agreed = min((size for size in fitted if size), default=0)
            if len({step for step in steps if step >= 0}) != 1:
                raise TrainingError(f"world {world.generation} has ranks at steps {steps}; all have to be at one step")
            joiners = [rank for rank, step in enumerate(steps) if step < 0]
            if model.sharded and captured is None and has_state:
                captured = self.state.snapshot()
            model.connect(world)
            if captured is not None:
                self.state.restore(captured, model.adapt)
            if joiners and (world.rank == 0 or world.rank in joiners):
                channel = worlds.Channel(world, joiners)
                self.state.move(channel, self.device, captured, model.adapt)
                channel.close()
        except RuntimeError as error:
            self.membership.broken(error)
            raise
        worlds.settled(world)
        self._set_batch()
        self.meter.world()
        self._announce = True
        if self.feed is not None:
            self.feed.turn(self.state.progress.cursor, self.slicing())

    def _set_batch(self) -> None:
        progress = self.state.progress
        wanted = self.membership.batch or progress.batch or self.tuning.base
        batch, problem = self.tuning.accept(wanted, starting=progress.step == 0)
        if problem:
            self.log(problem)
        self.tuning.change(progress, batch)

    def _say_running(self) -> None:
        self._announce = False
        pause_s, progress, world = 0.0, self.state.progress, self.world()
        if self._pause is not None:
            since, one_step, old_batch, old_factor = self._pause
            self._pause = None
            shares = (old_batch / self._old_size, self.batch / world.size)
            pause_s = pause(self._ended - since, self._resumed - since, one_step, shares)
            lr = self.optimizers().first_rate()
            lrs = (lr * old_factor, lr * self.tuning.target_rate(progress).lr)
            self.log(self.tuning.describe((old_batch, self.batch), world.size, lrs, pause_s, progress))
        if self.membership.link is not None and self.rank == 0:
            fields = {"generation": world.generation, "step": progress.step, "samples": progress.samples}
            self.membership.link.send({"type": "running", **fields, "batch": self.batch, "pause_s": pause_s})

    def _report(self) -> None:
        """On the link's thread."""
        link = self.membership.link
        if link is None or self.rank != 0:
            return
        self._send_report(self.meter.due())
        if link.save_wanted():
            self._save_while_quiet(link)

    def _send_report(self, report: dict[str, Any] | None) -> None:
        if report is not None and self.membership.link is not None and self.rank == 0:
            self.membership.link.report({"type": "report", **report})

    def _save_while_quiet(self, link: Link) -> None:
        """During an evaluation no step comes that could save; nothing changes the state either."""
        with self._still:
            if self._quiet and not self.model().sharded and self.saving.writer is not None:
                link.save_taken()
                self.saving.put(self.state.snapshot() or {})

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """While this lasts on rank 0 no step is taken, and nothing that is kept changes."""
        self._quiet = True
        try:
            yield
        finally:
            with self._still:
                self._quiet = False

    # -- saving and the end --------------------------------------------------------------------------------------

    def save(self) -> None:
        """Copy the state and have it written; every rank calls this at the same step."""
        self._held = None  # an older one
        if self.saving.writer is not None:
            snapshot = self._snapshot(keep=self.rank == 0)
            if snapshot is not None:
                self.saving.put(snapshot)

    def _snapshot(self, keep: bool) -> dict[str, Any] | None:
        """A copy in host memory, on the rank that keeps it. Shards are gathered: then every rank has to take part."""
        model = self.model()
        if not keep and not model.sharded:
            return None
        return self.state.snapshot(model.full, keep)

    def _free(self, snapshot: dict[str, Any]) -> None:
        if not self.model().sharded:  # there, optimizers may have taken over tensors of a snapshot
            self.state.recycle(snapshot)

    def _saved(self, saved: Saved) -> None:
        if self.membership.link is not None:
            fields = {"step": saved.step, "samples": saved.samples, "path": str(saved.path)}
            self.membership.link.send({"type": "saved", **fields})

    def _leave_on_signal(self) -> NoReturn:
        self.saving.wait()
        self.log(f"stopped by a signal at step {self.state.progress.step}; the checkpoint is written")
        sys.exit(128 + 15)

    def finish(self, finished: bool) -> None:
        """The training is over: save it as such, and tell the supervisor."""
        progress = self.state.progress
        progress.finished = finished
        self._send_report(self.meter.rest())
        self.save()
        self.saving.wait()
        link = self.membership.link
        if link is not None:
            fields = {"step": progress.step, "samples": progress.samples, "epoch": progress.epoch}
            link.send({"type": "done", **fields})
            link.flush()

    def close(self) -> None:
        """Take leave of the group and of the supervisor."""
        if self.strategy is not None:
            self.strategy.disconnect()
        # Under the supervisor the process ends right after this, and destroying a group may wait for dead ranks.
        if self.membership.world is not None and self.membership.world.grouped and self.membership.link is None:
            worlds.leave()
        if self.membership.link is not None:
            self.membership.link.close()
