"""What plans keep of the plans before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from one_pool import plan

from slurm_elastic.daemon.optimizer import plan as plan_module
from slurm_elastic.daemon.optimizer.choices import Grids
from slurm_elastic.daemon.optimizer.errors import PlanInputError
from slurm_elastic.daemon.optimizer.job_view import JobView
from slurm_elastic.daemon.optimizer.plan import ChoiceTables
from slurm_elastic.daemon.optimizer.solver.table import Columns

SIZES = tuple((k, 1) for k in (1, 2, 4, 8))


class Square:
    """A job whose speed is the root of its GPUs."""

    sizes_seen = range(1, 100)
    jitter = 0.0

    def throughput(self, gpus: int, nodes: int, batch: int) -> float:
        return float(gpus**0.5)

    def throughputs(self, points: Sequence[tuple[int, int, int]]) -> list[float]:
        return [self.throughput(*point) for point in points]

    def uncertainties(self, sizes: Sequence[tuple[int, int]]) -> list[float]:
        return [0.0] * len(sizes)


MODEL = Square()


def batches(gpus: int) -> tuple[int, ...]:
    return (64,)


def jobs_of(weights: list[float], reference_gpus: int = 1) -> list[JobView]:
    """Jobs that are alike but for their weights."""
    return [
        JobView(str(i), MODEL, SIZES, batches, 1, 64, reference_gpus, 64, weight=weight)
        for i, weight in enumerate(weights)
    ]


def test_a_weight_that_changes_makes_no_choices_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that joins a group changes the weights of all others in it: their choices are those of before, each
    multiplied by the new weight, and plans are those made from nothing."""
    computed, choices = list[int](), plan_module.choices

    def counted(jobs: Sequence[JobView], policy: str, known: Grids) -> list[Columns]:
        computed.append(len(jobs))
        return choices(jobs, policy, known)

    monkeypatch.setattr(plan_module, "choices", counted)
    tables, first = ChoiceTables(), jobs_of([1.0, 1.0, 0.5])
    assert plan(first, 12, tables=tables) == plan(first, 12)
    computed.clear()
    later = [replace(job, weight=weight) for job, weight in zip(first, (0.3, 4.0, 0.5), strict=True)]
    kept = plan(later, 12, tables=tables)
    assert sum(computed) == 0
    assert kept == plan(later, 12)
    assert kept.targets[1].gpus > kept.targets[0].gpus


def test_choices_of_a_job_that_started_larger_are_the_same() -> None:
    """What a job began with counts only where every job keeps its size."""
    tables = ChoiceTables()
    (small,), (large,) = (tables.of(jobs_of([1.0], gpus), "auto") for gpus in (1, 4))
    assert small == large and len(tables._alike) == 1
    tables.of(jobs_of([1.0], 4), "static")
    assert len(tables._alike) == 2


def test_a_weight_that_is_none_is_refused_though_the_choices_are_known() -> None:
    """A job like one before it is looked at all the same."""
    tables = ChoiceTables()
    plan(jobs_of([1.0]), 8, tables=tables)
    with pytest.raises(PlanInputError, match="job 1: weight -1"):
        plan(jobs_of([1.0, -1.0]), 8, tables=tables)
