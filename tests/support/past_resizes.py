"""A history of jobs that were resized for days, in a store, and what `selastic acct` makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from store_records import BASE, DECISION, JOB, RESIZE

from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.daemon.reports.history import acct
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import EventKind, ResizeState
from slurm_elastic.protocol.messages import Piece, Report

DAY = 86400.0
STEPS = (ResizeState.ACCEPTED, ResizeState.READY, ResizeState.RUNNING, ResizeState.DONE)


def lives(store: Store, job_ids: Iterable[int], days: int, resizes: int) -> None:
    """Jobs that begin at 0 and are resized so often in each day, from one size to another of three; each measured by
    the hour."""
    for job_id in job_ids:
        store.jobs.upsert(replace(JOB, job_id=job_id))
        pieces = [
            (replace(BASE, slurm_job_id=job_id),),
            (Piece(job_id, "base", ("n1",), 4),),
            (Piece(job_id, "base", ("n3",), 1),),
        ]
        store.events.add(job_id, EventKind.REGISTERED, "supervisor", {}, 1.0)
        store.allocations.note(job_id, 0, pieces[0], 64, 1.0, step=0, samples=0)
        for number in range(1, days * resizes):
            at = number * DAY / resizes
            store.decisions.save(at, [replace(DECISION, job_id=job_id, at=at, gpus_to=number)])
            order = store.resizes.begin(replace(RESIZE, job_id=job_id), at)
            for state in STEPS:
                store.resizes.advance(order.id, state, at=at)
                store.events.add(job_id, EventKind.of(state), "supervisor", {"resize": order.id}, at)
            held = pieces[number % 3]
            store.allocations.note(
                job_id, number, held, 64, at, 0.5, "grow_idle", order.id, step=number * 10, samples=number * 640
            )
        reports = [
            Report(1, hour * 3600.0 + gpus, gpus, 1, 64, 16, 1, 1, 0.1, 0.1, 640.0, hour, hour * 64)
            for hour in range(24 * days)
            for gpus in (4, 8)
        ]
        store.reports.submit(job_id, reports, days * DAY).result()
    store.retention.roll_up(days * DAY)


def sums(store: Store, job_id: int) -> dict[tuple[int, int], list[float]]:
    """Of each day and size what `acct` makes of it: GPU-hours, samples, steps, pause."""
    found: dict[tuple[int, int], list[float]] = {}
    for row in acct(store, Viewer(0, admin=True), 10 * DAY, job=[job_id]):
        figures = row.gpu_hours or 0.0, row.samples or 0, row.steps or 0, row.pause_s or 0.0
        before = found.setdefault((int((row.start or 0.0) // DAY), row.gpus), [0.0] * 4)
        found[int((row.start or 0.0) // DAY), row.gpus] = [
            round(a + b, 6) for a, b in zip(before, figures, strict=True)
        ]
    return found


def count(store: Store, table: str) -> int:
    """How many rows a table has."""
    with store._db.read() as connection:
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() or 0)
