"""The tables, mostly with a column for each field of a record of rows.py, which says what it means. How older databases
come to them is in migrate.py.

Only types that SQLite, PostgreSQL and MariaDB all keep without loss: double precision for unix seconds, 64-bit
integers for counters, JSON for what is shown and never searched.
"""

from collections.abc import Sequence
from typing import Any, get_type_hints

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

from slurm_elastic.protocol.codec import or_none
from slurm_elastic.protocol.messages import Report

from . import rows

# Constraint names are fixed, so that a later upgrade can drop one on any database.
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
Serial = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite numbers rows by itself only in a column that is exactly INTEGER."""
LONGEST_REFUSAL = 1000
_NAME = String(255)
_TEXTS = {
    **dict.fromkeys(("user", "account", "task_name", "program", "gpu_type", "host", "other", "mechanism"), _NAME),
    **{"who": _NAME, "bottleneck_node": _NAME, "bottleneck": String(32), "unit": String(32), "mode": String(16)},
    **{"reason": String(64), "state": String(64), "kind": String(64), "refusal": String(LONGEST_REFUSAL)},
}
"""How long a text may be, by its name; others: as long as it likes, and in no key."""
_DEFAULTS = {
    "task_name": "''",
    "held_gpus": "0",
    "refusal": "''",
    "stalled_since": "0",
    "samples_left": "0",
    "unit": "''",
}
"""Of columns that came later: what rows have that were there before."""
_TYPES = {int: BigInteger, float: Double, bool: Boolean, str: Text}


def _table(name: str, *columns: Column[Any], like: Any, key: Sequence[str] = (), **given: Any) -> Table:
    """A table with a column for each field of a record, besides these, of the field's type, NULL where it may be None.
    `key`: those of its primary key, in order. `given`: options of the table."""
    hints, beside = get_type_hints(like), {column.name: column for column in columns}
    found = [column for column in columns if column.name not in key]
    for field in (*key, *(field for field in hints if field not in key and field not in beside)):
        kind = or_none(hints[field]) or hints[field]
        default = _DEFAULTS.get(field)
        made = Column(
            field,
            _TEXTS.get(field, Text) if kind is str else _TYPES.get(kind, JSON),
            nullable=kind is not hints[field],
            primary_key=field in key,
            autoincrement=False,
            server_default=None if default is None else text(default),
        )
        found.append(beside.get(field, made))
    return Table(name, metadata, *found, **given)


def _id() -> Column[int]:
    return Column("id", Serial, primary_key=True)


def _job(key: bool = False) -> Column[int]:
    return Column("job_id", BigInteger, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=key, nullable=False)


REVISION = "0210"
"""Of these tables; the first two digits are those of the release. Tables that change have the next one: migrate.py adds
what is new to databases that have a lower one."""
# Its name and column are those of the tool that upgraded 0.2.0's databases.
version = Table("alembic_version", metadata, Column("version_num", String(32), primary_key=True))

LEASE = "selasticd"
"""Name of the only row of `lease`."""
# Read by every version, before it upgrades anything: it never changes.
lease = Table(
    "lease",
    metadata,
    Column("name", String(16), primary_key=True),
    Column("fence", BigInteger, nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("place", String(255), nullable=False),
    Column("who", String(255), nullable=False),
    Column("lease_s", Double, nullable=False),
    # For people: no decision is made by it.
    Column("renewed", Double, nullable=False),
)

jobs = _table(
    "jobs",
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    # Slurm gives a running job an end time too (its limit), so the end of a job needs a word of its own.
    Column("ended", Boolean, nullable=False),
    Column("held_gpus", Integer, nullable=False, server_default="0"),
    like=rows.JobRow,
)
Index(None, jobs.c.ended)

pins = Table("pins", metadata, _job(key=True), Column("gpus", BigInteger, nullable=False))

tokens = Table(
    "tokens",
    metadata,
    Column("digest", String(64), primary_key=True),
    _job(),
    Column("uid", BigInteger, nullable=False),
    Column("created", Double, nullable=False),
)
Index(None, tokens.c.job_id)

in_use = _table("in_use", _job(key=True), like=rows.InUse)

allocations = _table(
    "allocations",
    _id(),
    _job(),
    # The training's counters when the row began; NULL until they are known.
    Column("first_step", BigInteger),
    Column("first_samples", BigInteger),
    like=rows.AllocationRow,
    sqlite_autoincrement=True,
)
Index(None, allocations.c.job_id, allocations.c.start)
Index(None, allocations.c.start)

# No number of its own: the key keeps a re-sent report from counting twice, and saves an index.
reports = _table("reports", _job(key=True), like=Report, key=("at", "generation", "step"), sqlite_with_rowid=False)
Index(None, reports.c.at)

rollups = Table(
    "rollups",
    metadata,
    _job(key=True),
    # Start of the hour that the reports fell into.
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("gpus", BigInteger, primary_key=True, autoincrement=False),
    Column("nodes", BigInteger, primary_key=True, autoincrement=False),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("micro_batch", BigInteger, primary_key=True, autoincrement=False),
    Column("accumulation", BigInteger, primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
    Column("step_time", Double, nullable=False),
    Column("samples_per_s", Double, nullable=False),
    Column("noise_scale", Double, nullable=False),
    Column("last_at", Double, nullable=False),
    # NULL: a release that did not keep it has made the record.
    Column("input_wait_share", Double),
    sqlite_with_rowid=False,
)

# What a job's reports came to up to a time, so that a start reads the later ones alone.
summaries = Table(
    "summaries",
    metadata,
    _job(key=True),
    Column("until", Double, nullable=False),
    # When the oldest report was made that it holds by itself: it ends with that.
    Column("oldest", Double, nullable=False),
    Column("seen", LargeBinary(1 << 24), nullable=False),
)

decisions = _table("decisions", _id(), _job(), like=rows.DecisionRow, sqlite_autoincrement=True)
Index(None, decisions.c.job_id, decisions.c.id)
Index(None, decisions.c.at)

resizes = Table(
    "resizes",
    metadata,
    _id(),
    _job(),
    # The job while the resize is open, NULL afterwards: unique, so a job has one open resize on every database.
    Column("open_job", BigInteger, unique=True),
    Column("state", String(16), nullable=False),
    # The states it has come to, each with its time.
    Column("phases", JSON, nullable=False),
    Column("detail", Text, nullable=False),
    # Pieces that stay, and shapes of the companions that come.
    Column("keep", JSON, nullable=False),
    Column("add", JSON, nullable=False),
    Column("gpus", BigInteger, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("reason", String(64), nullable=False),
    Column("wait_s", Double, nullable=False),
    # An id names one resize for ever: a supervisor ignores ids that it has seen.
    sqlite_autoincrement=True,
)
Index(None, resizes.c.job_id, resizes.c.id)

# Bound to no job: the record of what was done outlives it, and job 0 is the daemon itself.
events = _table("events", _id(), like=rows.EventRow, sqlite_autoincrement=True)
Index(None, events.c.job_id, events.c.id)
Index(None, events.c.at)

# Hosts that did not reach each other, in the order of their names.
host_pairs = _table("host_pairs", like=rows.HostPair, key=("user", "host", "other"))

# What `selastic probe` found in each partition; of user "" for everybody's jobs.
probes = _table("probes", Column("partition", _NAME, primary_key=True), like=rows.ProbeRow, key=("user", "partition"))

# What a job ran and on which kind of GPU, so that the next run of it need not start from nothing.
programs = Table(
    "programs",
    metadata,
    _job(key=True),
    Column("program", String(255), nullable=False),
    Column("gpu_type", String(255), nullable=False),
)

# Learned from the history; ("", "") is the whole cluster's.
priors = _table("priors", _id(), like=rows.PriorRow)

# The last checkpoint whose cost a job's supervisor has said.
checkpoints = _table("checkpoints", _job(key=True), like=rows.CheckpointRow)

# What the model of a resize said of a size that had not been measured, and what was measured there afterwards.
predictions = _table("predictions", _id(), _job(), like=rows.PredictionRow, sqlite_autoincrement=True)
Index(None, predictions.c.job_id)
Index(None, predictions.c.at)
