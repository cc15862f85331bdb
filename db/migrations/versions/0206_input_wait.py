"""Hourly records keep the share of a step that waits for input."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Double

revision: str = "0206"
down_revision: str | None = "0205"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """Add the column: of what was rolled up before it is not known."""
    op.add_column("rollups", Column("input_wait_share", Double))
