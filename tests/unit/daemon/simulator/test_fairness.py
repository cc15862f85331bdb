"""Whom a simulation serves how well."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from simulations import QUIET, job, outcome, trace_of

from slurm_elastic.daemon.simulator.engine import Outcome
from slurm_elastic.daemon.simulator.metrics import served

WIDE = replace(QUIET, gpus=64, shorter_first=0.0)


def people(fairness: str) -> Outcome:
    """One job of ann beside nine of bob, equal and all there from the beginning to the end."""
    rows = [job(str(i), 0.0, 2, 5e4, min_gpus=1, max_gpus=64, max_batch=1 << 20) for i in range(10)]
    rows = [replace(row, user="ann" if i == 0 else "bob", account="lab") for i, row in enumerate(rows)]
    return outcome(rows, "auto", replace(WIDE, fairness=fairness))


def test_two_users_get_as_much_where_that_is_asked_for() -> None:
    """Half of the cluster for one job of a user, the other half for nine of another's; ten equal parts else."""
    sizes = {}
    for fairness in ("job", "user"):
        found = people(fairness)
        held = {name: gpus for at, name, gpus, _ in found.changes if at < 1.0}
        sizes[fairness] = held.pop("0"), sum(held.values())
    alone, others = sizes["user"]
    assert abs(alone - others) <= 9 and sizes["job"][0] <= 8, sizes


def test_the_index_tells_it_apart() -> None:
    """As even as an equal division where users are the groups, and far from it where every job counts alike."""
    fair, unfair = served(people("user"), "user"), served(people("job"), "user")
    assert fair.groups == 2 and fair.jain > 0.95 > unfair.jain and unfair.jain_gpus < 0.8
    assert fair.progress == pytest.approx(unfair.progress, rel=0.1)


def test_a_job_alone_takes_as_long_as_alone() -> None:
    """Without another user there is nobody to be fair to; one that comes when the first has gone shares nothing."""
    assert math.isnan(served(outcome(trace_of(5)), "user").jain)
    rows = [job(name, at, 8, 1e4, min_gpus=8, max_batch=64, user=name) for name, at in (("a", 0.0), ("b", 1e6))]
    found = served(outcome(rows, "auto"), "user")
    assert found.groups == 2 and found.rho_mean == pytest.approx(1.0) == pytest.approx(found.rho_worst)


def test_who_waits_for_others_took_longer_than_alone() -> None:
    """Two that each need the whole cluster, one after the other: the second's time is twice its length."""
    rows = [job(name, 0.0, 8, 8e4, min_gpus=8, max_gpus=8, max_batch=64, user=name) for name in ("a", "b")]
    found = served(outcome(rows, "backfill"), "user")
    # The first: half of the cluster, which takes twice its time. The second: two thirds, in the mean over its time.
    assert found.rho_worst == pytest.approx(2 / 1.5, rel=1e-3)
    assert found.rho_mean == pytest.approx((0.5 + 2 / 1.5) / 2, rel=1e-3)
