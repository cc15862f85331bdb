"""Each running job's throughput model, made from its reports and kept until they say something new.

Promise: the model depends on the job's observations and its prior alone; all that have to be made again in a round are
fitted together, which takes a fraction of a millisecond each. A job of which no model can be made keeps nobody else
from theirs. Limit: kept in memory; after a restart all are made again.
"""

import math
from collections.abc import Mapping, Sequence

from slurm_elastic.db.rows import ObservationRow

from ..derived.table import Derived
from ..optimizer.errors import PlanInputError
from ..optimizer.models.observation import LEAST, MOST, MOST_COMM, STEP_S, Observation
from ..optimizer.models.prior import Prior
from ..optimizer.models.throughput import ThroughputModel, fit_each

GRID = 0.004
"""Steps of the logarithm in which step times are told apart."""
COMPUTE_GRID = 0.02
"""The same of the share of a step that is not communication."""
TOGETHER = 500
"""Models fitted at once: more cost as much each, and memory."""
KEPT = 1 << 10
"""Models that are kept though no job has been measured just so lately."""
UNREAL = f"none has a step time from {STEP_S[0]:g} to {STEP_S[1]:g} s"
Rows = Sequence[ObservationRow]
_Seen = tuple[tuple[Observation, ...], Prior]
_Made = ThroughputModel | PlanInputError | None
"""None: nothing can have been measured."""


class ModelCache:
    """The models of the jobs asked for last. A job's depends on its reports as far as a fit takes them, and on its
    prior; jobs with the same of both share one. Not thread-safe."""

    def __init__(self) -> None:
        self._fitted = Derived[_Seen, _Seen, _Made](_fitted, room=KEPT)
        self._jobs = Derived[int, tuple[Rows, Prior], _Made](
            self._models, lambda asked: (tuple([_read(row) for row in asked[0]]), asked[1])
        )
        self.unfitted: dict[int, str] = {}
        """Of the jobs asked for last those that were measured and have no model: why, in words that follow a colon."""

    def of(self, jobs: Mapping[int, tuple[Rows, Prior]]) -> dict[int, ThroughputModel]:
        """Models by job id, of those that were measured; jobs not asked for are forgotten."""
        for table in (self._fitted, self._jobs):
            table.turn()
        made = self._jobs.of(jobs)
        self.unfitted = {
            job_id: UNREAL if one is None else str(one)
            for job_id, one in made.items()
            if not isinstance(one, ThroughputModel) and jobs[job_id][0]
        }
        return {job_id: one for job_id, one in made.items() if isinstance(one, ThroughputModel)}

    def _models(self, asked: Sequence[tuple[Rows, Prior]]) -> list[_Made]:
        return self._fitted.each([(observations(rows), prior) for rows, prior in asked])


def _fitted(asked: Sequence[_Seen]) -> list[_Made]:
    """The model of each, or why there is none."""
    measured = [one for one in asked if one[0]]
    made = list[_Made]()
    for first in range(0, len(measured), TOGETHER):
        some = measured[first : first + TOGETHER]
        made += fit_each([seen for seen, _ in some], [prior for _, prior in some])
    each = iter(made)
    return [next(each) if seen else None for seen, _ in asked]


def _read(row: ObservationRow) -> tuple[object, ...]:
    """What a fit takes of a row depends on."""
    waits = row.input_wait_share
    return (
        row.gpus, row.nodes, row.batch, row.micro_batch, row.accumulation, row.comm_share, waits, row.step_time,
        row.count.bit_length(), row.samples_per_s if waits else 0.0,
    )  # fmt: skip


def observations(rows: Rows) -> tuple[Observation, ...]:
    """What a fit takes of these rows: those that can have been measured."""
    return tuple([observation(row) for row in rows if believed(row)])


def believed(row: ObservationRow) -> bool:
    """Whether it can have been measured; the API refuses other reports, but a store may hold older ones."""
    most = max(row.gpus, row.nodes, row.batch, row.micro_batch, row.accumulation)
    return STEP_S[0] <= row.step_time <= STEP_S[1] and most <= MOST


def observation(row: ObservationRow) -> Observation:
    """A stored configuration as the model's fit takes it, on a grid finer than its noise: a curve is the same from one
    round to the next until a report says something new, and what was fitted and planned for it is found again."""
    return Observation(
        gpus=max(1, row.gpus),
        nodes=max(1, row.nodes),
        batch=max(1, row.batch),
        micro_batch=max(1, row.micro_batch),
        accumulation=max(1, row.accumulation),
        step_time_s=min(STEP_S[1], max(STEP_S[0], math.exp(GRID * round(math.log(step_s(row)) / GRID)))),
        weight=float(1 << max(0, row.count.bit_length() - 1)),
        comm_share=_on_grid(row.comm_share) if row.gpus > 1 else 0.0,
        input_share=_on_grid(row.input_wait_share),
    )


def step_s(row: ObservationRow) -> float:
    """What a step takes, in s: the median, or the mean of one that waits for its input.

    Several loader workers are ready at about the same time: most steps wait for nothing, and some for long.
    """
    if not LEAST < row.input_wait_share <= MOST_COMM or not 0 < row.samples_per_s < math.inf:
        return row.step_time
    mean, most = row.batch / row.samples_per_s, row.step_time / (1.0 - row.input_wait_share)
    return max(row.step_time, min(mean, most))


def _on_grid(share: float) -> float:
    """A share of a step; 0 where it was not measured."""
    if not 0 < share <= MOST_COMM:
        return 0.0
    return min(MOST_COMM, 1.0 - math.exp(COMPUTE_GRID * round(math.log(1.0 - share) / COMPUTE_GRID)))
