"""What `selastic probe` finds is remembered, by user and partition."""

from __future__ import annotations

from alembic import op
from sqlalchemy import JSON, Column, Double, String

revision: str = "0209"
down_revision: str | None = "0208"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """Add the table: nothing has been probed yet."""
    op.create_table(
        "probes",
        Column("user", String(255), primary_key=True),
        Column("partition", String(255), primary_key=True),
        Column("at", Double, nullable=False),
        Column("tried", JSON, nullable=False),
    )
