"""What the reports of a running job say of it: the noise scale, the training left, and a slow node. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from slurm_elastic.db.rows import InUse, ObservationRow
from slurm_elastic.protocol.bottleneck import SLOW_RANK
from slurm_elastic.protocol.messages import Report
from slurm_elastic.protocol.records import record

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
