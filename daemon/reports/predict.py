"""How right predictions have been: `selastic predict --errors`."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from .common import Viewer, may_see

if TYPE_CHECKING:
    from slurm_elastic.db.rows import PredictionRow
    from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.predict import QUANTILE, PredictionErrors, ProgramErrors

LAST = 5000
"""Predictions that are looked back at."""


def prediction_errors(store: Store, viewer: Viewer, now: float) -> PredictionErrors:
    """Of the viewer's own programs; of all for an admin."""
    rows = store.outcomes.predictions(LAST)
    jobs = {job_id: store.jobs.get(job_id) for job_id in {row.job_id for row in rows}}
    seen = [row for row in rows if (job := jobs[row.job_id]) is not None and may_see(viewer, job)]
    groups: dict[tuple[str, str], list[PredictionRow]] = {}
    for row in seen:
        groups.setdefault((row.program, row.gpu_type), []).append(row)
    return PredictionErrors(
        now=now,
        programs=tuple(_errors(*key, group) for key, group in sorted(groups.items())),
        predictions=len(seen),
        error=statistics.median(map(_error, seen)) if seen else None,
        covered=statistics.mean(map(_inside, seen)) if seen else None,
    )


def _errors(program: str, gpu_type: str, rows: list[PredictionRow]) -> ProgramErrors:
    last = max(rows, key=lambda row: row.at)
    return ProgramErrors(
        program=program,
        gpu_type=gpu_type,
        predictions=len(rows),
        error=statistics.median(map(_error, rows)),
        bias=statistics.median(row.predicted / row.observed - 1.0 for row in rows),
        covered=statistics.mean(map(_inside, rows)),
        at=last.at,
        gpus=last.gpus,
        predicted=last.predicted,
        observed=last.observed,
    )


def _error(row: PredictionRow) -> float:
    return abs(row.predicted / row.observed - 1.0)


def _inside(row: PredictionRow) -> float:
    return float(abs(math.log(row.observed / row.predicted)) <= QUANTILE * row.doubt)
