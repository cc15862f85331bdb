"""What a year of a cluster takes in the database: whole lives of jobs, stored as the daemon stores them, are weighed.

    python benchmarks/bench_history.py [--gpus 1000] [--gpus-per-job 4] [--hours 24] [--resizes 8] [--jobs 200]

A life: as many resizes as given, each with its order, its four steps, its allocation, and three decisions with the
evidence that the planner wrote for jobs of a full cluster; two configurations measured in every hour, rolled up into
hourly records. `single` is what the reports of the last hours take beside that (`reports_keep_h`, one in 5 s).
Limit: what a year takes follows from how many jobs there are and how often each is resized: say yours.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path

import bench_round

from slurm_elastic.daemon.rounds.job_registry import JobRegistry
from slurm_elastic.daemon.rounds.loop import Rounds
from slurm_elastic.daemon.rounds.waiters import Waiters
from slurm_elastic.daemon.selasticd.daemon import STEPS_KEEP_S
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm import CommandClient
from slurm_elastic.daemon.slurm.snapshot_cache import SnapshotCache
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import EventKind, ResizeState
from slurm_elastic.protocol.messages import Piece, Report, Resize

HOUR_S = 3600.0
STEPS = ("accepted", "submitted", "granted", "ready", "running", "done")


def live(store: Store, piece: Piece, hours: int, resizes: int) -> None:
    """One job's life: resizes spread over it, and what was measured in each hour."""
    job_id = piece.slurm_job_id
    decision = store.decisions.last(job_id)
    assert decision is not None, "the round has decided on it"
    for number in range(resizes):
        at = (number + 1) * hours * HOUR_S / (resizes + 1)
        for gpus in (1, 2, 3):
            row = dataclasses.replace(decision, gpus_from=1 + number % 2, gpus_to=gpus + number % 5, mode="act")
            store.decisions.save(at, [row])
        order = store.resizes.begin(Resize(0, job_id, (piece,), (), 4, 256, "grow_share", 60.0), at)
        detail = {"resize": order.id, "gpus": 4, "batch": 256, "reason": "grow_share"}
        for step in STEPS:
            store.resizes.advance(order.id, ResizeState(step), at=at)
            store.events.add(job_id, EventKind.of(ResizeState(step)), "supervisor", detail, at)
        store.allocations.note(job_id, number + 2, (piece,), 256 + 64 * (number % 3), at, 0.5, "grow_share", order.id)


def measured(store: Store, piece: Piece, hours: int) -> None:
    """A report of each of two configurations in every hour."""
    reports = [
        Report(1, hour * HOUR_S + batch, 1, 1, batch, batch, 1, 10, 0.1, 0.1, batch / 0.1, 1000 * hour + batch, 0, 0)
        for hour in range(hours)
        for batch in (64, 128)
    ]
    store.reports.submit(piece.slurm_job_id, reports, hours * HOUR_S).result()


def size(store: Store) -> float:
    """MB of the database without its free pages."""
    with store._db.read() as connection:
        pages, free, each = (
            connection.exec_driver_sql(f"PRAGMA {name}").scalar() or 0
            for name in ("page_count", "freelist_count", "page_size")
        )
    return float((pages - free) * each / 1e6)


def weigh(folder: Path, jobs: int, hours: int, resizes: int) -> tuple[float, float, float]:
    """MB of a life, of what is left of it once it is thinned, of one single report."""
    settings = Settings(state_dir=str(folder), mode="review")
    pieces = bench_round.cluster(folder, jobs, max(1, jobs // 6), jobs // 10)
    with Store.open(settings.database_url) as store:
        empty = size(store)
        client = SnapshotCache(CommandClient(path=f"{folder}:/usr/bin:/bin"))
        rounds = Rounds(client, store, settings, JobRegistry(store, settings), Waiters())
        JobRegistry(store, settings).update(client.snapshot())
        bench_round.train(store, pieces)
        assert not (rounds.run() or rounds.trouble), rounds.trouble
        for piece in pieces:
            live(store, piece, hours, resizes)
        before = size(store)
        for piece in pieces:
            measured(store, piece, hours)
        single = (size(store) - before) / (jobs * hours * 2)
        store.retention.roll_up(1e12)
        whole = (size(store) - empty) / jobs
        for piece in pieces:
            store.jobs.end(piece.slurm_job_id, "COMPLETED", hours * HOUR_S)
        while store.retention.prune_decisions(1e12, mode="act") or not store.thinning.thin(1e12):
            pass
        return whole, (size(store) - empty) / jobs, single


def main() -> None:
    """Print what a year takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("gpus", 1000), ("gpus-per-job", 4), ("hours", 24), ("resizes", 8), ("jobs", 200)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    # In memory: what is weighed is the file, not the time that it takes.
    with tempfile.TemporaryDirectory(prefix="bench-history-", dir="/dev/shm") as name:
        whole, old, single = weigh(Path(name), args.jobs, args.hours, args.resizes)
    at_once = args.gpus / args.gpus_per_job
    lives, kept = at_once * 365 * 24 / args.hours, Settings().reports_keep_h
    print(f"{args.gpus} GPUs, {at_once:.0f} jobs at any time, {args.hours} h and {args.resizes} resizes each")
    week = STEPS_KEEP_S / (365 * 86400)
    print(f"a life {whole * 1e3:.1f} kB, after {STEPS_KEEP_S / 86400:.0f} days {old * 1e3:.1f} kB")
    print(f"{lives:,.0f} lives, a year: {lives * (week * whole + (1 - week) * old):,.0f} MB")
    print(f"single reports, {kept:g} to {kept + 1:g} h of them: {single * at_once * (kept + 1) * HOUR_S / 5:,.0f} MB")


if __name__ == "__main__":
    main()
