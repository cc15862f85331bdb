"""The speeds in decisions' evidence."""

from __future__ import annotations

from plan_cases import SETTINGS, World

from slurm_elastic.daemon.optimizer.plan import Target
from slurm_elastic.daemon.optimizer.solver.table import Choice
from slurm_elastic.daemon.planner.decision_record import speeds_of
from slurm_elastic.daemon.planner.moves import Move, TargetSize
from slurm_elastic.daemon.planner.tables import Tables
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.messages import Shape


def moves() -> list[Move]:
    """Of a job that grows with an alternative, of one that was asked of no optimizer, of one at a measured size."""
    world, tables = World(4), Tables()
    for job_id, node in ((1, "n1"), (2, "n2"), (3, "n3")):
        world.job(job_id, node)
    inputs = world.inputs()
    running_jobs = tables.running(inputs.roster, inputs.states, SETTINGS, Site(), inputs.now)
    offered = [Choice(4, 1.0, 256), Choice(8, 1.5, 256)]
    target = Target("1", 8, 256, 1.5, 0.5, "grow_idle", offered)  # type: ignore[arg-type]
    found = []
    for job_id, running in sorted(running_jobs.items()):
        asked = running, running.state.model, None, frozenset[tuple[int, str]](), 8, 4, 1.0, 600.0, SETTINGS
        candidate = None if job_id == 2 else tables.candidates.one(job_id, asked)
        wanted = TargetSize(
            running, 8, 256, Reason.GROW_IDLE, 0.5, candidate=candidate, target=target if job_id == 1 else None
        )
        found.append(Move(wanted, running.pieces, (Shape(1, 4, 4, 0, "", "", "", "", ("n4",)),)))
    return found


def test_a_rows_speeds_are_its_own_whatever_is_asked_beside_it() -> None:
    """Rows with and without a member, an alternative or a doubt: each gets what it gets alone."""
    every = moves()
    together = speeds_of(every)
    assert together == [speeds_of([move])[0] for move in every]
    grows, unasked, _ = together
    assert grows.doubt == 0.1 and grows.modelled and [size for size, *_ in grows.considered] == [4]
    assert grows.considered[0][3] == round(grows.samples_per_s_from or 0.0, 3)
    assert (unasked.reports_from, unasked.samples_per_s_to, unasked.considered) == (5, None, ())
