"""Records: what is read of JSON, what others see, and which columns a field has."""

from __future__ import annotations

import json
import typing
from dataclasses import asdict, fields

import pytest

from slurm_elastic.protocol.answers.explain import Evidence, OtherMove
from slurm_elastic.protocol.answers.history import Allocation, PlanRow
from slurm_elastic.protocol.answers.record import (
    Column,
    UnreadableRecord,
    about,
    columns,
    known_values,
    made_from,
    read,
    read_all,
    record,
    redacted,
)
from slurm_elastic.protocol.answers.status import JobStatus


@record
class Sample:
    """A record."""

    job_id: int = about("job id", Column("JobID"), public=True)
    name: str | None = about("its name", Column("Name", "JobName"))
    rate: float | None = about("its rate", Column("Rate", form="{:.1f}".format), default=None)


def test_what_is_not_of_its_type_is_not_known() -> None:
    """A value of another type, a missing one and a key of a newer version break nothing; a missing id does."""
    assert read(Sample, {"job_id": 7, "rate": "fast", "newer": 1}) == Sample(job_id=7, name=None)
    assert read(Sample, {"job_id": 7, "rate": 2, "name": "x"}) == Sample(job_id=7, name="x", rate=2.0)
    assert read_all(Sample, [{"job_id": 7}, "junk", {}, {"job_id": True}]) == (Sample(job_id=7, name=None),)
    for wrong in ({}, [], "junk", None, {"job_id": "7"}):
        with pytest.raises(UnreadableRecord, match="Sample"):
            read(Sample, wrong)


def test_the_store_keeps_what_is_known() -> None:
    """Evidence is stored without what is not known, and reads back as it was."""
    evidence = Evidence(idle_gpus=0, others=(OtherMove(job_id=7, gpus_from=1),), tried=True)
    stored = json.loads(json.dumps(known_values(evidence)))
    assert stored == {"idle_gpus": 0, "others": [{"job_id": 7, "gpus_from": 1}], "tried": True}
    assert read(Evidence, stored) == evidence and read(Evidence, asdict(evidence)) == evidence


def test_columns_and_redaction_come_from_the_fields() -> None:
    """A field's columns, in its order; others see what is public."""
    made = columns(Sample)
    assert [(column.name, column.header, column.left) for column in made] == [
        ("JobID", "JobID", False), ("Name", "JobName", True), ("Rate", "Rate", False)
    ]  # fmt: skip
    row = Sample(job_id=7, name="x", rate=2.0)
    assert [column.text(row) for column in made] == ["7", "x", "2.0"]
    assert [column.text(redacted(row)) for column in made] == ["7", "", ""]
    assert [column.header for column in columns(Sample, capitals=True)] == ["JOBID", "JOBNAME", "RATE"]


@pytest.mark.parametrize("kind", [JobStatus, Allocation, PlanRow, OtherMove])
def test_what_others_do_not_see_may_be_none(kind: type) -> None:
    """A record of another user's job is of its own type: only what is public is always there."""
    hints = typing.get_type_hints(kind)
    for item in fields(kind):
        assert item.metadata["help"]
        assert item.metadata["public"] or type(None) in typing.get_args(hints[item.name]), item.name


@record
class Row:
    """A row of the store, with a part of Named."""

    job_id: int
    name: str


@record
class Noted:
    """A row that may be missing."""

    name: str
    note: str | None


@record
class Named:
    """A record whose note comes from elsewhere."""

    job_id: int
    name: str
    note: str | None


def test_a_forgotten_field_is_refused() -> None:
    """A field without a source was forgotten, whatever else is missing; what a missing row would have is not known."""
    row = Row(job_id=7, name="x")
    assert made_from(Named, row, note="y") == Named(job_id=7, name="x", note="y")
    assert made_from(Named, row, Noted) == Named(job_id=7, name="x", note=None)
    assert made_from(Named, row, Noted(name="z", note="y")) == Named(job_id=7, name="z", note="y")
    for rows in ([row], [row, Row]):
        with pytest.raises(TypeError, match="note"):
            made_from(Named, *rows)
