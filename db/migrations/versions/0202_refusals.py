"""What a supervisor and the daemon do not understand of each other is kept with what the job trains on."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, String, text

revision: str = "0202"
down_revision: str | None = "0201"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """Add the column: nothing is refused yet."""
    op.add_column("in_use", Column("refusal", String(1000), nullable=False, server_default=text("''")))
