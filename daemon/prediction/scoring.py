"""What resizes to sizes never measured were expected to bring, held against what was measured there afterwards. Pure.

Promise: one entry a resize, made when ENOUGH reports have come from the size that was predicted. Limit: kept in memory
until then; after a restart of the daemon what was under way is not scored.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slurm_elastic.db.rows import DecisionRow, InUse, ObservationRow, PredictionRow

from ..models import cache

ENOUGH = 3
"""Reports until a size counts as measured."""
FORGET_S = 1800.0
"""After which a resize that did not come about is forgotten."""
Program = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Expected:
    """What the model said of the size that a resize is to reach."""

    at: float
    gpus: int
    batch: int
    predicted: float
    doubt: float


class Expectations:
    """Those of resizes under way, by job id. Not thread-safe."""

    def __init__(self) -> None:
        self._open: dict[int, Expected] = {}

    def expect(self, rows: Iterable[DecisionRow], begun: Collection[int], now: float) -> None:
        """Remember what these decisions say, of jobs whose resize has begun."""
        for row in rows:
            if row.job_id in begun and (found := expected(row, now)) is not None:
                self._open[row.job_id] = found

    def settle(
        self,
        in_use: Mapping[int, InUse],
        seen: Callable[[int], Sequence[ObservationRow]],
        program_of: Callable[[int], Program | None],
        now: float,
    ) -> list[PredictionRow]:
        """What came of those that have been measured; they are forgotten, and so are those too old."""
        found = []
        for job_id, said in list(self._open.items()):
            use = in_use.get(job_id)
            there = use is not None and (use.gpus, use.batch) == (said.gpus, said.batch)
            row = measured(said, seen(job_id)) if there else None
            if row is not None:
                program = program_of(job_id) or ("", "")
                observed = row.batch / cache.step_s(row)
                at = row.gpus, row.nodes, row.batch
                found.append(PredictionRow(job_id, now, *program, *at, said.predicted, said.doubt, observed))
            if row is not None or (not there and now - said.at > FORGET_S):
                del self._open[job_id]
        return found


def expected(row: DecisionRow, now: float) -> Expected | None:
    """What a decision says of its target; None where that is not the model's, or says nothing."""
    evidence = row.evidence
    predicted, doubt = evidence.get("samples_per_s_to"), evidence.get("doubt")
    if not evidence.get("modelled") or not isinstance(predicted, float) or not isinstance(doubt, float):
        return None
    return Expected(now, row.gpus_to, row.batch_to, predicted, doubt) if predicted > 0 else None


def measured(said: Expected, rows: Sequence[ObservationRow]) -> ObservationRow | None:
    """What was measured at that size and batch, by enough reports."""
    there = (row for row in rows if (row.gpus, row.batch) == (said.gpus, said.batch) and cache.believed(row))
    return max((row for row in there if row.count >= ENOUGH), key=lambda row: row.count, default=None)
