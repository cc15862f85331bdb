"""The first schema that is upgraded: that of 0.2.0.

A copy of schema.py as it was then, which later changes of schema.py do not touch.
"""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

revision: str = "0200"
down_revision: str | None = None
branch_labels: None = None
depends_on: None = None

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
Serial = BigInteger().with_variant(Integer(), "sqlite")


def _job() -> Column[int]:
    return Column("job_id", BigInteger, ForeignKey("jobs.job_id", ondelete="CASCADE"), nullable=False)


def _job_key() -> Column[int]:
    return Column("job_id", BigInteger, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True)


def _required(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


Table(
    "lease",
    metadata,
    Column("name", String(16), primary_key=True),
    *_required(BigInteger, "fence", "beat"),
    *_required(String(255), "place", "who"),
    *_required(Double, "lease_s", "renewed"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", BigInteger, primary_key=True, autoincrement=False),
    Column("user", String(255), nullable=False),
    Column("uid", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("account", String(255), nullable=False),
    *_required(Text, "partition", "request"),
    Column("managed", Boolean, nullable=False),
    Column("reason", String(64), nullable=False),
    Column("detail", Text, nullable=False),
    Column("submit_time", Double, nullable=False),
    Column("start_time", Double),
    Column("end_time", Double),
    Column("state", String(64), nullable=False),
    Column("ended", Boolean, nullable=False),
)
Index(None, jobs.c.ended)

Table("pins", metadata, _job_key(), Column("gpus", BigInteger, nullable=False))

tokens = Table(
    "tokens",
    metadata,
    Column("digest", String(64), primary_key=True),
    _job(),
    Column("uid", BigInteger, nullable=False),
    Column("created", Double, nullable=False),
)
Index(None, tokens.c.job_id)

Table(
    "in_use",
    metadata,
    _job_key(),
    Column("generation", BigInteger, nullable=False),
    Column("pieces", JSON, nullable=False),
    Column("batch", BigInteger, nullable=False),
    *_required(Double, "since", "registered_at"),
)

allocations = Table(
    "allocations",
    metadata,
    Column("id", Serial, primary_key=True),
    _job(),
    Column("generation", BigInteger, nullable=False),
    Column("start", Double, nullable=False),
    Column("end", Double),
    *_required(BigInteger, "gpus", "nodes"),
    Column("node_list", Text, nullable=False),
    *_required(BigInteger, "batch", "samples", "steps"),
    Column("pause_s", Double, nullable=False),
    Column("reason", String(64), nullable=False),
    Column("resize", BigInteger, nullable=False),
    Column("first_step", BigInteger),
    Column("first_samples", BigInteger),
    sqlite_autoincrement=True,
)
Index(None, allocations.c.job_id, allocations.c.start)
Index(None, allocations.c.start)

reports = Table(
    "reports",
    metadata,
    _job_key(),
    Column("at", Double, primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    *_required(BigInteger, "gpus", "nodes", "batch", "micro_batch", "accumulation", "steps"),
    *_required(Double, "step_time_median_s", "step_time_p90_s", "samples_per_s"),
    *_required(BigInteger, "samples", "epoch"),
    *_required(Double, "noise_scale", "input_wait_share", "memory_peak_mb", "comm_share"),
    Column("bottleneck", String(32), nullable=False),
    Column("bottleneck_share", Double, nullable=False),
    Column("bottleneck_rank", BigInteger, nullable=False),
    Column("bottleneck_node", String(255), nullable=False),
    sqlite_with_rowid=False,
)
Index(None, reports.c.at)

Table(
    "rollups",
    metadata,
    _job_key(),
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("gpus", BigInteger, primary_key=True, autoincrement=False),
    Column("nodes", BigInteger, primary_key=True, autoincrement=False),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("micro_batch", BigInteger, primary_key=True, autoincrement=False),
    Column("accumulation", BigInteger, primary_key=True, autoincrement=False),
    Column("count", BigInteger, nullable=False),
    *_required(Double, "step_time", "samples_per_s", "noise_scale", "last_at"),
    sqlite_with_rowid=False,
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Serial, primary_key=True),
    _job(),
    Column("at", Double, nullable=False),
    *_required(BigInteger, "gpus_from", "gpus_to", "batch_from", "batch_to"),
    Column("reason", String(64), nullable=False),
    Column("value", Double),
    Column("gain", Double),
    *_required(JSON, "evidence", "alternatives"),
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
    Column("open_job", BigInteger, unique=True),
    Column("state", String(16), nullable=False),
    Column("phases", JSON, nullable=False),
    Column("detail", Text, nullable=False),
    *_required(JSON, "keep", "add"),
    *_required(BigInteger, "gpus", "batch"),
    Column("reason", String(64), nullable=False),
    Column("wait_s", Double, nullable=False),
    sqlite_autoincrement=True,
)
Index(None, resizes.c.job_id, resizes.c.id)

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

Table(
    "programs",
    metadata,
    _job_key(),
    *_required(String(255), "program", "gpu_type"),
)

Table(
    "priors",
    metadata,
    Column("id", Serial, primary_key=True),
    *_required(String(255), "program", "gpu_type"),
    Column("learned_at", Double, nullable=False),
    Column("runs", BigInteger, nullable=False),
    Column("prior", JSON, nullable=False),
)


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)


def downgrade() -> None:
    metadata.drop_all(op.get_bind(), checkfirst=False)
