"""The first schema that is upgraded: that of 0.2.0."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0200"
down_revision: str | None = None
branch_labels: None = None
depends_on: None = None

Serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("id", Serial, nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("who", sa.String(length=255), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_events_at"), "events", ["at"])
    op.create_index(op.f("ix_events_job_id_id"), "events", ["job_id", "id"])
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("user", sa.String(length=255), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("account", sa.String(length=255), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("managed", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("submit_time", sa.Double(), nullable=False),
        sa.Column("start_time", sa.Double(), nullable=True),
        sa.Column("end_time", sa.Double(), nullable=True),
        sa.Column("state", sa.String(length=64), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_ended"), "jobs", ["ended"])
    op.create_table(
        "lease",
        sa.Column("name", sa.String(length=16), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("place", sa.String(length=255), nullable=False),
        sa.Column("who", sa.String(length=255), nullable=False),
        sa.Column("lease_s", sa.Double(), nullable=False),
        sa.Column("renewed", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_lease")),
    )
    op.create_table(
        "priors",
        sa.Column("id", Serial, nullable=False),
        sa.Column("program", sa.String(length=255), nullable=False),
        sa.Column("gpu_type", sa.String(length=255), nullable=False),
        sa.Column("learned_at", sa.Double(), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("prior", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_priors")),
    )
    op.create_table(
        "allocations",
        sa.Column("id", Serial, nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.Double(), nullable=False),
        sa.Column("end", sa.Double(), nullable=True),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("nodes", sa.BigInteger(), nullable=False),
        sa.Column("node_list", sa.Text(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("pause_s", sa.Double(), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("resize", sa.BigInteger(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("first_samples", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_allocations_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_allocations")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_allocations_job_id_start"), "allocations", ["job_id", "start"])
    op.create_index(op.f("ix_allocations_start"), "allocations", ["start"])
    op.create_table(
        "decisions",
        sa.Column("id", Serial, nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("gpus_from", sa.BigInteger(), nullable=False),
        sa.Column("gpus_to", sa.BigInteger(), nullable=False),
        sa.Column("batch_from", sa.BigInteger(), nullable=False),
        sa.Column("batch_to", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("gain", sa.Double(), nullable=True),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("alternatives", sa.JSON(), nullable=False),
        sa.Column("mechanism", sa.String(length=255), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_decisions_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decisions")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_decisions_at"), "decisions", ["at"])
    op.create_index(op.f("ix_decisions_job_id_id"), "decisions", ["job_id", "id"])
    op.create_table(
        "in_use",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("pieces", sa.JSON(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("registered_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_in_use_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_in_use")),
    )
    op.create_table(
        "pins",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_pins_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_pins")),
    )
    op.create_table(
        "programs",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("program", sa.String(length=255), nullable=False),
        sa.Column("gpu_type", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_programs_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_programs")),
    )
    op.create_table(
        "reports",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("generation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("nodes", sa.BigInteger(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("micro_batch", sa.BigInteger(), nullable=False),
        sa.Column("accumulation", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("step_time_median_s", sa.Double(), nullable=False),
        sa.Column("step_time_p90_s", sa.Double(), nullable=False),
        sa.Column("samples_per_s", sa.Double(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("noise_scale", sa.Double(), nullable=False),
        sa.Column("input_wait_share", sa.Double(), nullable=False),
        sa.Column("memory_peak_mb", sa.Double(), nullable=False),
        sa.Column("comm_share", sa.Double(), nullable=False),
        sa.Column("bottleneck", sa.String(length=32), nullable=False),
        sa.Column("bottleneck_share", sa.Double(), nullable=False),
        sa.Column("bottleneck_rank", sa.BigInteger(), nullable=False),
        sa.Column("bottleneck_node", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_reports_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "at", "generation", "step", name=op.f("pk_reports")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_reports_at"), "reports", ["at"])
    op.create_table(
        "resizes",
        sa.Column("id", Serial, nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("open_job", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("phases", sa.JSON(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("keep", sa.JSON(), nullable=False),
        sa.Column("add", sa.JSON(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("wait_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_resizes_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_resizes")),
        sa.UniqueConstraint("open_job", name=op.f("uq_resizes_open_job")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_resizes_job_id_id"), "resizes", ["job_id", "id"])
    op.create_table(
        "rollups",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("gpus", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("nodes", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("batch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("micro_batch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("accumulation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("step_time", sa.Double(), nullable=False),
        sa.Column("samples_per_s", sa.Double(), nullable=False),
        sa.Column("noise_scale", sa.Double(), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_rollups_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint(
            "job_id", "hour", "gpus", "nodes", "batch", "micro_batch", "accumulation", name=op.f("pk_rollups")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tokens",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_tokens_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_tokens")),
    )
    op.create_index(op.f("ix_tokens_job_id"), "tokens", ["job_id"])


def downgrade() -> None:
    for table in (
        "tokens",
        "rollups",
        "resizes",
        "reports",
        "programs",
        "pins",
        "in_use",
        "decisions",
        "allocations",
        "priors",
        "lease",
        "jobs",
        "events",
    ):
        op.drop_table(table)
