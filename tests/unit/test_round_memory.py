"""What a round keeps for the next one: fitted models, and waiting jobs that did not take their room."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from slurm_elastic.daemon import fitted
from slurm_elastic.daemon.fitted import Fitted, observations
from slurm_elastic.daemon.optimizer.models import fit
from slurm_elastic.daemon.optimizer.shipped import DEFAULT
from slurm_elastic.daemon.passed_over import RETRY_S, WAIT_S, PassedOver
from slurm_elastic.db.rows import ObservationRow


def measured(rng: random.Random, sizes: int) -> tuple[ObservationRow, ...]:
    """Reports of a made-up job at so many sizes."""
    rows = []
    for power in range(sizes):
        gpus, seconds = 2**power, rng.uniform(0.05, 2.0)
        rows.append(ObservationRow(gpus, -(-gpus // 4), 256, 256 // gpus, 1, 9, seconds, 256 / seconds, 100.0))
    return tuple(rows)


def test_models_made_together_are_those_made_one_by_one() -> None:
    """Sixty jobs of one to four sizes: every model predicts what its own fit does, within the fits' own tolerance."""
    rng = random.Random(3)
    jobs = {job_id: measured(rng, 1 + job_id % 4) for job_id in range(60)}
    models = Fitted().of({job_id: (rows, DEFAULT) for job_id, rows in jobs.items()})
    for job_id, rows in jobs.items():
        alone = fit(observations(rows), DEFAULT)
        for gpus, nodes in ((1, 1), (4, 1), (16, 4)):
            both = models[job_id].step_time(gpus, nodes, 512), alone.step_time(gpus, nodes, 512)
            assert math.isclose(*both, rel_tol=1e-3)
        assert models[job_id].sizes_seen == alone.sizes_seen


def test_a_model_is_made_anew_only_when_its_job_was_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same reports, and one within the noise, find the model that is there; a new size or prior does not."""
    made: list[int] = []

    def counted(rows: list[object], priors: object) -> object:
        made.append(len(rows))
        return actual(rows, priors)

    actual = fitted.fit_many
    monkeypatch.setattr(fitted, "fit_many", counted)
    first, more = measured(random.Random(1), 2), measured(random.Random(1), 3)
    again = (replace(first[0], count=10, step_time=first[0].step_time * 1.00001), *first[1:])
    kept, prior = Fitted(), replace(DEFAULT, runs=7)
    models = [kept.of({1: (rows, DEFAULT), 2: ((), DEFAULT)}) for rows in (first, first, again)]
    assert made == [1] and models[0] == models[1] == models[2] and set(models[0]) == {1}
    kept.of({1: (more, DEFAULT), 3: (first, DEFAULT)})
    kept.of({1: (more, prior), 3: (first, DEFAULT)})
    assert made == [1, 1, 1], "job 3 has the model that job 1 had; a prior learned anew counts"
    assert kept.of({}) == {} and not kept._models, "ended jobs leave nothing behind"


def test_a_waiting_job_that_leaves_its_room_idle_is_passed_over_for_a_while() -> None:
    """Not before it had the time to start, and not for ever; one that was started meanwhile begins anew."""
    kept, t = PassedOver(), 1000.0
    kept.note({5, 6}, t)
    kept.note({5}, t + WAIT_S - 1)
    assert kept.now(t + WAIT_S - 1) == set()
    kept.note({5, 6}, t + WAIT_S)
    assert kept.now(t + WAIT_S) == {5}
    assert kept.now(t + WAIT_S + RETRY_S) == set()
