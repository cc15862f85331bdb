"""What holds a job's steps back, in its reports."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: None = None
depends_on: None = None


def _columns() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("comm_share", sa.Double(), nullable=False, server_default="0"),
        sa.Column("bottleneck", sa.String(length=32), nullable=False, server_default=""),
        sa.Column("bottleneck_share", sa.Double(), nullable=False, server_default="0"),
        sa.Column("bottleneck_rank", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("bottleneck_node", sa.String(length=255), nullable=False, server_default=""),
    )


def upgrade() -> None:
    for column in _columns():
        op.add_column("reports", column)


def downgrade() -> None:
    for column in _columns():
        op.drop_column("reports", column.name)
