"""What the order of the queue brings on a public trace: Philly, 64,483 jobs of eleven virtual clusters.

`python benchmarks/bench_queue.py FOLDER`: with philly_jobs_to_2017-11-14.csv. Each virtual cluster is scaled to a load
of 80 and of 60 % of its GPUs. Jobs are ordered as they came (FIFO) and by `daemon/services/queue`, both with EASY
backfill that knows time limits: users put these at one to ten times what their jobs take (drawn; the trace has none).
Causal: a job is guessed from those that ended before it came. Prints a table beside the goals, and how often starts
that were foretold came within their bounds (every 50th job). Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import csv
import sys
from bisect import insort
from collections import defaultdict
from datetime import datetime
from heapq import heappop, heappush
from math import ceil, exp, inf
from pathlib import Path
from random import Random
from statistics import mean

from slurm_elastic.daemon.capacity.free_gpus import FreeGpus
from slurm_elastic.daemon.services.queue.forecast import Bounds, Ended, RunTimes, Wanted, need, site_factor, starts

HOUR = 3600.0
LIMITS = [h * HOUR for h in (0.5, 1, 4, 12, 24, 48, 96, 168, 336, 1440)]
GOALS = {"mean wait": 0.60, "longest wait": 1.50, "mean completion": 0.90}
TESTED = 500
EVERY_S = 600.0
"""Between two times that the order is made anew."""
Job = tuple[float, float, int, float, str]
"""Submitted, seconds, GPUs, time limit, virtual cluster."""


def jobs_of(path: Path) -> dict[str, list[Job]]:
    drawn, found = Random(1), defaultdict[str, list[Job]](list)
    rows = []
    for row in csv.DictReader(path.open()):
        seconds, gpus = float(row["duration"]), int(row["num_gpus"])
        if seconds > 0 and gpus > 0:
            rows.append((datetime.fromisoformat(row["timestamp"]).timestamp(), seconds, gpus, row["cluster"]))
    for at, seconds, gpus, cluster in sorted(rows):
        asked = seconds * exp(drawn.uniform(0, 2.3))
        limit = next((one for one in LIMITS if one >= asked), max(LIMITS[-1], seconds))
        found[cluster].append((at, seconds, gpus, limit, cluster))
    return found


class Cluster:
    """One virtual cluster as one count of GPUs under an order."""

    def __init__(self, jobs: list[Job], gpus: int, ordered: bool, looks: bool) -> None:
        self.jobs, self.gpus, self.free, self.ordered, self.looks = jobs, gpus, gpus, ordered, looks
        self.known, self.bounds = RunTimes(), Bounds()
        self.queue: list[int] = []
        self.running: dict[int, float] = {}
        self.limits: list[tuple[float, int]] = []
        self.waits = [0.0] * len(jobs)
        self.guessed = [0.0] * len(jobs)
        self.asked: dict[int, tuple[float, float]] = {}
        self.inside = self.outside = 0
        self.ordered_at = -inf

    def run(self) -> None:
        ends: list[tuple[float, int]] = []
        i = 0
        while i < len(self.jobs) or ends:
            now = min(self.jobs[i][0] if i < len(self.jobs) else inf, ends[0][0] if ends else inf)
            while ends and ends[0][0] <= now:
                _, j = heappop(ends)
                self.free += self.jobs[j][2]
                self.limits.remove((self.running.pop(j), j))
                self.known.add(Ended(self.jobs[j][4], "", self.jobs[j][2], self.jobs[j][1]))
            while i < len(self.jobs) and self.jobs[i][0] <= now:
                _, _, gpus, limit, user = self.jobs[i]
                self.guessed[i] = self.known.left_s(user, "", gpus, limit)
                self.queue.append(i)
                self.ordered_at = -inf
                if self.looks and i % 50 == 0:
                    self.look(now, i)
                i += 1
            if not self.queue:
                continue
            if self.ordered and now - self.ordered_at > EVERY_S:
                self.queue.sort(key=lambda j: (-self.factor(now, j), j))
                self.ordered_at = now
            if self.free:
                for j in self.start(now):
                    heappush(ends, (now + self.jobs[j][1], j))

    def factor(self, now: float, j: int) -> int:
        at, _, gpus, _, _ = self.jobs[j]
        return site_factor(need(self.guessed[j], gpus, now - at), 1000)

    def start(self, now: float) -> list[int]:
        """As Slurm: in the order of the queue, and behind the first that has no room what does not delay it."""
        begun, left, kept = [], [], None
        for place, j in enumerate(self.queue):
            gpus, limit = self.jobs[j][2:4]
            fits = gpus <= self.free
            if fits and kept is not None and now + limit > kept[0]:
                fits = gpus <= kept[1]
                kept = (kept[0], kept[1] - gpus) if fits else kept
            if fits:
                self.free -= gpus
                self.running[j] = now + limit
                insort(self.limits, (now + limit, j))
                self.started(now, j)
                begun.append(j)
                continue
            left.append(j)
            if kept is None:
                free = self.free
                for at, other in self.limits:
                    free += self.jobs[other][2]
                    if free >= gpus:
                        kept = at, free - gpus
                        break
            if place > TESTED or not self.free:
                left += self.queue[place + 1 :]
                break
        self.queue = left
        return begun

    def started(self, now: float, j: int) -> None:
        self.waits[j] = now - self.jobs[j][0]
        if j in self.asked:
            low, high = self.asked.pop(j)
            self.inside, self.outside = self.inside + (low <= now <= high), self.outside + (not low <= now <= high)
            self.bounds.waits(self.asked, {j: now})

    def look(self, now: float, i: int) -> None:
        """Foretell the start of a job that has just come."""
        free = FreeGpus([self.gpus])
        free.take([0], self.gpus - self.free)
        running = [
            (now + self.known.left_s(user, "", gpus, limit, now - (self.running[j] - limit)), [0], gpus)
            for j in self.running
            for _, _, gpus, limit, user in [self.jobs[j]]
        ]
        queue = sorted(self.queue, key=lambda j: (-self.factor(now, j), j))
        queue = queue[: queue.index(i) + 1]
        found = starts(now, free, running, [Wanted(j, 1, self.jobs[j][2], self.guessed[j]) for j in queue])
        if i in found:
            self.asked[i] = self.bounds.around(now, found[i])
            self.bounds.foretold(now, {i: found[i]})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loads", default="0.8,0.6")
    parser.add_argument("--no-looks", action="store_true", help="foretell no starts, which takes most of the time")
    args = parser.parse_args()
    by_cluster, missed = jobs_of(args.folder / "philly_jobs_to_2017-11-14.csv"), False
    for load in map(float, args.loads.split(",")):
        figures = {}
        for ordered in (False, True):
            waits, completions, near, inside, outside = [], [], 0, 0, 0
            for jobs in by_cluster.values():
                used = sum(seconds * gpus for _, seconds, gpus, _, _ in jobs)
                gpus = ceil(max(max(job[2] for job in jobs), used / (jobs[-1][0] - jobs[0][0]) / load))
                cluster = Cluster(jobs, gpus, ordered, ordered and not args.no_looks)
                cluster.run()
                waits += cluster.waits
                completions += [wait + job[1] for wait, job in zip(cluster.waits, jobs, strict=True)]
                near += sum(0.5 <= guess / job[1] <= 2 for guess, job in zip(cluster.guessed, jobs, strict=True))
                inside, outside = inside + cluster.inside, outside + cluster.outside
            figures[ordered] = mean(waits), max(waits), mean(completions)
        wait, longest, _ = figures[False]
        print(f"load {load:g}: FIFO waits {wait / HOUR:.1f} h in the mean, {longest / HOUR:.0f} h at most")
        for (name, goal), ours, fifo in zip(GOALS.items(), figures[True], figures[False], strict=True):
            missed = missed or ours / fifo > goal
            print(
                f"  {name:<16} {ours / fifo:.2f} of FIFO's (goal {goal:.2f}{', missed' if ours / fifo > goal else ''})"
            )
        print(f"  guessed within a factor of two: {near / len(waits):.0%} of jobs (goal 50 %)")
        if told := inside + outside:
            print(f"  started within the bounds foretold: {inside / told:.0%} of {told} (80 % are said)")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
