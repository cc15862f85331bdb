"""What a worker says of its training: reports to the supervisor, and a line in the job's log for each resize.

The training thread only notes numbers; the client's thread asks whether a report is due.
"""

import dataclasses
import time
from typing import Any

from ..data.sampling import Slicing, positions_of
from ..state.kept_parts import State
from ..state.progress import TrainingProgress
from ..world.process_group import World
from ..world.rendezvous import Membership
from .learning_rate import Tuning
from .step_meter import Meter, Position, StepShape, pause

BEAT_S = 1.0
"""Least time between two words of how far the training is."""


@dataclasses.dataclass
class Length:
    """How long the training is, as far as its script has said so; 0: it has not."""

    epochs: int = 0
    steps: int = 0
    """Iterations of a loop of the script's own."""

    def left(self, progress: TrainingProgress) -> int:
        """Samples until the end, with one pass in each epoch, iterations as they have been so far; 0: not known."""
        if self.steps:
            return (self.steps - progress.step) * progress.samples // max(1, progress.step)
        return max(0, (self.epochs - progress.epoch) * progress.pass_samples - progress.cursor) if self.epochs else 0


class Reporting:
    """See the module. One per job."""

    def __init__(self, membership: Membership, tuning: Tuning, state: State) -> None:
        self.meter = Meter()
        self.length = Length()
        self._membership = membership
        self._tuning = tuning
        self._state = state
        self._announce = False
        self._left: tuple[float, float, float, float, float] | None = None
        """Of the world that was left: when its last step ended, a step's seconds, ranks, batch, the rate's factor."""
        self._ended = self._resumed = 0.0
        self._shape: StepShape | None = None
        self._beat: tuple[int, int, bool] | None = None
        """What the supervisor was told last: the generation, the step, whether the script is away."""
        self._beat_at = 0.0
        self._away = False

    def entered(self, slicing: Slicing) -> None:
        """A world, or a batch, is new: its first step is announced, and measured by itself."""
        self._announce = True
        self.shared_out(slicing)

    def shared_out(self, slicing: Slicing) -> None:
        """Steps are shared out otherwise."""
        world = self._membership.world
        generation, rank = (world.generation, world.rank) if world else (-1, 0)
        # Of a full step, where most is computed.
        largest = dataclasses.replace(slicing, shares=slicing.shares.largest(slicing.batch), halve=False)
        parts = [len(part) for part, *_ in positions_of(0, slicing.batch, largest)]
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
        noise_scale = self._tuning.noise(progress).scale
        position = Position(progress.step, progress.samples, progress.epoch, noise_scale, self.length.left(progress))
        typical = total == shape.batch and (count in (None, shape.accumulation) or shape.rank > 0)
        waited_s = self.meter.input_wait
        self.meter.step(total, position, typical, exposed_s)
        self._ended = time.perf_counter()
        if self._announce:
            self._say_running(first_rate, shape.batch, total, waited_s)

    def _say_running(self, first_rate: float, batch: int, total: int, waited_s: float) -> None:
        """After a world's first step, of `total` samples, which it waited for so long."""
        world, progress, client = self._membership.world, self._state.progress, self._membership.client
        self._announce = False
        if world is None:
            return
        pause_s = 0.0
        if self._left is not None:
            since, one_step, old_size, old_batch, factor = self._left
            self._left = None
            shares = (old_batch / old_size, batch / world.size)
            if old_size == world.size:  # where only the batch becomes smaller a step may take as long as before
                shares = (shares[0], max(shares))
            pause_s = pause(self._ended - since, self._resumed - since + waited_s, one_step, shares)
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
        self.beat()

    def away(self, away: bool) -> None:
        """The script is, or no longer is, in a function that may take its time (job.once)."""
        self._away = away
        self.beat()

    def beat(self) -> None:
        """Rank 0: say how far the training is, so that the supervisor notices when it gets no further."""
        world, client, now = self._membership.world, self._membership.client, time.monotonic()
        if client is None or world is None or world.rank != 0:
            return
        beat = world.generation, self._state.progress.step, self._away
        last, self._beat = self._beat, beat
        if last is None or beat[::2] != last[::2] or (beat != last and now - self._beat_at >= BEAT_S):
            self._beat_at = now
            fields = {"generation": beat[0], "step": beat[1], "away": beat[2], "usual_s": self.meter.median_step()}
            client.send({"type": "beat", **fields})
        else:
            self._beat = last

    def send(self, report: dict[str, Any] | None) -> None:
        """Queue a report under a supervisor: rank 0's is the job's, of the others only what ranks differ in."""
        world, client = self._membership.world, self._membership.client
        if report is None or client is None or world is None:
            return
        if world.rank == 0:
            client.report({"type": "report", **report})
        else:
            client.report({"type": "pace", "generation": report["generation"], "pace": report["pace"]})
