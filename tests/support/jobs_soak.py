"""What grows in the daemon while short jobs come and go: `make soak-growth` prints a table of slopes.

Promise: each job registers, reports, grows by a companion where there is room, and ends; memory, Python objects,
descriptors and threads of the process are measured behind a warm-up. Limit: the rounds, the planner, the controller and
the store are the real ones, but in this process and on the in-memory Slurm: not the HTTP server, not Slurm's commands.
The history in the database grows with the jobs by design, until history_days prunes it. The choices made for jobs that
were are kept, up to twice 4,096 lists (`Cache`), five of each job of this soak: 1,700 jobs fill that, with 8 kB each,
and SQLite's pages are in memory by then too. So the first 2,000 are warm-up; a run of fewer than 3,000 measures how
these fill.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from daemon_harness import World
from growth_soak import Sample, anonymous_kb, names, print_slopes, reserved_kb, slopes

AT_ONCE = 4
ROUNDS = 8
"""Of the daemon, while these jobs are there: enough to grow."""
FILLS = 2_000
"""Jobs after which what is kept up to a bound is full."""
EVERY = 5
"""Samples are taken after so many of these."""


def run(folder: Path, jobs: int, minutes: float = 1e9) -> tuple[list[Sample], int]:
    """The samples, and how many resizes there were; of fewer jobs where the time is over before."""
    world, samples, resizes = World(folder), [], 0
    end = time.monotonic() + 60 * minutes
    for number in range(jobs // AT_ONCE):
        supervisors = [world.elastic() for _ in range(AT_ONCE)]
        for _ in range(ROUNDS):
            world.round()
        for supervisor in supervisors:
            resizes += supervisor.told.count("running")
            supervisor.end()
        world.supervisors.clear()
        world.round()
        for held in (world.slurm._ended, world.slurm._components):  # the Slurm of this soak never forgets
            held.clear()
        if number % EVERY == EVERY - 1:
            gc.collect()
            samples.append(
                {
                    "selasticd: memory, kB": anonymous_kb(os.getpid()),
                    "selasticd: reserved, kB": reserved_kb(os.getpid()),
                    "selasticd: Python objects": len(gc.get_objects()),
                    "selasticd: Python blocks": sys.getallocatedblocks(),
                    "selasticd: descriptors": len(names(Path("/proc/self/fd"))),
                    "selasticd: threads": len(names(Path("/proc/self/task"))),
                }
            )
            if time.monotonic() > end:
                break
    world.store.close()
    return samples, resizes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=1e9, help="end after these, however many there were")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="selastic-jobs-") as folder:
        begun = time.monotonic()
        samples, resizes = run(Path(folder), args.jobs, args.minutes)
    jobs = len(samples) * AT_ONCE * EVERY
    print(f"{jobs} jobs with {resizes} resizes through one daemon in {time.monotonic() - begun:.0f} s\n")
    print_slopes(slopes(samples, AT_ONCE * EVERY, FILLS), "per job")
    return 0


if __name__ == "__main__":
    sys.exit(main())
