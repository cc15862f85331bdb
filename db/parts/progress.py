"""Counting a training's progress into the row of its allocation, in one statement for all jobs of a batch.

A row holds the difference to where it began; a training that went back to a checkpoint lowers that beginning.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, bindparam, case, func, select, update

from .. import schema
from .base import Many

_ROWS = schema.allocations


class Progress(NamedTuple):
    """A stretch of training, from (`from_step`, `from_samples`) to (`step`, `samples`)."""

    job_id: int
    generation: int
    from_step: int
    from_samples: int
    step: int
    samples: int

    @property
    def key(self) -> tuple[int, int]:
        """Job and generation."""
        return self.job_id, self.generation


def _advance_statement() -> Any:
    def first(column: Any, start: str) -> ColumnElement[int]:
        known: Any = bindparam(start)
        return case((column.is_(None) | (column > known), known), else_=column)

    def grown(column: Any, reached: str, beginning: ColumnElement[int]) -> ColumnElement[int]:
        value: Any = bindparam(reached) - beginning
        return case((value > column, value), else_=column)

    first_step = first(_ROWS.c.first_step, "p_from_step")
    first_samples = first(_ROWS.c.first_samples, "p_from_samples")
    return (
        update(_ROWS)
        .where(_ROWS.c.id == bindparam("p_row"))
        .values(
            steps=grown(_ROWS.c.steps, "p_step", first_step),
            samples=grown(_ROWS.c.samples, "p_samples", first_samples),
            first_step=first_step,
            first_samples=first_samples,
        )
    )


_ADVANCE = Many(_advance_statement(), ("p_row", "p_from_step", "p_from_samples", "p_step", "p_samples"))


def allocation_of(connection: Connection, job_id: int, generation: int) -> int | None:
    """The newest row of this job and generation."""
    query = select(func.max(_ROWS.c.id)).where(_ROWS.c.job_id == job_id, _ROWS.c.generation == generation)
    row: int | None = connection.execute(query).scalar()
    return row


def advance(connection: Connection, progress: list[tuple[int, Progress]]) -> None:
    """Count progress into the rows it is given with."""
    if progress:
        _ADVANCE(connection, [(row, *item[2:]) for row, item in progress])
