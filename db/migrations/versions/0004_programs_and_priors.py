"""Programs of jobs, and the priors learned from their runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: None = None
depends_on: None = None

Serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
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
        "programs",
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("program", sa.String(length=255), nullable=False),
        sa.Column("gpu_type", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_programs_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_programs")),
    )


def downgrade() -> None:
    op.drop_table("programs")
    op.drop_table("priors")
