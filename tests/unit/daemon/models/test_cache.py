"""What a round keeps for the next one: fitted models, and waiting jobs that did not take their room."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_elastic.daemon.models import cache
from slurm_elastic.daemon.models.cache import ModelCache, observations
from slurm_elastic.daemon.optimizer.models import throughput
from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.prior import DEFAULT
from slurm_elastic.daemon.optimizer.models.throughput import ThroughputModel, fit
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
    made = ModelCache().of({job_id: (rows, DEFAULT) for job_id, rows in jobs.items()})
    for job_id, rows in jobs.items():
        alone = fit(observations(rows), DEFAULT)
        for gpus, nodes in ((1, 1), (4, 1), (16, 4)):
            both = made[job_id].step_time(gpus, nodes, 512), alone.step_time(gpus, nodes, 512)
            assert math.isclose(*both, rel_tol=1e-3)
        assert made[job_id].sizes_seen == alone.sizes_seen


def test_a_model_is_made_anew_only_when_its_job_was_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same reports, and one within the noise, find the model that is there; a new size or prior does not."""
    made: list[int] = []

    def counted(rows: list[object], priors: object) -> object:
        made.append(len(rows))
        return actual(rows, priors)

    actual = cache.fit_each
    monkeypatch.setattr(cache, "fit_each", counted)
    first, more = measured(random.Random(1), 2), measured(random.Random(1), 3)
    again = (replace(first[0], count=10, step_time=first[0].step_time * 1.00001), *first[1:])
    kept, prior = ModelCache(), replace(DEFAULT, runs=7)
    found = [kept.of({1: (rows, DEFAULT), 2: ((), DEFAULT)}) for rows in (first, first, again)]
    assert made == [1] and found[0] == found[1] == found[2] and set(found[0]) == {1}
    kept.of({1: (more, DEFAULT), 3: (first, DEFAULT)})
    kept.of({1: (more, prior), 3: (first, DEFAULT)})
    assert made == [1, 1, 1], "job 3 has the model that job 1 had; a prior learned again counts"
    assert kept.of({}) == kept.of({}) == {} and not len(kept._jobs), "ended jobs leave nothing behind"


NUMBERS = st.sampled_from([0, 1, 2, 8, 10**6, 10**9, 10**15, 10**30])
TIMES = st.one_of(st.floats(), st.sampled_from([5e-324, 1e-300, 1e-6, 1e7, 1e15, 1.7e308]))
ROWS = st.builds(
    ObservationRow, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, count=NUMBERS, step_time=TIMES,
    samples_per_s=st.just(1.0), last_at=st.just(0.0),
)  # fmt: skip


@settings(max_examples=150)
@given(st.lists(ROWS, min_size=1, max_size=5))
def test_no_measurement_of_one_job_keeps_another_from_its_model(stored: list[ObservationRow]) -> None:
    """Whatever the store holds of a job: the other has its model, and this one a model or the reason it has none."""
    kept, good = ModelCache(), measured(random.Random(4), 2)
    made = kept.of({1: (good, DEFAULT), 2: (tuple(stored), DEFAULT)})
    alone = fit(observations(good), DEFAULT)
    assert math.isclose(made[1].step_time(4, 1, 512), alone.step_time(4, 1, 512), rel_tol=1e-3)
    assert (2 in made) != (2 in kept.unfitted) and 1 not in kept.unfitted
    assert all(math.isfinite(model.throughput(64, 8, 512)) for model in made.values())


def test_a_fit_that_fails_is_one_job_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit that raises what nobody foresaw: that job has no model and a reason, and is not tried again every round."""
    tried: list[int] = []

    def failing(rows: Sequence[Sequence[Observation]], priors: object) -> list[ThroughputModel]:
        tried.append(len(rows))
        if any(first.step_time_s > 100 for first, *_ in rows):
            raise OverflowError("too large")
        return actual(rows, priors)  # type: ignore[arg-type]

    actual = throughput.fit_many
    monkeypatch.setattr(throughput, "fit_many", failing)
    kept, good = ModelCache(), measured(random.Random(4), 2)
    jobs = {1: (good, DEFAULT), 2: ((replace(good[0], step_time=500.0),), DEFAULT), 3: (good[:1], DEFAULT)}
    assert set(kept.of(jobs)) == set(kept.of(jobs)) == {1, 3}
    assert kept.unfitted == {2: "OverflowError: too large"} and tried == [3, 1, 1, 1]


@pytest.mark.parametrize(
    ("gpus", "share", "kept"), [(1, 0.3, 0), (4, 0.0, 0), (4, 1.0, 0), (4, -1.0, 0), (4, 0.3, 0.3)]
)
def test_the_share_of_communication_reaches_the_fit(gpus: int, share: float, kept: float) -> None:
    """Where it was measured on more than one GPU and can be true; what is within its noise is the same observation."""
    row = ObservationRow(gpus, 1, 256, 256 // gpus, 1, 9, 0.5, 512.0, 100.0, comm_share=share)
    (seen,) = observations([row])
    assert seen.comm_share == pytest.approx(kept, abs=0.01)
    assert observations([replace(row, comm_share=share * 1.003)]) == (seen,)


def test_a_step_that_waits_now_and_then_counts_in_the_mean() -> None:
    """Eight loader workers are ready together: seven steps of eight wait for nothing, and the median knows no wait."""
    row = ObservationRow(1, 1, 64, 64, 1, 9, 0.1, 64 / 0.2, 100.0, input_wait_share=0.5)
    (seen,) = observations([row])
    assert (seen.step_time_s, seen.input_share) == (pytest.approx(0.2, rel=0.01), pytest.approx(0.5, abs=0.01))
    stalled = replace(row, samples_per_s=64 / 5.0)  # what made the mean as long was no wait for input
    assert observations([stalled])[0].step_time_s == pytest.approx(0.2, rel=0.01)
    even = replace(row, step_time=0.2)
    assert observations([even])[0] == seen
    for known_of_none in (replace(stalled, input_wait_share=0.0), replace(row, input_wait_share=math.nan)):
        (before,) = observations([known_of_none])
        assert (before.step_time_s, before.input_share) == (pytest.approx(0.1, rel=0.01), 0.0)


def test_a_wait_for_input_makes_a_model_anew() -> None:
    """What a job is known to wait, and how long its steps are in the mean then, is looked at in every round."""
    kept, row = ModelCache(), ObservationRow(1, 1, 64, 64, 1, 9, 0.1, 64 / 0.1, 100.0)
    rows = [row, replace(row, input_wait_share=0.5, samples_per_s=64 / 0.2)]
    rows.append(replace(rows[1], samples_per_s=64 / 0.15))
    steps = [kept.of({1: ((one,), DEFAULT)})[1].step_time(1, 1, 64) for one in rows]
    assert steps == pytest.approx([0.1, 0.2, 0.15], rel=0.03)
