"""What checkpoints cost, and how good predictions were, is remembered."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, ForeignKey, Integer, String

revision: str = "0205"
down_revision: str | None = "0204"
branch_labels: None = None
depends_on: None = None
_SERIAL = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    """Add the tables: nothing was said before."""
    op.create_table(
        "checkpoints",
        Column("job_id", BigInteger, _jobs(), primary_key=True),
        Column("at", Double, nullable=False),
        Column("megabytes", Double, nullable=False),
        Column("pause_s", Double, nullable=False),
        Column("write_s", Double, nullable=False),
        Column("every_s", Double, nullable=False),
        Column("node_failure_s", Double, nullable=False),
    )
    op.create_table(
        "predictions",
        Column("id", _SERIAL, primary_key=True),
        Column("job_id", BigInteger, _jobs(), nullable=False),
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
    op.create_index("ix_predictions_job_id", "predictions", ["job_id"])
    op.create_index("ix_predictions_at", "predictions", ["at"])


def _jobs() -> ForeignKey:
    return ForeignKey("jobs.job_id", ondelete="CASCADE")
