"""Our policy as shipped beside Pollux in sixteen cells: loads, pauses, what scripts ask for, what is known of the work.

    python benchmarks/bench_policy.py --artifact FOLDER [--cells NAMES] [--workloads 7] [--set NAME=VALUE] [--theirs]
    python benchmarks/bench_policy.py --artifact FOLDER --run-pollux FILE --cells NAME [--workloads 8]

FOLDER: a checkout of github.com/petuum/adaptdl, branch osdi21-artifact. Ours run in our own simulator; with --theirs in
the artifact's, unmodified (by build/pollux/bin/python, which `make bench-pollux` makes), which says up to 7 % more.
Moves and starts cost both sides the same. Pollux's, Optimus' and Tiresias' figures at 30 s are the artifact's own raw
results (results-jobload/), job by job; at 5 s Pollux has to be run (--run-pollux, by that Python, half an hour of CPU
and more for a workload), and what comes of it is kept in pollux_at_5_s.json.

Rules are chosen on CHOOSING alone; LOOK is for a look once they are. 8 was looked at twice, 7 once.
Of load 1, workloads 1 to 6 had been used for choosing before this benchmark was there. Curves are learned online from
reports with noise, nothing from jobs that have ended; Pollux measures exactly.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import _setup  # noqa: F401
from pollux_artifact import NCF_BATCH, NODES, PER_NODE
from public_data import load_profiles

from slurm_elastic.daemon.planner.running.state import Remaining
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.simulator import job_states
from slurm_elastic.daemon.simulator.jobs import SimulatedJob, SimulationSettings
from slurm_elastic.daemon.simulator.programs import Program
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob, read

CHOOSING, LOOK = (1, 2), (7,)
MEAN, MEAN_OF_ALL, P99, SLOWER = 0.95, 0.90, 1.0, 1.5
"""Goals: the mean completion time of Pollux's in every cell and over all, its 99th percentile, and how many times as
long as under Pollux 99 of 100 jobs take at most."""
KEPT = Path(__file__).with_name("pollux_at_5_s.json")


@dataclass(frozen=True)
class Cell:
    """Conditions, the same for both sides."""

    load: float
    asks: str = "one"
    """What scripts ask for: one GPU, the sizes tuned for the program, or what users ask (workloads-realistic/)."""
    work_error: float = 1.0
    """What a script says of its remaining work is wrong by up to this factor; infinite: it says nothing."""
    pause_s: float = 30.0

    def file(self, folder: Path, workload: int) -> Path:
        kind = "-realistic" if self.asks == "users" else "" if self.load == 1 else f"-{self.load:.1f}"
        return folder / f"workloads{kind}/workload-{workload}.csv"


LOADS = {"half": 0.5, "full": 1.0, "more": 1.5, "double": 2.0}
CELLS = {
    **{f"{name}-one": Cell(load) for name, load in LOADS.items()},
    **{f"{name}-tuned": Cell(load, "tuned") for name, load in LOADS.items()},
    **{f"{name}-unknown": Cell(load, work_error=math.inf) for name, load in LOADS.items()},
    "full-users": Cell(1.0, "users"),
    "full-wrong": Cell(1.0, work_error=2.0),
    "half-5": Cell(0.5, pause_s=5.0),
    "full-5": Cell(1.0, pause_s=5.0),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifact", type=Path, required=True, help="checkout with simulator/simulator.py")
    parser.add_argument("--workloads", default=",".join(map(str, LOOK)), help="numbers of the artifact's workloads")
    parser.add_argument("--cells", default=",".join(CELLS), help=f"of {', '.join(CELLS)}")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another setting than shipped")
    parser.add_argument("--theirs", action="store_true", help="run in the artifact's simulator")
    parser.add_argument("--run-pollux", type=Path, metavar="FILE", help="run Pollux in these cells, and add it to FILE")
    args = parser.parse_args()
    folder, changes = args.artifact / "simulator", dict(change.split("=", 1) for change in args.set)
    programs = load_profiles(folder / "traces")
    gc.disable()
    print(f"goals: mean {MEAN} of Pollux's in every cell, {MEAN_OF_ALL} over all; p99 {P99}; 99 of 100 jobs at most")
    print(f"{SLOWER} times as long; * missed. Cell, workload: our mean in s; of Pollux's mean; of its p99; job by job")
    print("its time under Pollux, 99 of 100 and the worst; FIFO, Optimus, Tiresias of Pollux's mean")
    shares = list[float]()
    for name in args.cells.split(","):
        for workload in map(int, args.workloads.split(",")):
            cell = CELLS[name]
            if args.run_pollux:
                _keep(args.run_pollux, _key(cell, workload), _by_artifact(args.artifact, cell, workload, "pollux"))
                continue
            if args.theirs:
                times = _by_artifact(args.artifact, cell, workload, _ours(cell, changes))
            else:
                times = _by_ours(cell, cell.file(folder, workload), programs, changes)
            pollux = _published(folder, cell, workload, "pollux")
            line = f"{name:<15} {workload}  {_mean(times):>6.0f} s"
            if pollux is None:
                print(f"{line}  Pollux was not run at {cell.pause_s:g} s", flush=True)
                continue
            shares.append(_mean(times) / _mean(pollux))
            others = [
                _by_ours(cell, cell.file(folder, workload), programs, {}, "backfill"),
                *(_published(folder, cell, workload, policy) for policy in ("optimus", "tiresias")),
            ]
            beside = " ".join(f"{_mean(one) / _mean(pollux):.2f}" if one else "-" for one in others)
            print(f"{line}  {_beside(times, pollux)}  {beside}", flush=True)
    if shares:
        print(f"over all {_marked(math.fsum(shares) / len(shares), MEAN_OF_ALL)}")
    return 0


def _by_ours(
    cell: Cell, file: Path, programs: dict[str, Program], changes: dict[str, str], policy: str = "auto"
) -> dict[str, float]:
    """Completion times in s by the job's name, in our own simulator."""
    kinds = {one.name: type(getattr(SimulationSettings(1), one.name)) for one in fields(SimulationSettings)}
    settings = SimulationSettings(
        NODES * PER_NODE, PER_NODE, pause_s=cell.pause_s, start_s=cell.pause_s, learned=True,
        **{name: kinds[name](value) for name, value in changes.items()},  # type: ignore[arg-type]
    )  # fmt: skip
    rows = [_asks(row, "tuned" if policy == "backfill" else cell.asks) for row in read(file.read_text(), file.name)]
    with _told(cell.work_error):
        outcome, _ = simulate(rows, programs, policy, settings)
    return {job.trace.job_id: job.end_s - job.trace.submit_s for job in outcome.jobs}


def _asks(row: TraceJob, asks: str) -> TraceJob:
    if row.program == "ncf":  # one GPU and one batch, as in the artifact
        return replace(row, gpus=1, min_gpus=1, max_gpus=1, batch=NCF_BATCH, min_batch=NCF_BATCH, max_batch=NCF_BATCH)
    return replace(row, gpus=1, min_gpus=1, batch=0) if asks == "one" else replace(row, min_gpus=1)


@contextmanager
def _told(error: float) -> Iterator[None]:
    """What scripts say of their remaining work is wrong by up to this factor meanwhile; infinite: they say nothing."""
    own, rng, errors = job_states._remaining, random.Random(0), dict[str, float]()

    def remaining(job: SimulatedJob) -> Remaining | None:
        if math.isinf(error):
            return None
        factor = errors.setdefault(job.trace.job_id, error ** rng.uniform(-1.0, 1.0))
        told = own(job)
        return replace(told, samples=told.samples * factor)

    job_states._remaining = remaining  # type: ignore[assignment]
    try:
        yield
    finally:
        job_states._remaining = own


def _ours(cell: Cell, changes: dict[str, str]) -> Any:
    from pollux_daemon import Ours  # pandas, which only the artifact needs

    kinds = {one.name: type(getattr(Settings(), one.name)) for one in fields(Settings)}
    settings = replace(Settings(mode="act"), **{name: kinds[name](value) for name, value in changes.items()})
    asked = "one" if cell.asks == "one" else "tuned"
    return Ours(settings, pause_s=cell.pause_s, work_error=cell.work_error, history=False, asked=asked)


def _by_artifact(artifact: Path, cell: Cell, workload: int, policy: Any) -> dict[str, float]:
    """Completion times in s by the job's name, in the artifact's simulator."""
    import pollux_artifact
    import pollux_daemon

    module = pollux_artifact.load(artifact)
    with pollux_artifact.paused(module, cell.pause_s):
        cluster, _ = pollux_daemon.cluster(module, cell.file(artifact / "simulator", workload), policy)
        while not cluster.all_complete():
            cluster.step(60)
    return {job.name: float(job.completion_time - job.submission_time) for job in cluster.jobs}


def _published(folder: Path, cell: Cell, workload: int, policy: str) -> dict[str, float] | None:
    """The artifact's own times at 30 s, or those that were kept; None: never run. Users' scripts are of no account to
    Pollux, which has the same jobs then."""
    if cell.pause_s == 30.0:
        file = folder / f"results-jobload/{policy}-{cell.load:.1f}/summary.json"
        return dict(json.loads(file.read_text())["jcts"][f"workload-{workload}"])
    kept = json.loads(KEPT.read_text()) if policy == "pollux" and KEPT.exists() else {}
    return kept.get(_key(cell, workload))


def _key(cell: Cell, workload: int) -> str:
    return f"load {cell.load:g}, workload {workload}, {cell.pause_s:g} s"


def _keep(file: Path, key: str, times: dict[str, float]) -> None:
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**known, key: times}, indent=1, sort_keys=True) + "\n")


def _mean(times: dict[str, float]) -> float:
    return math.fsum(times.values()) / len(times)


def _beside(times: dict[str, float], pollux: dict[str, float]) -> str:
    ratios = sorted(times[name] / pollux[name] for name in times)
    worst = max(times, key=lambda name: times[name] / pollux[name])
    tail = _percentile(sorted(times.values())) / _percentile(sorted(pollux.values()))
    return (
        f"{_marked(_mean(times) / _mean(pollux), MEAN)}  {_marked(tail, P99)}"
        f"  {_marked(_percentile(ratios), SLOWER)}  {ratios[-1]:.1f} ({worst})"
    )


def _percentile(rising: list[float]) -> float:
    return rising[math.ceil(0.99 * len(rising)) - 1]


def _marked(share: float, goal: float) -> str:
    return f"{share:.3f}{'*' if share > goal else ' '}"


if __name__ == "__main__":
    raise SystemExit(main())
