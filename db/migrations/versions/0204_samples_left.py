"""Reports say how much training is left."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column

revision: str = "0204"
down_revision: str | None = "0203"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """Add the column: what was reported before did not say."""
    op.add_column("reports", Column("samples_left", BigInteger, nullable=False, server_default="0"))
