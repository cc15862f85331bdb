"""The speeds in decisions' evidence."""

from __future__ import annotations

from plan_cases import SETTINGS, World

from slurm_elastic.daemon.optimizer.solver.table import Choice
from slurm_elastic.daemon.optimizer.targets import Target
from slurm_elastic.daemon.planner.pools.kept_member import KeptMember
from slurm_elastic.daemon.planner.row_speeds import Row, speeds_of
from slurm_elastic.daemon.planner.running.eligibility import running_job


def rows() -> list[Row]:
    """Of a job that grows with an alternative, of one that was asked of no optimizer, of one at a measured size."""
    world = World(4)
    for job_id, node in ((1, "n1"), (2, "n2"), (3, "n3")):
        world.job(job_id, node)
    inputs = world.inputs()
    found = []
    for job_id, job in sorted(inputs.roster.elastic.items()):
        running = running_job(job, inputs.states[job_id], SETTINGS, inputs.now)
        kept = KeptMember.made(None, running, frozenset(), SETTINGS, 8, 4, 1.0, 600.0)
        assert kept is not None
        found.append(Row(running, 8, 256, kept.member))
    offered = [Choice(4, 1.0, 256), Choice(8, 1.5, 256)]
    target = Target("1", 8, 256, 1.5, 0.5, "grow_idle", offered)  # type: ignore[arg-type]
    return [Row(found[0].running, 8, 256, found[0].member, target), Row(found[1].running, 8, 256), *found[2:]]


def test_a_rows_speeds_are_its_own_whatever_is_asked_beside_it() -> None:
    """Rows with and without a member, an alternative or a doubt: each gets what it gets alone."""
    every = rows()
    together = speeds_of(every)
    assert together == [speeds_of([row])[0] for row in every]
    grows, unasked, _ = together
    assert grows.doubt == 0.1 and grows.modelled and [size for size, *_ in grows.considered] == [4]
    assert grows.considered[0][3] == round(grows.samples_per_s_from or 0.0, 3)
    assert (unasked.reports_from, unasked.samples_per_s_to, unasked.considered) == (5, None, ())
