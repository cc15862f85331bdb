"""What the store knows of a running job, and what its reports say: noise scale, training left, a slow node. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from operator import attrgetter

from slurm_elastic.db.rows import InUse, ObservationRow, ResizeRow
from slurm_elastic.protocol.bottleneck import SLOW_RANK
from slurm_elastic.protocol.codes import EventKind, Reason
from slurm_elastic.protocol.messages import Report
from slurm_elastic.protocol.records import record

from ...actions.refusals import Refusal
from ...optimizer.job_view import Model


@record(frozen=True, slots=True)
class JobState:
    """What the store knows of a job. Two that differ only in what comes with each report, and leaves the job as it is,
    are equal: in what was measured and what is made of it, in when, and in how much is left."""

    in_use: InUse | None = None
    resize: ResizeRow | None = None
    """Its open resize."""
    last: ResizeRow | None = None
    """Its last closed one that was more than a change of its batch."""
    last_batch: ResizeRow | None = None
    """Its last closed change of its batch alone."""
    failures: int = 0
    """How many of its resizes have failed one after the other, if the last one did."""
    too_large: frozenset[int] = frozenset()
    """Sizes at which it was out of its GPUs' memory."""
    pinned: int | None = None
    observations: tuple[ObservationRow, ...] = field(default=(), compare=False)
    model: Model | None = field(default=None, compare=False)
    """What they and the job's prior make of its throughput."""
    unfitted: str = ""
    """Why they make no model; empty: they do, or there are none."""
    pause_s: float | None = None
    """Mean measured pause."""
    requeue_s: float | None = None
    """The same of resizes by requeue."""
    batch_pause_s: float | None = None
    """The same of changes of its batch alone."""
    likely_pause_s: float | None = None
    """What other jobs' resizes say of its pause; None: there were none."""
    likely_requeue_s: float | None = None
    """The same of resizes by requeue."""
    reference: tuple[int, int] | None = None
    """(GPUs, batch) that it started with."""
    prior_words: str = ""
    """Where the prior comes from that its model starts from."""
    resized: tuple[float, ...] = ()
    """When it was resized within the last HOUR_S, the earliest first."""
    reported_at: float | None = field(default=None, compare=False)
    """Time of its youngest report."""
    slow: Mapping[str, float] = field(default_factory=dict)
    """Node -> share of every step that all wait for it, as the present world measured it."""
    ending: bool = False
    """It was told that Slurm is about to end it: it would refuse whatever does not make it smaller."""
    gave_in_vain: bool = False
    """What its last resize gave up for a waiting job was not taken."""
    refused: Mapping[EventKind, Refusal] = field(default_factory=dict)
    """What Slurm refuses to do about it now."""
    remaining: Remaining | None = field(default=None, compare=False)
    """None: its script does not say when the training ends."""
    spent_gpu_s: float = field(default=0.0, compare=False)
    """GPU-seconds that it has trained on, where its request has a budget."""

    @property
    def noise_scale(self) -> float | None:
        """What its observations say of the gradient noise scale, as `trusted_noise` has it."""
        return trusted_noise(self.observations)

    @property
    def stalled(self) -> bool:
        """Whether its training does no step."""
        return self.in_use is not None and self.in_use.stalled_since > 0

    @property
    def given_nothing(self) -> Reason | None:
        """Why it gets no more, whoever wants that; None: it may."""
        if self.ending:
            return Reason.KEEP_ENDING
        return Reason.KEEP_STALLED if self.stalled else None

    @property
    def measured(self) -> bool:
        """Whether anything is known of its speed."""
        return bool(self.observations) and not self.unfitted

    @property
    def releases(self) -> tuple[bool, bool]:
        """Whether its Slurm jobs may lose nodes now, and whether one may be ended."""
        return EventKind.SHRINK not in self.refused, EventKind.CANCEL not in self.refused


NOISE_REPORTS = 3
"""Reports at one configuration before its noise scale (their median) is believed."""
NOISE_GRID = 0.1
"""Steps of the logarithm in which noise scales are told apart: rough as they are."""


@record(frozen=True, slots=True)
class Remaining:
    """How much training a job had left, in samples, and how fast it went, when it said so."""

    samples: float
    samples_per_s: float
    at: float

    def after(self, now: float) -> float:
        """Samples left now, if it has gone on at that speed."""
        left = self.samples - self.samples_per_s * (now - self.at) if now > self.at else self.samples
        return left if left > 0.0 else 0.0


def remaining(report: Report | None) -> Remaining | None:
    """As its last report says it."""
    if report is None or report.samples_left < 1:
        return None
    return Remaining(report.samples_left, report.samples_per_s, report.at)


def slow_nodes(report: Report | None, in_use: InUse) -> dict[str, float]:
    """The node that a report names for its slow rank, with what it costs; only of the world that trains now, which has
    the ranks where they were measured. The next slowest is named when that one is gone."""
    if report is None or report.generation != in_use.generation or report.bottleneck != SLOW_RANK:
        return {}
    return {report.bottleneck_node: report.bottleneck_share} if report.bottleneck_node else {}


_last_at = attrgetter("last_at")


def trusted_noise(observations: Sequence[ObservationRow]) -> float | None:
    """The gradient noise scale of the configuration reported last; None before NOISE_REPORTS of them agree on one."""
    measured = [row for row in observations if row.noise_scale > 0 and row.count >= NOISE_REPORTS]
    if not measured:
        return None
    last = (max(measured, key=_last_at) if len(measured) > 1 else measured[0]).noise_scale
    return math.exp(NOISE_GRID * round(math.log(last) / NOISE_GRID))
