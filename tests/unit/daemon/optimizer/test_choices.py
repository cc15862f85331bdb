"""Choices: all jobs at once in arrays, and each as by plain rules."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from reference_choices import choices_reference

from slurm_elastic.daemon.optimizer import choices as choices_module
from slurm_elastic.daemon.optimizer.choices import choices
from slurm_elastic.daemon.optimizer.errors import PlanInputError
from slurm_elastic.daemon.optimizer.job_view import JobView
from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.throughput import ThroughputModel, fit
from slurm_elastic.daemon.optimizer.policies import POLICIES


class Declared:
    """A model of another kind than the fitted ones: k ** power, a batch worth more the larger it is."""

    jitter, sizes_seen = 0.004, range(1, 7)

    def __init__(self, power: float) -> None:
        self.power = power

    def throughput(self, gpus: int, nodes: int, batch: int) -> float:
        return 50.0 * gpus**self.power / nodes**0.1 * batch / (batch + 40)

    def throughputs(self, points: list[tuple[int, int, int]]) -> list[float]:
        return [self.throughput(*point) for point in points]

    def uncertainties(self, sizes: list[tuple[int, int]]) -> list[float]:
        return [0.05 * gpus / nodes for gpus, nodes in sizes]


def fitted(rng: random.Random) -> ThroughputModel:
    rows = []
    for _ in range(rng.randint(1, 4)):
        gpus, micro, steps = rng.choice([1, 2, 4, 8, 16]), rng.choice([8, 32, 64]), rng.choice([1, 1, 1, 4])
        rows.append(Observation(gpus, -(-gpus // 4), gpus * micro * steps, micro, steps, rng.uniform(0.1, 2.0), 5.0))
    return fit(rows)


def any_job(rng: random.Random, number: int, models: list[object]) -> JobView:
    """Waiting or running, frozen, forced, unmeasured, with batches that not every size shares out, ..."""
    current = rng.choice([0, 0, 1, 2, 4, 8])
    some = {*rng.sample(range(2, 25), rng.randint(1, 12)), 1 << rng.randint(0, 5)}
    some |= {current} if rng.random() < 0.9 else set()
    sizes = sorted(some if current else some | {0})
    low, step = rng.choice([16, 100, 256]), rng.choice([1, 1, 3])
    ladder = tuple(low * 2**i for i in range(rng.randint(1, 6)))

    def batches(gpus: int) -> tuple[int, ...]:
        return tuple(-(-b // gpus) * gpus for b in ladder) if gpus % step == 0 or gpus == sizes[-1] else ()

    return JobView(
        label=str(number),
        model=rng.choice(models),  # type: ignore[arg-type]
        choices=tuple((k, -(-k // 4)) for k in sizes),
        batches=batches,
        current_gpus=current,
        current_batch=rng.choice([0, low, low * 2, 96]) if current else 0,
        reference_gpus=rng.choice([1, 2, 4, sizes[-1] or 1]),
        reference_batch=rng.choice([1, low, 512]),
        weight=rng.choice([0.5, 1.0, 3.0]),
        pause_s=rng.choice([0.0, 2.0, 60.0]),
        frozen=rng.random() < 0.2 and current > 0,
        sigma=rng.choice([None, 0.0, 0.01]),
        noise_scale=rng.choice([None, 0.0, 300.0]),
        quality=rng.random() < 0.5,
        least_per_gpu=rng.choice([0.0, 0.0, 0.3]),
        restart_sizes=frozenset(rng.sample(sizes, min(len(sizes), rng.randint(0, 2)))) if current else frozenset(),
        restart_pause_s=30.0,
    )


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("together", [1 << 16, 40])
def test_each_job_gets_the_choices_of_the_plain_rules(
    policy: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes, batches, speedups and terms of any mixture of jobs are those that each has by itself."""
    monkeypatch.setattr(choices_module, "TOGETHER", together)
    rng = random.Random(f"{policy} {together}")
    models = [None, Declared(0.8), Declared(0.3), *(fitted(rng) for _ in range(8))]
    for _ in range(12):
        jobs = [any_job(rng, i, models) for i in range(rng.choice([1, 5, 30]))]
        jobs = [job for job in jobs if job.current_batch or not (job.frozen or policy == "static")]
        for job, own in zip(jobs, choices(jobs, policy), strict=True):
            plain = choices_reference(job, policy)
            assert [(o.gpus, o.batch) for o in own] == [(o.gpus, o.batch) for o in plain], job
            assert [o.speedup for o in own] == pytest.approx([o.speedup for o in plain], rel=1e-12)
            assert [o.value for o in own] == pytest.approx([o.value for o in plain], rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_a_job_has_is_worth_what_it_would_be_if_it_could_not_move(policy: str) -> None:
    """Whether or not it is among the choices, and whatever they are; of a job that has none of them it is not known."""
    rng = random.Random(policy)
    models = [None, Declared(0.8), Declared(0.3), *(fitted(rng) for _ in range(8))]
    jobs = [any_job(rng, i, models) for i in range(60)]
    jobs = [job for job in jobs if job.current_gpus and job.current_batch]
    known = 0
    for job, own in zip(jobs, choices(jobs, policy), strict=True):
        if not math.isnan(own.staying):
            known += 1
            ((still,),) = choices([replace(job, frozen=True)], policy)
            assert own.staying == pytest.approx(still.value, rel=1e-11, abs=1e-12), job
            assert own.at_weight(2.0).staying == pytest.approx(2.0 * own.staying / job.weight, rel=1e-12)
    assert known > len(jobs) // 2


def test_a_job_that_may_not_move_needs_no_batch_before_it_is_measured() -> None:
    """Of a job that has just begun nothing is known, and its plan is what it has; a measured one is refused by name."""
    new = JobView("7", None, ((4, 1),), lambda gpus: (64,), 4, 0, 4, 64, frozen=True)
    (own,) = choices([new], "auto")
    assert [(choice.gpus, choice.batch) for choice in own] == [(4, 0)]
    with pytest.raises(PlanInputError, match=r"job 7: 0\.0 samples/s at 4 GPUs on 1 nodes, batch 0"):
        choices([replace(new, model=Declared(0.5))], "auto")
