"""Each running job's throughput model, made from its reports and kept until they say something new.

Promise: the model depends on the job's observations and its prior alone; all that have to be made again in a round are
fitted together, which takes a fraction of a millisecond each. A job of which no model can be made keeps nobody else
from theirs. Limit: kept in memory; after a restart all are made again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from slurm_elastic.db.rows import ObservationRow

from ..optimizer.errors import PlanInputError
from ..optimizer.models.input_wait import LEAST
from ..optimizer.models.observation import MOST, MOST_COMM, STEP_S, Observation
from ..optimizer.models.prior import Prior
from ..optimizer.models.throughput import ThroughputModel, fit_each

GRID = 0.004
"""Steps of the logarithm in which step times are told apart."""
COMPUTE_GRID = 0.02
"""The same of the share of a step that is not communication."""
TOGETHER = 500
"""Models fitted at once: more cost as much each, and memory."""
_configuration = attrgetter("gpus", "nodes", "batch", "micro_batch", "accumulation", "comm_share", "input_wait_share")
UNREAL = f"none has a step time from {STEP_S[0]:g} to {STEP_S[1]:g} s"
Rows = Sequence[ObservationRow]
_Key = tuple[tuple[Observation, ...], Prior]


class _Known(NamedTuple):
    """A job's model, and what that was made from: as it was stored and as it was fitted."""

    rows: Rows
    each: tuple[Observation | None, ...]
    """What a fit takes of each row; None: nothing."""
    key: _Key
    model: ThroughputModel | PlanInputError | None = None
    """None: not fitted yet, or nothing can have been measured."""


class ModelCache:
    """The models of the jobs asked for last. Not thread-safe."""

    def __init__(self) -> None:
        self._jobs: dict[int, _Known] = {}
        self._models: dict[_Key, ThroughputModel | PlanInputError] = {}
        self.unfitted: dict[int, str] = {}
        """Of the jobs asked for last those that were measured and have no model: why, in words that follow a colon."""

    def of(self, jobs: Mapping[int, tuple[Rows, Prior]]) -> dict[int, ThroughputModel]:
        """Models by job id, of those that were measured; jobs not asked for are forgotten."""
        self._jobs = {job_id: self._known(job_id, *has) for job_id, has in jobs.items()}
        lacking = {job_id: known for job_id, known in self._jobs.items() if known.model is None and known.key[0]}
        new = list({known.key: None for known in lacking.values() if known.key not in self._models})
        for first in range(0, len(new), TOGETHER):
            some = new[first : first + TOGETHER]
            made = fit_each([seen for seen, _ in some], [prior for _, prior in some])
            self._models.update(zip(some, made, strict=True))
        for job_id, known in lacking.items():
            self._jobs[job_id] = known._replace(model=self._models[known.key])
        if len(self._models) > 2 * len(jobs):
            self._models = {known.key: known.model for known in self._jobs.values() if known.model is not None}
        self.unfitted = {}
        found: dict[int, ThroughputModel] = {}
        for job_id, known in self._jobs.items():
            if isinstance(known.model, ThroughputModel):
                found[job_id] = known.model
            elif known.rows:
                self.unfitted[job_id] = UNREAL if known.model is None else str(known.model)
        return found

    def _known(self, job_id: int, rows: Rows, prior: Prior) -> _Known:
        known = self._jobs.get(job_id)
        if known is None or len(known.rows) != len(rows):
            each = tuple([_taken(row) for row in rows])
        else:  # of a job that has reported mostly one row has changed
            alike = zip(rows, known.rows, known.each, strict=True)
            each = tuple([taken if _alike(row, before) else _taken(row) for row, before, taken in alike])
        if known is not None and known.key[1] is prior and each == known.each:
            return _Known(rows, known.each, known.key, known.model)
        return _Known(rows, each, (tuple([one for one in each if one is not None]), prior))


def observations(rows: Rows) -> tuple[Observation, ...]:
    """What a fit takes of these rows: those that can have been measured."""
    return tuple(observation(row) for row in rows if believed(row))


def _taken(row: ObservationRow) -> Observation | None:
    return observation(row) if believed(row) else None


def _alike(row: ObservationRow, before: ObservationRow) -> bool:
    """Whether a fit takes the same of both, at first sight."""
    if row is before:
        return True
    same = row.step_time == before.step_time and row.count.bit_length() == before.count.bit_length()
    same = same and (not row.input_wait_share or row.samples_per_s == before.samples_per_s)
    return same and bool(_configuration(row) == _configuration(before))


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
