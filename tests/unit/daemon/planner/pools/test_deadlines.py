"""What deadlines and budgets make of a plan: who gets more, who gives, and what no deadline can take."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import NOW, SETTINGS, World, row

from slurm_elastic.daemon.planner.decide import decide
from slurm_elastic.daemon.planner.pools.deadlines import deadline_factors, within_shares
from slurm_elastic.daemon.planner.running.state import Remaining
from slurm_elastic.daemon.slurm.site import PartitionRules, Site

SPEED = 256.0
"""Samples per second that a job of plan_cases does on the GPUs that it has."""


def world(*keys: str, left_s: float = 7200.0) -> World:
    """Jobs with three nodes of 4 GPUs and these further keys, with so long to train on them; nothing is idle."""
    found = World(3 * len(keys))
    for job_id, key in enumerate(keys, 1):
        found.job(job_id, " ".join(f"n{3 * job_id - i}" for i in (2, 1, 0)), f"elastic:gpus=4-32,batch=240-256{key}")
        found.state(job_id, remaining=Remaining(left_s * SPEED, SPEED, NOW))
    found.settings = replace(SETTINGS, shorter_first=0.0, fairness="job")
    return found


def at(seconds: float) -> str:
    """A deadline in so many seconds, of a job that was submitted at 0."""
    return f",deadline=now+{int(NOW + seconds)}"


def sizes(found: World, site: Site | None = None) -> list[int]:
    return [one.gpus_to for one in found.plan(site=site).rows]


def factors(found: World) -> dict[int, float]:
    return dict(decide(found.inputs()).context.weights.factors)


def test_one_behind_its_deadline_gets_more_and_one_ahead_gives() -> None:
    """With three hours for two at its present size it gives, with one it gets more; beside it nobody has a deadline."""
    assert factors(world("", "", "", "")) == {}
    (behind,) = factors(world(at(4800), "", "", "")).values()
    (ahead,) = factors(world(at(30_000), "", "", "")).values()
    assert 1.0 < behind <= SETTINGS.deadline_weight and 1.0 / SETTINGS.deadline_weight <= ahead < 1.0
    hurried, *others = sizes(world(at(4800), "", "", ""))
    assert hurried > 12 > min(others)
    at_ease, *others = sizes(world(at(30_000), "", "", ""))
    assert at_ease < 12 < max(others)


@pytest.mark.parametrize("seconds", [-60.0, 300.0], ids=["passed", "no size keeps it"])
def test_a_deadline_that_cannot_be_kept_moves_nothing(seconds: float) -> None:
    """Nobody gets more by asking for what is impossible."""
    found = world(at(seconds), "", "", "")
    assert factors(found) == {} and sizes(found) == sizes(world("", "", "", ""))


def test_what_is_left_must_be_known() -> None:
    """A script that does not say when its training ends has the weight that it had."""
    found = world(at(4800), "", "", "")
    found.state(1, remaining=None)
    assert factors(found) == {}


def test_the_site_bounds_what_a_deadline_does() -> None:
    """With deadline_weight = 1 it does nothing; no group gets more than its share by it, but for what others give."""
    found = world(at(4800), "", "", "")
    found.settings = replace(found.settings, deadline_weight=1.0)
    assert factors(found) == {}
    for deadlines, urgent in (((at(4800), "", "", ""), {}), (("", "", at(30_000), ""), {3: "less"})):
        found = world(*deadlines)
        found.settings = replace(found.settings, fairness="user")
        for job_id, user in enumerate(("alice", "bob", "bob", "carol"), 1):
            found.cluster.change(job_id, user=user, uid=2000 + job_id)
        given = decide(found.inputs()).context.weights
        assert given.urgent.keys() == urgent.keys()  # alone in her group alice gets no more than her share
        assert all(factor < 1.0 for factor in given.urgent.values()) and given.factors[2] == 0.5


def test_a_budget_bounds_the_size() -> None:
    """Twice the GPUs are 1.8 times as fast: what is left costs more on more of them. A free partition costs nothing; a
    budget that does not pay for the end at all leaves the smallest size. What was spent counts."""
    cheap = 4 * 2.5 * 1.04  # a job of plan_cases does 205 samples/s on 4 GPUs
    for spent in (0.0, 3600.0 * cheap):
        more = World(4)
        more.job(1, "n1", f"elastic:gpus=4-16,batch=240-256,budget={cheap:g}")
        more.state(1, remaining=Remaining(7200 * SPEED, SPEED, NOW), spent_gpu_s=spent)
        assert row(more.plan(), 1).gpus_to == 4
        assert (row(more.plan(), 1).evidence.get("limit") or "").startswith("its budget ") is True
        free = Site(partitions={"main": PartitionRules(billing={"gres/gpu": 0.0})})
        assert row(more.plan(site=free), 1).gpus_to == 16


weights = st.dictionaries(st.integers(1, 9), st.floats(0.01, 100), min_size=1)


@given(weights=weights, data=st.data(), gpus=st.integers(1, 64), most=st.floats(1, 16))
def test_factors_lie_within_the_bound_and_groups_within_their_shares(
    weights: dict[int, float], data: st.DataObject, gpus: int, most: float
) -> None:
    """Whatever is needed: a factor is within the bound to a sixteenth of a doubling, and no group gains."""
    needs = data.draw(st.dictionaries(st.sampled_from(sorted(weights)), st.integers(1, 64), min_size=1))
    found, edge = deadline_factors(needs, weights, gpus, most), 2.0 ** (1 / 16) + 1e-9
    assert found.keys() <= needs.keys()
    assert all(1 / most / edge <= factor <= most * edge for factor in found.values())
    groups = {job: ((("user a", 1.0),) if job % 2 else (("user b", 1.0),)) for job in weights}
    within = within_shares(found, weights, groups)
    for group in set(groups.values()):
        own = [job for job in weights if groups[job] == group]
        before = math.fsum(weights[job] for job in own)
        if len(set(groups.values())) > 1:
            assert math.fsum(weights[job] * within.get(job, 1.0) for job in own) <= before * edge
