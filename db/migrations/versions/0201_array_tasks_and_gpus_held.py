"""Jobs know their name in an array, and how many GPUs Slurm holds for them."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Integer, String, text

revision: str = "0201"
down_revision: str | None = "0200"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """Add the columns; the next round fills them."""
    op.add_column("jobs", Column("task_name", String(255), nullable=False, server_default=text("''")))
    op.add_column("jobs", Column("held_gpus", Integer, nullable=False, server_default="0"))
