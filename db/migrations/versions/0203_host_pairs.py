"""Hosts that did not reach each other are remembered, by user."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, String, Text

revision: str = "0203"
down_revision: str | None = "0202"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """Add the table: nothing has failed yet."""
    op.create_table(
        "host_pairs",
        Column("user", String(255), primary_key=True),
        Column("host", String(255), primary_key=True),
        Column("other", String(255), primary_key=True),
        Column("address", Text, nullable=False),
        Column("failures", BigInteger, nullable=False),
        Column("last_at", Double, nullable=False),
    )
