"""The tables. What each record means is said in rows.py; how older databases come to them, in migrate.py.

Only types that SQLite, PostgreSQL and MariaDB all keep without loss: double precision for unix seconds, 64-bit
integers for counters, JSON for what is shown and never searched.
"""

from __future__ import annotations

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

# Constraint names are fixed, so that a later migration can drop one on any database.
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


def _job() -> Column[int]:
    return Column("job_id", BigInteger, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False)


def _job_key() -> Column[int]:
    return Column("job_id", BigInteger, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True)


REVISION = "0209"
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

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("user", String(255), nullable=False),
    Column("uid", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("account", String(255), nullable=False),
    Column("partition", Text, nullable=False),
    Column("request", Text, nullable=False),
    Column("managed", Boolean, nullable=False),
    Column("reason", String(64), nullable=False),
    Column("detail", Text, nullable=False),
    Column("submit_time", Double, nullable=False),
    Column("start_time", Double),
    Column("end_time", Double),
    Column("state", String(64), nullable=False),
    # Slurm gives a running job an end time too (its limit), so the end of a job needs a word of its own.
    Column("ended", Boolean, nullable=False),
    Column("task_name", String(255), nullable=False, server_default=text("''")),
    Column("held_gpus", Integer, nullable=False, server_default="0"),
)
Index(None, jobs.c.ended)

pins = Table("pins", metadata, _job_key(), Column("gpus", BigInteger, nullable=False))

tokens = Table(
    "tokens",
    metadata,
    Column("digest", String(64), primary_key=True),
    _job(),
    Column("uid", BigInteger, nullable=False),
    Column("created", Double, nullable=False),
)
Index(None, tokens.c.job_id)

LONGEST_REFUSAL = 1000
in_use = Table(
    "in_use",
    metadata,
    _job_key(),
    Column("generation", BigInteger, nullable=False),
    Column("pieces", JSON, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("since", Double, nullable=False),
    Column("registered_at", Double, nullable=False),
    Column("refusal", String(LONGEST_REFUSAL), nullable=False, server_default=text("''")),
    Column("stalled_since", Double, nullable=False, server_default=text("0")),
)

allocations = Table(
    "allocations",
    metadata,
    Column("id", Serial, primary_key=True),
    _job(),
    Column("generation", BigInteger, nullable=False),
    Column("start", Double, nullable=False),
    Column("end", Double),
    Column("gpus", BigInteger, nullable=False),
    Column("nodes", BigInteger, nullable=False),
    Column("node_list", Text, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("pause_s", Double, nullable=False),
    Column("reason", String(64), nullable=False),
    Column("resize", BigInteger, nullable=False),
    # The training's counters when the row began; NULL until they are known.
    Column("first_step", BigInteger),
    Column("first_samples", BigInteger),
    sqlite_autoincrement=True,
)
Index(None, allocations.c.job_id, allocations.c.start)
Index(None, allocations.c.start)

# No number of its own: the key keeps a re-sent report from counting twice, and saves an index.
reports = Table(
    "reports",
    metadata,
    _job_key(),
    Column("at", Double, primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("gpus", BigInteger, nullable=False),
    Column("nodes", BigInteger, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("micro_batch", BigInteger, nullable=False),
    Column("accumulation", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("step_time_median_s", Double, nullable=False),
    Column("step_time_p90_s", Double, nullable=False),
    Column("samples_per_s", Double, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("noise_scale", Double, nullable=False),
    Column("input_wait_share", Double, nullable=False),
    Column("memory_peak_mb", Double, nullable=False),
    Column("comm_share", Double, nullable=False),
    Column("bottleneck", String(32), nullable=False),
    Column("bottleneck_share", Double, nullable=False),
    Column("bottleneck_rank", BigInteger, nullable=False),
    Column("bottleneck_node", String(255), nullable=False),
    Column("samples_left", BigInteger, nullable=False, server_default="0"),
    sqlite_with_rowid=False,
)
Index(None, reports.c.at)

rollups = Table(
    "rollups",
    metadata,
    _job_key(),
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
    _job_key(),
    Column("until", Double, nullable=False),
    # When the oldest report was made that it holds by itself: it ends with that.
    Column("oldest", Double, nullable=False),
    Column("seen", LargeBinary(1 << 24), nullable=False),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Serial, primary_key=True),
    _job(),
    Column("at", Double, nullable=False),
    Column("gpus_from", BigInteger, nullable=False),
    Column("gpus_to", BigInteger, nullable=False),
    Column("batch_from", BigInteger, nullable=False),
    Column("batch_to", BigInteger, nullable=False),
    Column("reason", String(64), nullable=False),
    Column("value", Double),
    Column("gain", Double),
    Column("evidence", JSON, nullable=False),
    Column("alternatives", JSON, nullable=False),
    Column("mechanism", String(255), nullable=False),
    Column("mode", String(16), nullable=False),
    sqlite_autoincrement=True,
)
Index(None, decisions.c.job_id, decisions.c.id)
Index(None, decisions.c.at)

resizes = Table(
    "resizes",
    metadata,
    Column("id", Serial, primary_key=True),
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
events = Table(
    "events",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("job_id", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("who", String(255), nullable=False),
    Column("detail", JSON, nullable=False),
    sqlite_autoincrement=True,
)
Index(None, events.c.job_id, events.c.id)
Index(None, events.c.at)

# Hosts that did not reach each other, in the order of their names.
host_pairs = Table(
    "host_pairs",
    metadata,
    Column("user", String(255), primary_key=True),
    Column("host", String(255), primary_key=True),
    Column("other", String(255), primary_key=True),
    Column("address", Text, nullable=False),
    Column("failures", BigInteger, nullable=False),
    Column("last_at", Double, nullable=False),
)

# What `selastic probe` found in each partition; of user "" for everybody's jobs.
probes = Table(
    "probes",
    metadata,
    Column("user", String(255), primary_key=True),
    Column("partition", String(255), primary_key=True),
    Column("at", Double, nullable=False),
    Column("tried", JSON, nullable=False),
)

# What a job ran and on which kind of GPU, so that the next run of it need not start from nothing.
programs = Table(
    "programs",
    metadata,
    _job_key(),
    Column("program", String(255), nullable=False),
    Column("gpu_type", String(255), nullable=False),
)

# Learned from the history; ("", "") is the whole cluster's.
priors = Table(
    "priors",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("program", String(255), nullable=False),
    Column("gpu_type", String(255), nullable=False),
    Column("learned_at", Double, nullable=False),
    Column("runs", BigInteger, nullable=False),
    Column("prior", JSON, nullable=False),
)

# The last checkpoint whose cost a job's supervisor has said.
checkpoints = Table(
    "checkpoints",
    metadata,
    _job_key(),
    Column("at", Double, nullable=False),
    Column("megabytes", Double, nullable=False),
    Column("pause_s", Double, nullable=False),
    Column("write_s", Double, nullable=False),
    Column("every_s", Double, nullable=False),
    Column("node_failure_s", Double, nullable=False),
)

# What the model of a resize said of a size that had not been measured, and what was measured there afterwards.
predictions = Table(
    "predictions",
    metadata,
    Column("id", Serial, primary_key=True),
    _job(),
    Column("at", Double, nullable=False),
    Column("program", String(255), nullable=False),
    Column("gpu_type", String(255), nullable=False),
    Column("gpus", BigInteger, nullable=False),
    Column("nodes", BigInteger, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("predicted", Double, nullable=False),
    Column("doubt", Double, nullable=False),
    Column("observed", Double, nullable=False),
    sqlite_autoincrement=True,
)
Index(None, predictions.c.job_id)
Index(None, predictions.c.at)
