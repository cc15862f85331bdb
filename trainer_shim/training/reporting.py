"""What a worker says of its training: reports to the supervisor, and a line in the job's log for each resize.

The training thread only notes numbers; the client's thread asks whether a report is due.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from ..data.sampling import Slicing, positions_of
from ..state.kept_parts import State
from ..world.process_group import World
from ..world.rendezvous import Membership
from .learning_rate import Tuning
from .step_meter import Meter, Position, StepShape, pause


class Reporting:
    """See the module. One per job."""

    def __init__(self, membership: Membership, tuning: Tuning, state: State) -> None:
        self.meter = Meter()
        self._membership = membership
        self._tuning = tuning
        self._state = state
        self._announce = False
        self._left: tuple[float, float, float, float, float] | None = None
        """Of the world that was left: when its last step ended, a step's seconds, ranks, batch, the rate's factor."""
        self._ended = self._resumed = 0.0
        self._shape: StepShape | None = None

    def entered(self, slicing: Slicing) -> None:
        """A world, or a batch, is new: its first step is announced, and measured by itself."""
        self._announce = True
        world = self._membership.world
        generation, rank = (world.generation, world.rank) if world else (-1, 0)
        # Of a full step on rank 0, which has the largest slice.
        first = dataclasses.replace(slicing, rank=0, halve=False)
        parts = [len(part) for part, *_ in positions_of(0, slicing.batch, first)]
        own = sum(len(part) for part, *_ in positions_of(0, slicing.batch, slicing))
        self._shape = StepShape(generation, slicing.batch, max(parts), len(parts), rank, own)
        self.meter.enter_world(self._shape)

    def leaving(self, old: World, batch: int) -> None:
        """A switch begins, after the old world's last step."""
        self.send(self.meter.rest())
        factor = self._tuning.target_rate(self._state.progress).lr
        self._left = (self._ended, self.meter.median_step(), old.size, batch, factor)

    def stayed(self) -> None:
        """The switch did not come about."""
        self._left = None
        self._announce = False
        self.meter.resume()

    def resumed(self) -> None:
        """The new world is ready to compute."""
        self._resumed = time.perf_counter()

    def stepped(self, total: int, count: int | None, first_rate: float, exposed_s: float) -> None:
        """An optimizer step of `total` samples has ended, of which this rank made `count` micro batches; None: as
        many as ever.

        first_rate: the first group's, as the script and its schedulers have set it. exposed_s: see Strategy.
        """
        progress, shape = self._state.progress, self._shape
        if shape is None:
            return
        position = Position(progress.step, progress.samples, progress.epoch, self._tuning.noise(progress).scale)
        typical = total == shape.batch and (count in (None, shape.accumulation) or shape.rank > 0)
        self.meter.step(total, position, typical, exposed_s)
        self._ended = time.perf_counter()
        if self._announce:
            self._say_running(first_rate, shape.batch, total)

    def _say_running(self, first_rate: float, batch: int, total: int) -> None:
        """After a world's first step, of `total` samples."""
        world, progress, client = self._membership.world, self._state.progress, self._membership.client
        self._announce = False
        if world is None:
            return
        pause_s = 0.0
        if self._left is not None:
            since, one_step, old_size, old_batch, factor = self._left
            self._left = None
            shares = (old_batch / old_size, batch / world.size)
            pause_s = pause(self._ended - since, self._resumed - since, one_step, shares)
            lrs = (first_rate * factor, first_rate * self._tuning.target_rate(progress).lr)
            if world.rank == 0:
                batches = (int(old_batch), batch)
                print(self._tuning.describe(batches, world.size, lrs, pause_s, progress), flush=True)
        if client is not None and world.rank == 0:
            fields = {"generation": world.generation, "step": progress.step, "samples": progress.samples - total}
            client.send({"type": "running", **fields, "batch": batch, "pause_s": pause_s})

    def due(self) -> None:
        """On the client's thread: send the report when it is time for one."""
        client = self._membership.client
        if client is not None and client.report_s > 0:
            self.meter.every(client.report_s)
        self.send(self.meter.due())

    def send(self, report: dict[str, Any] | None) -> None:
        """Queue a report under a supervisor: rank 0's is the job's, of the others only what ranks differ in."""
        world, client = self._membership.world, self._membership.client
        if report is None or client is None or world is None:
            return
        if world.rank == 0:
            client.report({"type": "report", **report})
        else:
            client.report({"type": "pace", "generation": report["generation"], "pace": report["pace"]})
