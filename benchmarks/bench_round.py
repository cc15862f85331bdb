"""One round of selasticd at the size of a large cluster: time, memory, and how often Slurm is asked.

    python benchmarks/bench_round.py [--jobs N] [--nodes N] [--rigid 200] [--rounds 5] [--anew 0.1] [--reports 8]
        [--rest] [--restart] [--check]

Without --jobs 5,000 on 1,000 nodes and then 10,000 on 2,000, each in a process of its own, beside the goals; then both
at rest.
Slurm's answers are synthesised in the form that squeue and sinfo print and come through two small programs of their
names, so that the real client, parsers, registry, store and planner run on them. Every job is elastic and reports; the
waiting ones are ordinary. `first` is from opening the store to the end of the first round: models are fitted, records
are read, and evidence is written for every job; with `--restart` an earlier daemon has done so. Before each later
round every job has less time left and reports, as running ones do: a share of `--anew` another speed than so far, the
others what they have reported before. Most jobs would grow, and few may in one round, so that all are planned and
placed again each time; what has begun stays under way. At rest (`--rest`) no GPU
is free, nobody reports another speed than before, and nothing moves: most rounds of a real cluster. Memory is the
daemon's largest resident size, and beside it what that is above the interpreter with its libraries. `--check` ends with
status 1 when a later round takes more than 2 s of CPU or two queries, or the memory is over 150 MB.
Limit: Slurm's own time for its answers is not in it; 5,000 jobs take squeue about 0.2 s. Jobs have ten reports each:
one that has trained for a quarter of an hour keeps 4.8 kB for each configuration that it was measured at, one that has
trained for two hours has sent some 1,440 (`--reports 1440`).
"""

from __future__ import annotations

import argparse
import random
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from slurm_elastic.daemon.rounds.job_registry import JobRegistry
from slurm_elastic.daemon.rounds.loop import Rounds
from slurm_elastic.daemon.rounds.waiters import Waiters
from slurm_elastic.daemon.selasticd.main import tune_interpreter
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm import CommandClient
from slurm_elastic.daemon.slurm.parse import JOB_FIELDS, NODE_FIELDS
from slurm_elastic.daemon.slurm.snapshot_cache import SnapshotCache
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.messages import Piece, Report

GPUS = 8
MOST_S, MOST_MB, QUERIES = 2.0, 150.0, 2
SIZES = {5000: 1000, 10_000: 2000}
"""Running jobs, and the nodes that they are measured on."""
GOALS_S, GOAL_MB = {5000: 0.4, 10_000: 1.5}, 120
"""CPU seconds of a round after the first; memory above the interpreter."""
MARK, LEFT = "~SEPARATOR~", "TIME-LEFT"
RAN_S, LIMIT_S = 3600, 86400
"""How long jobs have run at the beginning, and may run."""
BEFORE = 8
"""Reports of a job at the batch that it trains at, unless told: a further one says little that is new."""
BATCH, OTHER = 512, 64
"""The batch that jobs train at: the best of their range, so that it is not changed. One that some report as well."""
PROGRAM = """#!/bin/sh
echo {name} >>{folder}/asked
case "$*" in
*"%x"*) exit 0;;  # nobody excludes nodes
-V) echo slurm 24.11.5; exit 0;;
esac
for last in "$@"; do :; done
last=${{last%'~'}}
left=$(($(cat {folder}/ends) - $(date +%s)))
left="$((left / 3600)):$((left / 60 % 60)):$((left % 60))"
exec sed "s/{mark}/~${{last##*'~'}}~/g;s/{left}/$left/" {folder}/{name}.txt
"""
"""Slurm's limits and reservations are asked for by scontrol once a minute; here there are none."""


def job_row(number: int, state: str, nodes: list[int], gpus: int, comment: str) -> dict[str, str]:
    """A job as squeue prints it; a running one holds `gpus` on its one node, a waiting one wants whole nodes."""
    count = max(1, len(nodes)) if state == "RUNNING" else max(1, gpus // GPUS)
    now = str(int(time.time()) - RAN_S)
    running = {"NodeList": f"n{nodes[0]}", "BatchHost": f"n{nodes[0]}", "StartTime": now} if nodes else {}
    return {
        **dict.fromkeys(JOB_FIELDS, "N/A"),
        **dict(JobID=str(number), ArrayJobID=str(number), State=state, UserName=f"user{number % 300}"),
        **dict(UserID=str(1000 + number % 300), Account="research", Partition="main", QOS="normal"),
        **dict(Reason="None" if nodes else "Resources", NumNodes=str(count), NumTasks="1", NumCPUs=str(gpus)),
        **dict(NodeList="", BatchFlag="1", BatchHost="n/a", PriorityLong=str(4294901759 - number)),
        "tres-alloc": f"cpu={gpus},mem={gpus}G,node={count},billing=1,gres/gpu={gpus},gres/gpu:a100={gpus}",
        "tres-per-node": f"gres:gpu:a100:{gpus // count}",
        **dict(TimeLimit="1-00:00:00", TimeLeft=LEFT if nodes else "1-00:00:00", RestartCnt="0"),
        **dict(SubmitTime=now, EligibleTime=now),
        **dict(Dependency="(null)", ReqNodes="", Feature="(null)", Reservation="(null)", OverSubscribe="OK"),
        **dict(Name="train", Comment=comment),
        **running,
    }


def node_row(number: int, used: int) -> dict[str, str]:
    state = "allocated" if used == GPUS else "mixed" if used else "idle"
    return {
        **dict.fromkeys(NODE_FIELDS, "N/A"),
        **dict(NodeList=f"n{number}", StateComplete=state, PartitionName="main"),
        **dict(CPUsState=f"{used}/{64 - used}/0/64", Memory="512000", AllocMem=str(used * 1024)),
        **dict(Gres=f"gpu:a100:{GPUS}", GresUsed=f"gpu:a100:{used}(IDX:0-{max(0, used - 1)})"),
        **dict(Features="(null)", PriorityTier="1", PreemptMode="OFF"),
    }


def printed(rows: list[dict[str, str]], fields: tuple[str, ...]) -> str:
    return "".join(MARK.join(row[name] for name in fields) + MARK + MARK + "\n" for row in rows)


def cluster(folder: Path, jobs: int, nodes: int, rigid: int) -> list[Piece]:
    """Write Slurm's answers and the programs that give them; what each running job holds."""
    used = [0] * nodes
    rows, pieces = [], []
    for number in range(1, jobs + 1):
        node = (number - 1) % nodes
        used[node] += 1
        rows.append(job_row(number, "RUNNING", [node + 1], 1, "elastic:gpus=1-8,batch=64-512"))
        pieces.append(Piece(number, "base", (f"n{node + 1}",), 1, "a100"))
    rows += [job_row(jobs + k, "PENDING", [], 8 * (1 + k % 4), "") for k in range(1, rigid + 1)]
    (folder / "squeue.txt").write_text(printed(rows, JOB_FIELDS))
    node_rows = [node_row(number + 1, count) for number, count in enumerate(used)]
    (folder / "sinfo.txt").write_text(printed(node_rows, NODE_FIELDS))
    (folder / "scontrol.txt").touch()
    (folder / "ends").write_text(str(int(time.time()) - RAN_S + LIMIT_S))
    for name in ("squeue", "sinfo", "scontrol"):
        program = folder / name
        program.write_text(PROGRAM.format(name=name, folder=folder, mark=MARK, left=LEFT))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return pieces


def train(store: Store, pieces: list[Piece], count: int) -> None:
    """Every job has registered and reported at three batches, so often at its own."""
    for piece, speed in zip(pieces, speeds(len(pieces)), strict=True):
        store.allocations.note(piece.slurm_job_id, 1, (piece,), BATCH, time.time() - RAN_S, reason="registered")
        reports = [said(batch, speed(batch), step) for step, batch in enumerate((128, OTHER, *[BATCH] * count), 1)]
        store.reports.submit(piece.slurm_job_id, reports, time.time()).result()


def speeds(jobs: int) -> list[Callable[[int], float]]:
    """The step time of each job by its batch, in seconds."""
    chance = random.Random(1)
    drawn = [(chance.uniform(0.5, 4.0) / 1000, chance.uniform(0.01, 0.05)) for _ in range(jobs)]
    return [lambda batch, slope=slope, base=base: base + slope * batch for slope, base in drawn]


def said(batch: int, seconds: float, step: int) -> Report:
    """A report of so many seconds for a step."""
    return Report(1, time.time(), 1, 1, batch, batch, 1, 10, seconds, seconds, batch / seconds, step, 640 * step, 0)


def prepare(
    folder: Path, pieces: list[Piece], settings: Settings, reports: int = BEFORE, planned: bool = False
) -> None:
    """Fill the database by another process's life: what filling costs is not the daemon's memory. planned: a round has
    been before."""
    with Store.open(settings.database_url) as store:
        jobs = SnapshotCache(CommandClient(path=f"{folder}:/usr/bin:/bin"))
        registry = JobRegistry(store, settings)
        registry.update(jobs.snapshot(), jobs.end_states)
        train(store, pieces, reports)
        for piece in pieces if planned else ():
            registry.heard(piece.slurm_job_id, 0)
        if planned:
            Rounds(jobs, store, settings, registry, Waiters()).run()


def report_all(store: Store, jobs: int, share: float, chance: random.Random) -> None:
    """Every job reports, and that share of them is slower or faster than it was at the other batch."""
    waiting, anew = [], set(chance.sample(range(1, jobs + 1), round(share * jobs)))
    for number, speed in enumerate(speeds(jobs), 1):
        step = int(time.time() * 1000)
        new = said(OTHER, chance.uniform(0.03, 0.4), step) if number in anew else said(BATCH, speed(BATCH), step)
        waiting.append(store.reports.submit(number, [new], time.time()))
    for future in waiting:
        future.result()


def measure(
    folder: Path, settings: Settings, count: int, running: int, share: float, rest: bool = False
) -> tuple[list[tuple[float, float]], float, int]:
    """(wall seconds, CPU seconds) of each round, largest resident MB, most queries of one round after the first."""
    asked, queries, chance = folder / "asked", [], random.Random(2)
    began = time.perf_counter(), time.process_time()
    with Store.open(settings.database_url) as store:
        jobs = SnapshotCache(CommandClient(path=f"{folder}:/usr/bin:/bin"))
        registry = JobRegistry(store, settings)
        for number in range(1, running + 1):  # their supervisors have spoken to this daemon
            registry.heard(number, 0)
        rounds = Rounds(jobs, store, settings, registry, Waiters())
        times = []
        tune_interpreter()
        for number in range(count):
            if number:
                report_all(store, running, share, chance)
            asked.unlink(missing_ok=True)
            wall, cpu = (time.perf_counter(), time.process_time()) if number else began
            rounds.run()
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
            assert not rounds.trouble, rounds.trouble
            queries.append(len(asked.read_text().split()))
        peak = largest_mb()
        reasons = {row.reason for row in store.decisions.current()}
        assert not (rest and store.resizes.under_way()), "something moves in a cluster at rest"
        assert "keep_unregistered" not in reasons, "no plan was made: the daemon does not take the jobs for registered"
    return times, peak, max(queries[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("jobs", 0), ("nodes", 0), ("rigid", 200), ("rounds", 5), ("reports", BEFORE)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--anew", type=float, default=0.1)
    parser.add_argument("--rest", action="store_true")
    parser.add_argument("--restart", action="store_true", help="an earlier daemon has had a round")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--mode", default="act")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rest:  # no GPU of the last node is free
        args.anew, args.jobs = 0.0, args.jobs - args.jobs % GPUS
    if args.folder:
        return report(args)
    if not args.jobs:
        at_rest = [["--rest"]] if args.rest else [[], ["--rest"]]
        own = [[*rest, "--jobs", str(jobs)] for rest in at_rest for jobs in SIZES]
        again = [[sys.executable, __file__, *sys.argv[1:], *more] for more in own]
        return max(subprocess.run(command, check=False).returncode for command in again)
    # The database is filled in memory, where commits cost nothing; the rounds have it on the disk.
    with tempfile.TemporaryDirectory(prefix="bench-round-") as name:
        folder = Path(name)
        pieces = cluster(folder, args.jobs, nodes_of(args), args.rigid)
        with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
            prepare(folder, pieces, Settings(state_dir=memory, mode="act"), args.reports, args.restart)
            (folder / "selastic.db").write_bytes((Path(memory) / "selastic.db").read_bytes())
        return subprocess.run([sys.executable, __file__, *sys.argv[1:], "--folder", name], check=False).returncode


def largest_mb() -> float:
    """The largest resident size of this program; what getrusage says is at least that of the process that ran it."""
    return int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def nodes_of(args: argparse.Namespace) -> int:
    """A job of one GPU has no free one beside it at rest, else three for five jobs."""
    return args.nodes or max(1, args.jobs // GPUS if args.rest else args.jobs // 5)


def report(args: argparse.Namespace) -> int:
    settings = Settings(state_dir=str(args.folder), mode=args.mode)
    before = largest_mb()
    times, peak, queries = measure(args.folder, settings, args.rounds, args.jobs, args.anew, args.rest)
    about = "at rest" if args.rest else f"before each round {args.anew:.0%} measured anew"
    print(
        f"{args.jobs} running jobs, all elastic, {args.rigid} waiting, {nodes_of(args)} nodes of {GPUS} GPUs; {about}"
    )
    for number, (wall, cpu) in enumerate(times):
        print(f"{'first' if number == 0 else f'{number + 1:5d}'}  {wall:6.2f} s  CPU {cpu:6.2f} s")
    steady, least = max(cpu for _, cpu in times[1:]), min(cpu for _, cpu in times[1:])
    goal = f" (goal {GOALS_S[args.jobs]:g} s)" if args.jobs in GOALS_S else ""
    above = f"{peak - before:.0f} MB above the interpreter (goal {GOAL_MB})"
    print(f"rounds after the first: CPU {least:.2f} to {steady:.2f} s{goal}")
    print(f"memory {peak:.0f} MB, {above}, {queries} queries to Slurm a round", flush=True)
    return int(args.check and (steady > MOST_S or peak > MOST_MB or queries > QUERIES))


if __name__ == "__main__":
    sys.exit(main())
