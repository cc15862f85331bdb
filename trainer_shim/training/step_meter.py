"""What a world does, measured beside the training thread's work: step times, waiting, memory.

The training thread appends a few numbers per step; medians are taken when a report is due, on the client's thread. The
first steps of a world are left out: caches are cold and the allocator grows. A host may be many steps ahead of its GPU,
so steps end there by events in the compute stream, and count when those have passed; nothing waits for them.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from slurm_elastic.protocol.bottleneck import Pace

WARM_UP_STEPS = 2
MAX_STEPS = 4096
REPORT_EVERY_S = 5.0
KNOWN_AFTER, KNOWN_TIMES, KNOWN_EVERY_S = 12, 6, 30.0
"""After so many reports of a world and batch, further ones teach little: the time between two is so many times as long
from then on, and no longer than KNOWN_EVERY_S for that."""
FIRST_AFTER_S = 1.0
"""When a new world's first report is due, in seconds: selasticd waits for what a resize has brought."""
FEWEST_STEPS = 3
"""A median is taken over at least as many steps."""


class StepTime(NamedTuple):
    """One optimizer step on this rank; times in seconds."""

    seconds: float
    input_wait: float
    """Nothing was computed, for the samples were not there."""
    samples: int
    exposed: float
    """Gradients travelled, and this rank computed nothing."""

    @property
    def busy(self) -> float:
        return max(0.0, self.seconds - self.input_wait - self.exposed)


@dataclass(frozen=True, slots=True)
class StepShape:
    """What stays the same over the steps of one world with one batch."""

    generation: int
    batch: int
    micro_batch: int
    accumulation: int
    rank: int = 0
    rank_samples: int = 0
    """Of a whole step, this rank's."""


class Position(NamedTuple):
    """How far the training is."""

    step: int
    samples: int
    epoch: int
    noise_scale: float = 0.0
    left: int = 0
    """Samples until the training ends; 0: not known."""


class Moment(NamedTuple):
    """On the host, and where a GPU is used in its current stream too."""

    at: float
    event: Any

    @property
    def passed(self) -> bool:
        return self.event is None or bool(self.event.query())

    def until(self, later: Moment) -> float:
        """Seconds; both have passed."""
        if self.event is None or later.event is None:
            return later.at - self.at
        return float(self.event.elapsed_time(later.event)) / 1000


class Meter:
    """Collects steps and makes a report of them when one is due."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, every_s: float = REPORT_EVERY_S) -> None:
        self._clock = clock
        self._every_s = every_s
        self._reporting = threading.Lock()
        self._steps: deque[StepTime] = deque(maxlen=MAX_STEPS)
        self._shape: StepShape | None = None
        self._position: Position | None = None
        self._skip = WARM_UP_STEPS
        self._begun = Moment(0.0, None)
        self._passing: deque[tuple[Moment, Moment, bool, int, float]] = deque()
        """Steps that the host has done, the device perhaps not: begin, end, whether it counts, samples, exposed."""
        self._input_wait = 0.0
        self._waits = InputWait(clock)
        self._reports = 0
        """Of this world and batch."""
        self._due = clock() + every_s
        self._recent: deque[StepTime] = deque(maxlen=50)

    def enter_world(self, shape: StepShape) -> None:
        """Another world, or another batch: what was measured before does not describe it."""
        with self._reporting:
            self._steps, self._shape = deque(maxlen=MAX_STEPS), shape
            self._reports = 0
        self._recent.clear()
        self._passing.clear()
        self._skip = WARM_UP_STEPS
        self._begun = self._now()
        self._due = self._begun.at + min(self._every_s, FIRST_AFTER_S)

    def every(self, seconds: float) -> None:
        """The time between two reports from now on, in seconds."""
        if seconds != self._every_s:
            self._every_s = seconds
            self._due = min(self._due, self._clock() + seconds)

    @property
    def _between_s(self) -> float:
        if self._reports < KNOWN_AFTER:
            return self._every_s
        return max(self._every_s, min(KNOWN_TIMES * self._every_s, KNOWN_EVERY_S))

    def asks(self, cuda: bool = False) -> None:
        """The loader is asked for samples, to compute on a GPU or not."""
        self._waits.begin(cuda)

    def got(self) -> None:
        """It has given them."""
        self._input_wait += self._waits.end()

    @property
    def input_wait(self) -> float:
        """Seconds that the thread has waited for the loader in the step under way so far."""
        return self._input_wait

    def resume(self) -> None:
        """A pass over the data begins: what happened since the last step (an evaluation) is not a step's time."""
        self._begun = self._now()
        self._input_wait = 0.0
        self._waits.seconds()

    def step(self, samples: int, position: Position, typical: bool = True, exposed: float = 0.0) -> None:
        """An optimizer step has ended. One that is not `typical` (the short last one of a pass) is not measured.

        samples: of the whole step, over all ranks. exposed: seconds, see StepTime.
        """
        ended, counts = self._now(), typical and self._skip == 0
        self._skip = max(0, self._skip - 1)
        self._passing.append((self._begun, ended, counts, samples, exposed))
        self._begun, self._input_wait, self._position = ended, 0.0, position
        while self._passing and self._passing[0][1].passed:
            begun, ended, counts, samples, exposed = self._passing.popleft()
            waited = self._waits.seconds()
            if counts:
                self._recent.append(StepTime(begun.until(ended), waited, samples, exposed))
                self._steps.append(self._recent[-1])

    def _now(self) -> Moment:
        event = None
        if torch.cuda.is_initialized():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return Moment(self._clock(), event)

    def median_step(self) -> float:
        """Median of the last steps of this world, in seconds; 0 when none was measured."""
        recent = list(self._recent)  # the client's thread asks, too
        return statistics.median(step.seconds for step in recent) if recent else 0.0

    def busy(self) -> tuple[int, float]:
        """This rank's samples in a whole step, and the median of the seconds in which it computed on them lately; 0:
        not known."""
        recent = list(self._recent)
        if self._shape is None or len(recent) < FEWEST_STEPS:
            return 0, 0.0
        return self._shape.rank_samples, statistics.median(step.busy for step in recent)

    def due(self) -> dict[str, Any] | None:
        """The report for the time since the last one, when it is time for one and steps were measured."""
        return self.rest() if self._clock() >= self._due else None

    def rest(self) -> dict[str, Any] | None:
        """The report for the time since the last one, due or not: this world, or the training, ends."""
        with self._reporting:  # the client's thread and the training thread may both think that it is time
            steps, shape, position = self._steps, self._shape, self._position
            if len(steps) < FEWEST_STEPS or shape is None or position is None:
                return None
            self._reports += 1
            self._due = self._clock() + self._between_s
            self._steps = deque(maxlen=MAX_STEPS)
        return report(list(steps), shape, position)


def report(steps: list[StepTime], shape: StepShape, position: Position) -> dict[str, Any]:
    """A messages.Report, without the fields that only the supervisor knows, and this rank's pace."""
    times = sorted(step.seconds for step in steps)
    total, own = sum(times), pace(steps, shape)
    return {
        "generation": shape.generation,
        "at": time.time(),
        "batch": shape.batch,
        "micro_batch": shape.micro_batch,
        "accumulation": shape.accumulation,
        "steps": len(steps),
        "step_time_median_s": own.step_s,
        "step_time_p90_s": times[min(len(times) - 1, int(0.9 * len(times)))],
        "samples_per_s": sum(step.samples for step in steps) / total if total else 0.0,
        "step": position.step,
        "samples": position.samples,
        "epoch": position.epoch,
        "noise_scale": position.noise_scale,
        "samples_left": position.left,
        "input_wait_share": own.input_share,
        "memory_peak_mb": memory_peak_mb(),
        "pace": asdict(own),
    }


def pace(steps: list[StepTime], shape: StepShape) -> Pace:
    """What the supervisor compares between ranks."""
    total = sum(step.seconds for step in steps)
    return Pace(
        rank=shape.rank,
        step_s=statistics.median(step.seconds for step in steps),
        busy_s=statistics.median(step.busy for step in steps),
        samples=shape.rank_samples,
        input_share=min(1.0, sum(step.input_wait for step in steps) / total) if total else 0.0,
        comm_share=min(1.0, sum(step.exposed for step in steps) / total) if total else 0.0,
    )


def memory_peak_mb() -> float:
    """Peak of the device memory held by torch, in MB; 0 without a GPU."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return 0.0
    return torch.cuda.max_memory_allocated() / 1e6


def pause(total_s: float, gap_s: float, step_s: float, shares: tuple[float, float]) -> float:
    """What a resize cost, in seconds: from the end of the last old step to the end of the first new one, less one step.

    gap_s: until the new world was ready to compute, and its first samples were there; never less than that is lost.
    step_s: an old step; one at the new size is taken to differ as the samples per rank do. shares: samples per rank and
    step, old and new.
    """
    old, new = shares
    return max(gap_s, total_s - step_s * new / old)


LEAST_S = 3e-5
"""The thread waits that long for samples that are there: nothing stood empty."""


class InputWait:
    """How long a step waits for its samples while its device has nothing to compute: `begin` before samples are asked
    for, `end` when they are there, `seconds` with each step.

    On a GPU the training thread runs ahead, and what it waits for samples while the step before is still computed costs
    nothing: two events in the current stream tell how long that stood empty, read when they have passed."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._asked = 0.0
        self._begun: Any = None
        self._passing: deque[tuple[Any, Any]] = deque()
        self._seconds = 0.0

    def begin(self, cuda: bool) -> None:
        """Samples are asked for."""
        self._begun = _mark() if cuda else None
        self._asked = self._clock()

    def end(self) -> float:
        """They are there; how long the thread waited for them, in s."""
        waited = self._clock() - self._asked
        if self._begun is None:
            self._seconds += waited
        elif waited >= LEAST_S:
            self._passing.append((self._begun, _mark()))
        self._begun = None
        return waited

    def seconds(self) -> float:
        """How long the device had nothing to compute meanwhile, in s: what has become known since this was asked."""
        while self._passing and self._passing[0][1].query():
            begun, ended = self._passing.popleft()
            self._seconds += begun.elapsed_time(ended) / 1000
        found, self._seconds = self._seconds, 0.0
        return found


def _mark() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
