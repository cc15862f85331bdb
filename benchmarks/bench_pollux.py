"""Our policy beside Pollux, Optimus, Tiresias and FIFO, in the simulator of Pollux's own artifact (OSDI 2021).

    python benchmarks/bench_pollux.py --artifact FOLDER [--workloads 1,2,3,4] [--rows NAMES] [--profiles FOLDER]

FOLDER: a checkout of github.com/petuum/adaptdl, branch osdi21-artifact. It runs unmodified, in an environment of its
own: numpy 1.26, pandas 1.5, scipy 1.10, autograd, pymoo 0.4.2.2, and what slurm-elastic-daemon needs. Pollux takes
more than half an hour of CPU time a workload, so its means are those that the artifact brings along, unless it is among
the rows. With --profiles (measured tables, of other programs as well) each program is left out of the prior that its
jobs start from.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import _setup  # noqa: F401
import bench_models
import fluid_bound
import pollux_artifact
import pollux_daemon
import profiles
from bench_simulator import OWN_GOAL, POLLUX_GOALS
from feedback import simulate_feedback
from public_data import load_profiles

from slurm_elastic.daemon.optimizer.models.prior import Prior
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.metrics import summary
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob, read

SHIPPED = Settings(mode="act")
GPUS = pollux_artifact.NODES * pollux_artifact.PER_NODE


@dataclass(frozen=True)
class Row:
    """A policy with its conditions."""

    words: str
    ours: pollux_daemon.Ours | None = None
    theirs: str = ""
    """The artifact's policy, if it is that; at 30 s a move."""


def _ours(words: str, pause_s: float = 5.0, **more: Any) -> Row:
    settings = replace(SHIPPED, **more.pop("settings", {}))
    return Row(f"{words}, {pause_s:g} s a move", pollux_daemon.Ours(settings, pause_s=pause_s, **more))


ROWS = {
    "fifo": Row("first come, first served, tuned sizes, 30 s", theirs="fifo"),
    "tiresias": Row("Tiresias, tuned sizes, 30 s", theirs="tiresias"),
    "optimus": Row("Optimus, true curves, tuned batches, 30 s", theirs="optimus"),
    "pollux": Row("Pollux, exact measurements, 30 s", theirs="pollux"),
    "ours-30": _ours("as shipped", 30.0),
    "ours": _ours("as shipped"),
    "no-history": _ours("programs not learned at jobs' ends", history=False),
    "paid-batch": _ours("the batch alone as a move", batch_pause_s=5.0),
    "alike": _ours("shorter_first = 0", settings={"shorter_first": 0.0}),
    "wrong-work": _ours("remaining work wrong by up to two", work_error=2.0),
    "tuned": _ours("scripts ask for the tuned sizes", asked="tuned"),
    "tuned-smaller": _ours("the same, first_size smallest", asked="tuned", settings={"first_size": "smallest"}),
    "oracle-30": _ours("true curves", 30.0, learned=False),
    "oracle": _ours("true curves", learned=False),
}
USUAL = [name for name in ROWS if name != "pollux"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifact", type=Path, required=True, help="checkout with simulator/simulator.py")
    parser.add_argument("--workloads", default="1,2,3,4", help="numbers of the artifact's workloads")
    parser.add_argument("--rows", default=",".join(USUAL), help=f"of {', '.join(ROWS)}")
    parser.add_argument("--profiles", type=Path, nargs="+", help="measured tables: a prior without the own program")
    parser.add_argument("--own", action="store_true", help="only compare our own simulator with the artifact's")
    args = parser.parse_args()
    module, files = pollux_artifact.load(args.artifact), _files(args.artifact, args.workloads)
    if args.own:
        agreement(module, files)
        return 0
    published = _published(args.artifact, "pollux", files)
    print(f"mean completion in s on workloads {args.workloads}, its share of Pollux's; {POLLUX_GOALS}")
    print(_line("Pollux, exact measurements, 30 s (published)", published, published))
    base = _left_out(args.profiles, module) if args.profiles else None
    for name in args.rows.split(","):
        row = ROWS[name]
        if row.ours and base:
            row = replace(row, ours=replace(row.ours, base=base))
        found = [completed(module, file, row) for file in files]
        means = [math.fsum(times) / len(times) for times, _ in found]
        times, moves = zip(*found, strict=True)
        print(_line(row.words, means, published, times, moves), flush=True)
    for pause_s in (5.0, 30.0):
        bounds = [_bound(module, file, pause_s) for file in files]
        print(_line(f"no policy is below (fluid), {pause_s:g} s a start", bounds, published), flush=True)
    return 0


def _files(folder: Path, numbers: str) -> list[Path]:
    return [next(folder.rglob(f"workloads/workload-{number}.csv")) for number in numbers.split(",")]


def _published(folder: Path, policy: str, files: Sequence[Path]) -> list[float]:
    found = json.loads(next(folder.rglob(f"results-jobload/{policy}-1.0/summary.json")).read_text())["avgs"]
    return [float(found[file.stem]) for file in files]


def _line(
    words: str, means: Sequence[float], published: Sequence[float],
    times: Sequence[Sequence[float]] = (), moves: Sequence[float] = (),
) -> str:  # fmt: skip
    shares = [mean / other for mean, other in zip(means, published, strict=True)]
    tails = " ".join(f"{sorted(each)[int(0.99 * len(each))] / 3600:.1f}" for each in times)
    more = f"  p99 {tails} h, {sum(moves) / len(moves):.1f} moves a job" if times else ""
    each = " ".join(f"{mean:>6.0f} {share:>5.3f}" for mean, share in zip(means, shares, strict=True))
    return f"{words:<48} {each}   mean {sum(shares) / len(shares):.3f}{more}"


def completed(module: ModuleType, file: Path, row: Row) -> tuple[list[float], float]:
    """(completion times in s, moves a job) of one workload."""
    pause_s = row.ours.pause_s if row.ours else 30.0
    with pollux_artifact.paused(module, pause_s):
        cluster, policy = pollux_daemon.cluster(module, file, row.ours or row.theirs)
        while not cluster.all_complete():
            cluster.step(60)
    times = [job.completion_time - job.submission_time for job in cluster.jobs]
    moves = policy.moves if row.ours else sum(job.num_restarts or 0 for job in cluster.jobs)
    return times, moves / len(times)


def _left_out(folders: Sequence[Path], module: ModuleType) -> dict[str, Prior]:
    """For each program the prior of all the others' tables."""
    known = [profile for profile in profiles.load(*folders) if profile.micro_known]
    return {
        name: bench_models.learned_from([p for p in known if p.app not in (name, _ALIKE.get(name))])
        for name in module.APPLICATIONS
    }


_ALIKE = {"imagenet": "resnet50"}


def _bound(module: ModuleType, file: Path, pause_s: float) -> float:
    batch = {"ncf": pollux_artifact.NCF_BATCH}
    needs = {name: fluid_bound.need(app, batch.get(name, 0)) for name, app in module.APPLICATIONS.items()}
    with file.open(newline="") as rows:
        jobs = [(float(row["time"]), needs[row["application"]]) for row in csv.DictReader(rows)]
    return fluid_bound.mean_bound(jobs, GPUS, pause_s)


def agreement(module: ModuleType, files: Sequence[Path]) -> None:
    """The means of our own simulator beside the artifact's: the same policies, 30 s a move and a start, every 60 s."""
    programs = load_profiles(files[0].parents[1] / "traces")
    for name, app in module.APPLICATIONS.items():  # one is held below what its tables go to
        programs[name].micro_range = int(app.min_local_bsz), int(app.max_local_bsz)
    same = SimulationSettings(GPUS, pollux_artifact.PER_NODE, pause_s=30.0, start_s=30.0)
    print(f"mean completion in s on {', '.join(file.stem for file in files)}; goal: {OWN_GOAL:.0%} off at most")
    kinds: dict[str, tuple[Row, Callable[[list[TraceJob]], list[TraceJob]], str, SimulationSettings]] = {
        "FIFO": (ROWS["fifo"], _tuned, "backfill", same),
        "Tiresias": (ROWS["tiresias"], _tuned, "feedback", same),
        "ours, learning": (_ours("as shipped", 30.0, history=False), _one, "auto", replace(same, learned=True)),
        "ours, true curves": (ROWS["oracle-30"], _one, "auto", same),
    }
    for words, (row, asks, policy, settings) in kinds.items():
        theirs = [math.fsum(times) / len(times) for times, _ in (completed(module, file, row) for file in files)]
        traces = [asks(read(file.read_text(), file.name)) for file in files]
        run = simulate_feedback if policy == "feedback" else partial(simulate, policy=policy)
        own = [summary(run(trace, programs, settings=settings)[0]).mean_s for trace in traces]
        off = " ".join(f"{100 * (a / b - 1):+.1f} %" for a, b in zip(own, theirs, strict=True))
        print(f"{words:<20} own {[round(x) for x in own]}  artifact {[round(x) for x in theirs]}  {off}", flush=True)


def _tuned(trace: list[TraceJob]) -> list[TraceJob]:
    return trace


def _one(trace: list[TraceJob]) -> list[TraceJob]:
    return [pollux_daemon.asks(row, "one") for row in trace]


if __name__ == "__main__":
    raise SystemExit(main())
