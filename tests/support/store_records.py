"""What the tests of the store store: a job, its pieces, a resize, a decision, reports."""

from __future__ import annotations

from dataclasses import fields

from sqlalchemy import select

from slurm_elastic.db import schema
from slurm_elastic.db.rows import DecisionRow, JobRow, ResizeRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import ResizeState
from slurm_elastic.protocol.messages import Piece, Report, Resize, Shape

JOB = JobRow(
    job_id=7,
    user="ada",
    uid=1000,
    name="train",
    account="lab",
    partition="gpu",
    request="elastic:gpus=1-8,batch=64-512",
    managed=True,
    reason="",
    detail="",
    submit_time=1.0,
    start_time=2.0,
    end_time=None,
    state="RUNNING",
)


def one_job(store: Store) -> None:
    """Of which the other rows here are."""
    store.jobs.upsert(JOB)


BASE = Piece(7, "base", ("n1", "n2"), 4, "a100")


COMPANION = Piece(8, "companion", ("n3",), 2, "a100")


RESIZE = Resize(0, 7, (BASE,), (Shape(1, 2, gpu_type="a100"),), 10, 640, "grow_idle", 60.0)


DECISION = DecisionRow(7, 1.0, 4, 8, 256, 512, "grow_idle", 1.5, 0.5, {"reports": 9}, [{"gpus": 6}], "companion", "act")


def report(
    step: int, at: float = 0.0, *, generation: int = 1, gpus: int = 8, batch: int = 64, time: float = 0.1
) -> Report:
    """A report of ten steps that ends at `step`."""
    return Report(
        generation=generation,
        at=at or float(step),
        gpus=gpus,
        nodes=2,
        batch=batch,
        micro_batch=8,
        accumulation=1,
        steps=10,
        step_time_median_s=time,
        step_time_p90_s=time,
        samples_per_s=batch / time,
        step=step,
        samples=step * batch,
        epoch=0,
    )


def resize_row(resize: Resize, state: str, created: float, updated: float) -> ResizeRow:
    """A resize as the store gives it: stored at one time, in its state since the other."""
    return ResizeRow.issued(resize, created).come_to(ResizeState(state), updated)


def kept_reports(store: Store, job_id: int) -> list[Report]:
    """The single reports that the store has of a job, in time order; those rolled up are gone."""
    table = schema.reports
    query = select(table).where(table.c.job_id == job_id).order_by(table.c.at)
    with store._db.read() as connection:
        rows = connection.execute(query).all()
    return [Report(**{item.name: row._mapping[item.name] for item in fields(Report)}) for row in rows]
