"""What the daemon keeps of jobs that have ended: the short form of the second half of `make soak-growth`."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from daemon_harness import World

from slurm_elastic.daemon.planner.tables import Tables

AT_ONCE = 2


def pass_through(world: World, groups: int) -> int:
    """Jobs that register, grow and end; how many Python objects there are then, but for the plans kept."""
    for _ in range(groups):
        supervisors = [world.elastic() for _ in range(AT_ONCE)]
        for _ in range(8):
            world.round()
        for supervisor in supervisors:
            assert "running" in supervisor.told
            supervisor.end()
        world.supervisors.clear()
        world.round()
        world.slurm.forget()
    world.rounds.services.elastic.tables = Tables()
    gc.collect()
    # sqlite3 keeps the references to its cursors, and looks for dead ones every 200 cursors.
    return len([one for one in gc.get_objects() if not (type(one) is weakref.ref and one() is None)])


def test_no_object_stays_of_a_job_that_has_ended(tmp_path: Path) -> None:
    """But for its plans, which a cache of so many keeps: after 16 more jobs there are as many objects as before."""
    world = World(tmp_path)
    pass_through(world, 10)  # a table forgets with the second turn after that in which a job was asked for
    before = pass_through(world, 8)
    assert pass_through(world, 8) - before < 8 * AT_ONCE
