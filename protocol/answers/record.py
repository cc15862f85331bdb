"""Records: what the reports are made of. A record is a frozen dataclass whose fields say, in their metadata, what they
mean, who may see them and under which columns the command line prints them; the API's JSON and its OpenAPI document,
the redaction, the tables and --json are made from the same classes. Below is what all answers about jobs have in
common: whose job it is, its id as Slurm shows it, the words of reasons, and the sentence about jobs that are not known.

Promise: what is not there, or not of its type, is read as None: not known. Limit: standard library only, since the
command line imports it in users' environments; fields are numbers, text, flags, records, and tuples of these.
"""

from __future__ import annotations

import functools
import math
import operator
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from slurm_elastic.protocol.errors import ElasticError
from slurm_elastic.protocol.request import ACCEPTED_FORM

from ..codes import Reason
from ..text.tables import Field

R = TypeVar("R")
Reader = Callable[[Any], Any]


class UnreadableRecord(ElasticError):
    """JSON that is no such record."""


@dataclass(frozen=True, slots=True)
class Column:
    """How a field is printed; a field may have several columns."""

    name: str
    """In --format."""
    heading: str = ""
    """Empty: the name."""
    help: str = ""
    """Empty: the field's."""
    form: Callable[[Any], str] = str
    """Text of the field's value, where it is known."""
    cell: Callable[[Any], str] | None = None
    """Text of a whole record, for a column that needs more than the one field; None: `form` of the field."""


def about(help: str, *columns: Column, public: bool = False, **options: Any) -> Any:
    """A field of a record. `public`: everybody may see it of everybody's job; all else is its owner's and admins'.
    `options`: those of dataclasses.field."""
    return field(metadata={"help": help, "columns": columns, "public": public}, **options)


if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    @dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(about, field))
    def record(kind: type[R]) -> type[R]:
        """Make a record of a class."""
else:
    # That nothing writes to one is the type checker's to see: a frozen dataclass takes several times as long to make.
    record = dataclass(unsafe_hash=True, kw_only=True)


def columns(kind: type[Any], capitals: bool = False) -> tuple[Field, ...]:
    """The columns of a record, in the order of its fields. `capitals`: headings as squeue has them, not as sacct."""
    return tuple(
        Field(
            column.name,
            (column.heading or column.name).upper() if capitals else column.heading or column.name,
            column.cell or functools.partial(_text, item.name, column.form),
            column.help or item.metadata["help"],
            left=str(item.type).startswith(("str", "dict")),
        )
        for item in fields(kind)
        for column in item.metadata.get("columns", ())
    )


def _text(name: str, form: Callable[[Any], str], record: Any) -> str:
    value = getattr(record, name, None)  # a record of another class may stand in the same table
    return "" if value is None else form(value)


def redacted(record: R) -> R:
    """The record as somebody else than its owner sees it: None for all that is not public."""
    return type(record)(
        **{
            item.name: getattr(record, item.name) if item.metadata.get("public") else None
            for item in fields(record)  # type: ignore[arg-type]  # a record
        }
    )


def made_from(kind: type[R], *rows: Any, **more: Any) -> R:
    """A record with what these rows of the store, or records, have under the same names: the last one that has it
    counts, and `more` before all. For a row that is not there its class is given: what only that would have is None.
    Raises TypeError for a field that has no source."""
    made: Any = kind
    found: dict[str, Any] = {name: None for row in rows if isinstance(row, type) for name in _shared_names(made, row)}
    for row in rows:
        if not isinstance(row, type):
            of: Any = type(row)
            found.update(zip(_shared_names(made, of), _shared_values(made, of)(row), strict=True))
    return kind(**found | more)


@functools.cache
def _shared_names(kind: Any, other: Any) -> tuple[str, ...]:
    known = {*dir(other), *(item.name for item in fields(other))}
    return tuple(item.name for item in fields(kind) if item.name in known)


@functools.cache
def _shared_values(kind: Any, other: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Gives a row's values of these names: for one name operator.attrgetter gives no tuple."""
    names = _shared_names(kind, other)
    return operator.attrgetter(*names) if len(names) > 1 else lambda row: tuple(getattr(row, name) for name in names)


def known_values(record: Any) -> dict[str, Any]:
    """A record as JSON values, without what is not known: as the store keeps it."""
    kind: Any = type(record)
    found = zip(_shared_names(kind, kind), _shared_values(kind, kind)(record), strict=True)
    return {name: value if type(value) in _PLAIN else _json(value) for name, value in found if value is not None}


_PLAIN = frozenset((str, int, float, bool))
"""What is a JSON value as it is: most that a record holds."""


def _json(value: Any) -> Any:
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    return known_values(value) if hasattr(value, "__dataclass_fields__") else value


def read(kind: type[R], data: object) -> R:
    """A record from JSON values. Keys of a newer version are left out. Raises UnreadableRecord when a field is missing
    that has to be there."""
    readers, unknown = _form(kind)  # type: ignore[arg-type]  # a class is hashable
    try:
        given = data.items()  # type: ignore[attr-defined]  # refused below
        return kind(**{**unknown, **{name: readers[name](value) for name, value in given if name in readers}})
    except (TypeError, ValueError, AttributeError) as error:
        raise UnreadableRecord(f"{kind.__name__}: {str(data)[:60]} is not of its form ({error})") from None


def read_all(kind: type[R], values: object) -> tuple[R, ...]:
    """Records from a list of JSON values; what is no such record is left out."""
    return _tuple(functools.partial(read, kind), values)


@functools.cache
def _form(kind: Any) -> tuple[dict[str, Reader], dict[str, Any]]:
    hints = typing.get_type_hints(kind)
    readers = {item.name: _reader(hints[item.name]) for item in fields(kind)}
    optional = [item for item in fields(kind) if type(None) in typing.get_args(hints[item.name])]
    return readers, {item.name: None for item in optional if item.default is MISSING}


def _reader(hint: Any) -> Reader:
    parts = typing.get_args(hint)
    if type(None) in parts:
        return functools.partial(_or_none, _reader(parts[0]))
    if typing.get_origin(hint) is tuple:
        return functools.partial(_tuple, _reader(parts[0]))
    if typing.get_origin(hint) is dict:
        return dict
    return _SCALARS[hint] if hint in _SCALARS else functools.partial(read, hint)


def _or_none(reader: Reader, value: Any) -> Any:
    try:
        return None if value is None else reader(value)
    except (TypeError, ValueError, UnreadableRecord):
        return None


def _tuple(reader: Reader, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    found = (_or_none(reader, item) for item in value)
    return tuple(item for item in found if item is not None)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("not true or false")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError("not a finite number")
    return float(value)


def _whole(value: Any) -> int:
    return value if type(value) is int else int(_number(value))


def _words(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


_SCALARS: dict[Any, Reader] = {bool: _flag, float: _number, int: _whole, str: _words}


BY_SUPERVISOR = {
    "": "its supervisor changed it without a resize from the daemon",
    "registered": "its supervisor registered with this size",
    "requeue": "it was requeued at this size",
    "restart": "its supervisor started the workers again, without a resize from the daemon",
}
"""Reasons of sizes that no decision led to, and what they mean."""


class Named(Protocol):
    """A record with the names of its job."""

    @property
    def job_id(self) -> int: ...

    @property
    def task_name(self) -> str | None: ...


def shown_id(job: Named) -> str:
    """The job's id as Slurm shows it."""
    return job.task_name or str(job.job_id)


@record
class JobRecord:
    """Whose job it is: the first fields of each record about a job."""

    job_id: int = about("job id", Column("JobID", help="job id; 7_3: a task of array 7", cell=shown_id), public=True)
    task_name: str | None = about("7_3 for a task of array 7, as Slurm names it", public=True)
    partition: str | None = about("partition", Column("Partition"))
    name: str | None = about("job name", Column("Name"))
    user: str | None = about("user name", Column("User"))
    uid: int | None = about("user id", Column("UID"))
    account: str | None = about("account", Column("Account"))
    state: str = about("the job's state", Column("State"), public=True)
    own: bool = about("whether it is a job of who asks", public=True)


def not_known(job_ids: Sequence[int]) -> str:
    """The sentence about jobs without a record, at least one."""
    if len(job_ids) == 1:
        jobs, it, its = f"job {job_ids[0]} is", "it", "its"
    else:
        jobs, it, its = f"jobs {', '.join(map(str, job_ids))} are", "they", "their"
    never = f"{it} never had an elastic request (--comment={ACCEPTED_FORM})"
    came = f"{it} came after the daemon's last look at the queue (try again in a few seconds)"
    return f"{jobs} not known to selasticd: {never}, {its} records are gone, or {came}"


@lru_cache(maxsize=256)  # asked for every row of thousands
def reason_text(code: str) -> str:
    """The words of a reason's code, or of what a supervisor did by itself; empty for a code that is not known here."""
    try:
        return Reason(code).meaning
    except ValueError:
        return BY_SUPERVISOR.get(code, "")
