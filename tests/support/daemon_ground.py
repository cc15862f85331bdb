"""The daemon on an in-memory Slurm as the ground of campaigns: one thing going wrong at a point of a resize, and what
grows while short jobs come and go.

Promise: the real rounds, planner, controller, store and rules. Limit: in this process; not the HTTP server, not Slurm's
commands.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

from campaign import Ground
from daemon_harness import Supervisor, World
from growth import Sample, anonymous_kb, names, reserved_kb

from slurm_elastic.daemon.mechanisms.reconcile import Bounds

ROUND_S = 5.0


class OneResize(Ground):
    """A grow of one job, or its shrink, in half steps: a round of the daemon, or a step of the supervisor, so that what
    goes wrong falls between any two of them. It ends in bounded time, both ways."""

    kinds = (
        "daemon_dies",
        "daemon_dies_twice",
        "supervisor_hangs_for_ever",
        "slurmctld_is_away",
        "slurmctld_and_daemon_die",
        "companions_die",
        "training_ends",
        "base_dies",
        "rigid_job_comes",
        "clock_goes_back",
    )
    half_steps = 9
    """A resize has run through all its states in fewer."""
    set_back_s = 0.0
    """Of the clock."""
    job: Supervisor

    def __init__(self, direction: str, point: int) -> None:
        """direction: "grow" or "shrink". point: so many half steps are done when something goes wrong."""
        super().__init__(0)
        self.direction, self.point = direction, point
        self.world = World.in_memory(nodes=4)

    def begin(self) -> None:
        """Just before the round that orders it: a job that has reported, with idle nodes beside it; or a grown job, and
        an ordinary one that waits for what it has."""
        world = self.world
        self.job = world.elastic(1, 4, "elastic:gpus=4-12,step=4,batch=240-3840")
        self._until_ordered(lambda: self.job.step())
        if self.direction == "shrink":
            world.settle()
            assert self.job.gpus == 12
            world.rigid(3)
            self._until_ordered(lambda: None)
        [self.resize] = world.store.resizes.under_way()

    def _until_ordered(self, step: Callable[[], None]) -> None:
        for _ in range(20):
            self.world.slurm.now += ROUND_S
            step()
            if self.job.registered:
                self.world.rounds.run()
            if self.world.store.resizes.under_way():
                return
        raise AssertionError(f"no {self.direction} was ordered")

    def half_step(self, number: int) -> None:
        """The daemon's half or the supervisors'."""
        self.world.slurm.now += 0.5
        if number % 2:
            self.world.rounds.run()
            return
        for supervisor in self.world.supervisors.values():
            supervisor.step()

    def state(self) -> str:
        return self.world.store.resizes.get(self.resize.id).state

    def provoke(self) -> str:
        for number in range(self.point):
            self.half_step(number)
        return self.state()

    def daemon_dies(self) -> None:
        self.world.boot()

    def daemon_dies_twice(self) -> None:
        self.world.boot()
        self.world.rounds.run()
        self.world.boot()

    def supervisor_hangs_for_ever(self) -> None:
        self.job.silent = True

    def slurmctld_is_away(self) -> None:
        self.world.slurm.reachable = False
        for _ in range(3):
            self.world.round(ROUND_S)
        self.world.slurm.reachable = True

    def slurmctld_and_daemon_die(self) -> None:
        self.world.slurm.reachable = False
        self.world.boot()
        self.world.round(ROUND_S)
        self.world.slurm.reachable = True

    def companions_die(self) -> None:
        for companion in self.world.companions():
            self.world.slurm.finish(companion)

    def training_ends(self) -> None:
        self.job.end()

    def base_dies(self) -> None:
        self.job.crash()

    def rigid_job_comes(self) -> None:
        self.world.rigid(2)

    def clock_goes_back(self) -> None:
        self.set_back_s = 3600.0
        self.world.slurm.now -= self.set_back_s

    def settle(self) -> bool:
        """The resize ends within the sum of its bounds, nothing that nobody trains on is held, the daemon still acts.

        A clock that was set back is waited for: times of the future are no times to count from."""
        world, bounds = self.world, Bounds()
        longest = bounds.issued_s + 2 * (60.0 + bounds.margin_s) + bounds.switch_s + bounds.release_s
        for _ in range(int((longest + self.set_back_s) / ROUND_S) + 2):
            if world.store.resizes.get(self.resize.id).open:
                world.round(ROUND_S)
        assert not world.store.resizes.get(self.resize.id).open, f"still {self.state()}"
        if self.job.silent:
            for _ in range(60):
                world.round(ROUND_S)
        else:
            world.settle(400)
        assert world.rounds.mode == "act"
        world.is_at_rest({self.job.job_id: 4})
        return True

    def close(self) -> None:
        self.world.close()


class ShortJobs(Ground):
    """In each round so many jobs register, report, grow by a companion where there is room, and end.

    The history in the database grows with the jobs by design, until history_days prunes it. The choices made for jobs
    that were are kept, up to twice 4,096 lists (`Cache`), five of each job of this soak: 1,700 jobs fill that, with
    8 kB each, and SQLite's pages are in memory by then too. So the first 2,000 are warm-up; a run of fewer than 3,000
    measures how these fill."""

    at_once = 4
    rounds_of_daemon = 8
    """While these jobs are there: enough to grow."""
    fills = 2_000
    """Jobs after which what is kept up to a bound is full."""
    every = 5
    """Samples are taken after so many rounds."""

    def __init__(self, folder: Path) -> None:
        super().__init__(0)
        self.world = World(folder)
        self.samples: list[Sample] = []
        self.resizes = 0

    def provoke(self) -> str:
        supervisors = [self.world.elastic() for _ in range(self.at_once)]
        for _ in range(self.rounds_of_daemon):
            self.world.round()
        for supervisor in supervisors:
            self.resizes += supervisor.told.count("running")
            supervisor.end()
        self.world.supervisors.clear()
        self.world.round()
        self.world.slurm.forget()
        return ""

    def settle(self) -> bool:
        if self.rounds % self.every == self.every - 1:
            gc.collect()
            self.samples.append(
                {
                    "selasticd: memory, kB": anonymous_kb(os.getpid()),
                    "selasticd: reserved, kB": reserved_kb(os.getpid()),
                    "selasticd: Python objects": len(gc.get_objects()),
                    "selasticd: Python blocks": sys.getallocatedblocks(),
                    "selasticd: descriptors": len(names(Path("/proc/self/fd"))),
                    "selasticd: threads": len(names(Path("/proc/self/task"))),
                }
            )
        return True

    def close(self) -> None:
        self.world.close()
