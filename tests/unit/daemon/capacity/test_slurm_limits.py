"""Which of Slurm's limits hold for a job, and what they leave for companions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_snapshots import Cluster

from slurm_elastic.daemon.capacity.placement import CompanionLimits, ShapeTemplate
from slurm_elastic.daemon.capacity.slurm_limits import GpuLimit, LimitUsage, charged, gpu_limits, tasks, uses
from slurm_elastic.daemon.slurm.accounting import SlurmLimit
from slurm_elastic.daemon.slurm.model import Job
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.protocol.messages import Shape


def base_and(*limits: SlurmLimit, **site: object) -> tuple[Cluster, Site]:
    """Four nodes, an elastic job's base on n1, and a site with these limits."""
    cluster = Cluster()
    cluster.run(1, "n1", 4)
    return cluster, Site(limits=limits, **site)  # type: ignore[arg-type]


def shapes(cluster: Cluster, *counts: int) -> tuple[Shape, ...]:
    template = ShapeTemplate.of(cluster.jobs[1])
    return tuple(template.shape(gpus, (f"n{place}",)) for place, gpus in enumerate(counts, 2))


def test_a_partitions_qos_comes_before_the_jobs_and_that_before_the_association() -> None:
    """For the same limit; what the first does not limit, the next does."""
    cluster, site = base_and(
        SlurmLimit("lab", tres={"gres/gpu": 2.0, "cpu": 7.0}),
        SlurmLimit(qos="normal", tres={"gres/gpu": 4.0, "mem": 9.0}),
        SlurmLimit(qos="part", tres={"gres/gpu": 8.0}),
        partition_qos={"main": "part"},
    )
    bounds = LimitUsage(site).bounds(charged(cluster.jobs[1]))
    assert {bound.name: bound.most for bound in bounds} == {"gres/gpu": 8.0, "mem": 9.0, "cpu": 7.0}


def test_a_users_limit_in_a_qos_holds_for_users_who_are_new_in_it() -> None:
    """Slurm lists those only whose jobs it has counted; each has the limit for itself."""
    cluster, site = base_and(SlurmLimit(qos="normal", tres={"gres/gpu": 6.0}, scope="user"))
    cluster.run(2, "n2", 4, uid=77, user="bob")
    usage = LimitUsage(site, cluster.jobs.values())
    for job in cluster.jobs.values():
        (bound,) = usage.bounds(charged(job))
        assert usage.left(bound) == 2


@pytest.mark.parametrize(("most", "allowed"), [(3, 1), (4, 2), (40, 35)])
def test_companions_leave_the_user_some_jobs_to_submit(most: int, allowed: int) -> None:
    """One of ten, and at least one; jobs in the queue count too, arrays by their tasks."""
    cluster, site = base_and(SlurmLimit("lab", 1001, tres={"submits": float(most)}))
    usage = LimitUsage(site, cluster.jobs.values())
    (bound,) = usage.bounds(charged(cluster.jobs[1]))
    limits = CompanionLimits(usage, usage.empty())
    assert limits.allow(cluster.jobs[1], shapes(cluster, *[1] * allowed))
    assert not limits.allow(cluster.jobs[1], shapes(cluster, *[1] * (allowed + 1)))
    assert limits.refused[1] == f"Slurm's limit submits={most} (account lab, user 1001)"
    cluster.wait(2, array_task="0-98%4")
    assert LimitUsage(site, cluster.jobs.values()).left(bound) == most - 100


def test_a_companion_is_no_smaller_than_a_qos_wants_it() -> None:
    """MinTRESPerJob: one GPU more would be refused, two are asked for."""
    cluster, site = base_and(SlurmLimit(qos="normal", tres={"gres/gpu": 2.0}, scope="least"))
    limits = CompanionLimits(LimitUsage(site), LimitUsage(site))
    assert limits.allow(cluster.jobs[1], shapes(cluster, 4, 2)) and not limits.allow(
        cluster.jobs[1], shapes(cluster, 1)
    )


def test_two_jobs_do_not_take_the_same_last_place() -> None:
    """What one plan places is counted."""
    cluster, site = base_and(SlurmLimit("lab", tres={"jobs": 2.0}))
    usage = LimitUsage(site, cluster.jobs.values())
    limits = CompanionLimits(usage, usage.empty())
    assert limits.allow(cluster.jobs[1], shapes(cluster, 4))
    limits.take(cluster.jobs[1], shapes(cluster, 4))
    assert not limits.allow(cluster.jobs[1], shapes(cluster, 4))


def test_a_companion_keeps_what_a_node_may_give_one_job() -> None:
    """MaxTRESPerNode."""
    cluster, site = base_and(SlurmLimit(qos="normal", tres={"gres/gpu": 3.0}, scope="node"))
    assert CompanionLimits(LimitUsage(site), LimitUsage(site)).most_on_a_node(cluster.jobs[1]) == 3


def test_companions_with_a_qos_of_their_own_have_its_limits_and_not_their_jobs() -> None:
    """What they may have as jobs, together, each and on a node; what one job may have still holds for all pieces."""
    of_base = SlurmLimit(qos="normal", tres={"gres/gpu": 4.0, "jobs": 1.0}, scope="user")
    per_job = SlurmLimit(qos="normal", tres={"gres/gpu": 10.0}, scope="job")
    own = (
        SlurmLimit(qos="spare", tres={"gres/gpu": 9.0}),
        SlurmLimit(qos="spare", tres={"gres/gpu": 3.0}, scope="job"),
        SlurmLimit(qos="spare", tres={"gres/gpu": 2.0}, scope="node"),
    )
    cluster, site = base_and(of_base, per_job, *own)
    cluster.run(2, "n2", 4, qos="spare", uid=77, user="bob")
    base, usage = cluster.jobs[1], LimitUsage(site, cluster.jobs.values())
    more = {limit.label.partition(" leaves")[0]: limit.more for limit in left_by(usage, base, "spare")}
    assert more == {
        "Slurm's limit gres/gpu=9 (QOS spare)": 5,
        "Slurm's limit gres/gpu=10 of each job (QOS normal)": 6,
    }
    limits = CompanionLimits(usage, usage.empty(), "spare")
    assert limits.most_on_a_node(base) == 2
    assert limits.allow(base, shapes(cluster, 3)) and not limits.allow(base, shapes(cluster, 4))
    limits.take(base, shapes(cluster, 3))
    assert ShapeTemplate.of(base, 2, "spare").shape(1, ("n3",)).qos == "spare"


def left_by(usage: LimitUsage, base: Job, companion_qos: str) -> list[GpuLimit]:
    return gpu_limits(usage, [(base, uses(base))], companion_qos=companion_qos)


@pytest.mark.parametrize(("text", "count"), [("", 1), ("3", 1), ("0-9", 10), ("0-9:3%2", 4), ("1,5-6,9%1", 4)])
def test_waiting_tasks_are_counted(text: str, count: int) -> None:
    """As squeue names them."""
    assert tasks(text) == count


def test_a_jobs_qos_comes_before_the_partitions_where_it_has_the_flag() -> None:
    """OverPartQOS."""
    mine, part = (SlurmLimit(qos=qos, tres={"gres/gpu": most}) for qos, most in (("normal", 4.0), ("part", 8.0)))
    cluster, site = base_and(mine, part, partition_qos={"main": "part"}, qos_over_partition=frozenset({"normal"}))
    (bound,) = LimitUsage(site).bounds(charged(cluster.jobs[1]))
    assert bound.most == 4


def test_a_users_association_with_a_partition_holds_there_in_place_of_the_other() -> None:
    """Where it limits nothing, too; usage is counted apart."""
    general, own = (
        SlurmLimit("lab", 1001, tres={"jobs": 1.0}),
        SlurmLimit("lab", 1001, "", {"cpu": 8.0}, partition="main"),
    )
    cluster, site = base_and(general, own, partition_users=frozenset({("lab", 1001, "main")}))
    cluster.run(2, "n2", 4, partition="low")
    usage = LimitUsage(site, cluster.jobs.values())
    here, there = (usage.bounds(charged(cluster.jobs[job])) for job in (1, 2))
    assert [bound.label for bound in here] == ["Slurm's limit cpu=8 (account lab, user 1001, partition main)"]
    assert [bound.name for bound in there] == ["jobs"] and usage.left(there[0]) == 0


def test_minutes_are_counted_as_slurm_does() -> None:
    """What a running job still has, and what Slurm takes for not passed yet; until its end where it does not look."""
    cluster, site = base_and(SlurmLimit("lab", tres={"gres/gpu run minutes": 2000.0}), run_minutes_lag_s=300.0)
    cluster.run(2, "n2", 2, time_limit_s=36000, time_left_s=18000)
    counted = cluster.jobs[2]
    late, never = (LimitUsage(one, [counted], cluster.at) for one in (site, replace(site, run_minutes_lag_s=None)))
    (bound,) = late.bounds(charged(counted))
    assert late.left(bound) == 2000 - 2 * 305 and never.left(bound) == 2000 - 2 * 600


def test_minutes_become_gpus() -> None:
    """A companion ends with its job, so a GPU takes more of the job that has longer to run; and of one that has used
    them up, nothing is left."""
    cluster, site = base_and(SlurmLimit("lab", tres={"gres/gpu run minutes": 6000.0}), run_minutes_lag_s=0.0)
    cluster.run(1, "n1", 4, time_limit_s=36000, time_left_s=6000)
    cluster.run(2, "n2", 4, time_limit_s=36000, time_left_s=36000)
    bases = [cluster.jobs[1], cluster.jobs[2]]
    usage = LimitUsage(site, bases, cluster.at)
    more = {limit.jobs: limit.more for limit in gpu_limits(usage, [(base, usage.of(base)) for base in bases])}
    left = 6000 - 4 * 100 - 4 * 600
    assert more == {frozenset({1, 2}): left // 100, frozenset({1}): left // 100, frozenset({2}): left // 600}
    limits = CompanionLimits(usage, usage.empty())
    assert limits.allow(bases[1], shapes(cluster, 4)) and not limits.allow(bases[1], shapes(cluster, 4, 2))
    limits.take(bases[1], shapes(cluster, 4))
    assert not limits.allow(bases[1], shapes(cluster, 2)) and limits.allow(bases[0], shapes(cluster, 4))


def test_what_one_job_may_use_in_minutes_holds_for_all_its_pieces() -> None:
    """MaxTRESMinsPerJob counts whole time limits, of a companion what is left of its job's."""
    cluster, site = base_and(SlurmLimit(qos="normal", tres={"gres/gpu minutes": 3000.0}, scope="job"))
    cluster.run(1, "n1", 4, time_limit_s=36000, time_left_s=6000)
    usage = LimitUsage(site, at=cluster.at)
    (limit,) = gpu_limits(usage, [(cluster.jobs[1], usage.of(cluster.jobs[1]))])
    assert limit.more == (3000 - 4 * 600) // 100
    assert limit.label == "Slurm's limit gres/gpu minutes=3000 of each job (QOS normal) leaves it"


def test_wall_time_that_is_used_up_keeps_jobs_from_companions() -> None:
    """GrpWall: each companion takes as long as its job has left, whatever its size."""
    for most, more in ((99.0, [0]), (100.0, [])):
        cluster, site = base_and(SlurmLimit(qos="normal", tres={"wall minutes left": most}), run_minutes_lag_s=0.0)
        cluster.run(1, "n1", 4, time_limit_s=36000, time_left_s=6000)
        usage = LimitUsage(site, at=cluster.at)
        found = gpu_limits(usage, [(cluster.jobs[1], usage.of(cluster.jobs[1]))])
        assert list(dict.fromkeys(limit.more for limit in found)) == more
        assert CompanionLimits(usage, usage.empty()).allow(cluster.jobs[1], shapes(cluster, 1)) is not bool(more)
