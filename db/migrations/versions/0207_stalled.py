"""What a job trains on says since when it has done no step."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Double, text

revision: str = "0207"
down_revision: str | None = "0206"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """Add the column: what stands still now says so again when it is asked to."""
    op.add_column("in_use", Column("stalled_since", Double, nullable=False, server_default=text("0")))
