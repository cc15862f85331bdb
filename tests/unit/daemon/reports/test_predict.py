"""How good predictions were: medians and coverage by program, of the viewer's own jobs."""

from __future__ import annotations

import dataclasses

import pytest
from store_records import JOB

from slurm_elastic.daemon.reports import prediction_errors
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.db.rows import PredictionRow
from slurm_elastic.db.store import Store


def test_errors_by_program(store: Store) -> None:
    """Median error, bias, and whether the intervals held what was observed; others' programs are for admins."""
    for job_id, uid in ((1, 1000), (2, 1001)):
        store.jobs.upsert(dataclasses.replace(JOB, job_id=job_id, uid=uid))
    predicted = [(1, 110.0, 0.2), (1, 95.0, 0.2), (1, 150.0, 0.1), (2, 200.0, 0.1)]
    store.outcomes.save_predictions(
        PredictionRow(job, float(at), f"u{job}:train.py", "a100", 8, 2, 256, value, doubt, 100.0)
        for at, (job, value, doubt) in enumerate(predicted)
    )
    own = prediction_errors(store, Viewer(1000), 10.0)
    [row] = own.programs
    assert (row.program, row.predictions, row.at, row.predicted) == ("u1:train.py", 3, 2.0, 150.0)
    assert (row.error, row.bias, row.covered) == (pytest.approx(0.1), pytest.approx(0.1), pytest.approx(2 / 3))
    everybody = prediction_errors(store, Viewer(0, admin=True), 10.0)
    assert [found.program for found in everybody.programs] == ["u1:train.py", "u2:train.py"]
    assert (everybody.predictions, everybody.covered) == (4, 0.5)
    assert prediction_errors(store, Viewer(1002), 10.0).error is None


def test_they_go_with_their_jobs(store: Store) -> None:
    """What is older than the history is pruned with the jobs."""
    store.jobs.upsert(JOB)
    store.outcomes.save_predictions([PredictionRow(JOB.job_id, 1.0, "u:a", "", 8, 2, 256, 1.0, 0.1, 1.0)])
    store.jobs.end(JOB.job_id, "COMPLETED", 5.0)
    assert store.retention.prune(6.0) == 1
    assert store.outcomes.predictions(10) == []
