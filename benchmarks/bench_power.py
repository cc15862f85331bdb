"""What letting idle nodes sleep brings on a public trace: Philly's nodes in use, each minute of seven weeks.

`python benchmarks/bench_power.py FOLDER`: with philly_nodes_to_2017-11-23.csv. Steps of ten minutes, the most nodes in
use in each, decided by `daemon/services/power` as shipped, which knows only the steps before. Wake-ups are counted as
in Helios: steps in which nodes of the cluster are woken, however many. Prints the goals, the forecast's error beside
persistence, and other buffers. Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from statistics import fmean

from slurm_elastic.daemon.planner.settings import PlannerSettings
from slurm_elastic.daemon.services.power.decide import AHEAD, DAY, STEP_S, Demand, Limits, replay


def steps_of(path: Path) -> tuple[dict[int, int], dict[int, int]]:
    """By step: the most nodes in use, and all nodes."""
    active, total = defaultdict[int, int](int), defaultdict[int, int](int)
    for row in csv.DictReader(path.open()):
        step = int(datetime.fromisoformat(row["time"] + "+00:00").timestamp() // STEP_S)
        active[step] = max(active[step], int(row["active"]))
        total[step] = max(total[step], int(row["total"]))
    return active, total


def errors(needed: dict[int, int]) -> tuple[float, float]:
    """Mean error of the most nodes needed within three hours, in nodes: the forecast's, and persistence's."""
    demand, ours, theirs = Demand(), [], []
    for count, step in enumerate(sorted(needed)):
        ahead = [needed.get(one) for one in range(step, step + AHEAD + 1)]
        if count >= DAY and None not in ahead:
            most = max(one for one in ahead if one is not None)
            ours.append(abs(most - demand.expected(step, needed[step])))
            theirs.append(abs(most - needed[step]))
        demand.add(step, needed[step])
    return fmean(ours), fmean(theirs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    path = args.folder / "philly_nodes_to_2017-11-23.csv"
    if not path.is_file():
        print(
            f"there is no {path}; accepted: make bench-cluster DATA=FOLDER, with Philly's files in it", file=sys.stderr
        )
        return 2
    needed, nodes = steps_of(path)
    shipped, missed = PlannerSettings(), False
    ours, theirs = errors(needed)
    print(f"power: most nodes needed within 3 h, mean error {ours:.1f} nodes (persistence: {theirs:.1f})")
    for buffer in (shipped.power_buffer, 0.02, 0.03, 0.06, 0.10):
        found = replay(needed, nodes, Limits(buffer, shipped.power_per_hour))
        days = found.steps / DAY
        goals = (
            ("of idle node-hours asleep", found.asleep >= 0.75, f"{found.asleep:.1%}", ">= 75 %"),
            ("wake-ups a day", found.wake_ups / days <= 0.6, f"{found.wake_ups / days:.2f}", "<= 0.6"),
            ("of steps short", found.short / found.steps <= 0.003, f"{found.short / found.steps:.2%}", "<= 0.3 %"),
        )
        told = ", ".join(f"{said} {what} ({goal}{'' if met else ', missed'})" for what, met, said, goal in goals)
        each = found.woken / days / fmean(nodes.values())
        print(f"  buffer {buffer:.0%}: {told}; a node is woken {each:.2f} times a day")
        missed = missed or (buffer == shipped.power_buffer and not all(met for _, met, _, _ in goals))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
