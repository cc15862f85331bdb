"""What a job's reports came to is kept, so that a start need not read all of them."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, Double, ForeignKey, LargeBinary

revision: str = "0208"
down_revision: str | None = "0207"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    """Add the table: jobs without a row are read report by report, once."""
    op.create_table(
        "summaries",
        Column("job_id", BigInteger, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True),
        Column("until", Double, nullable=False),
        Column("oldest", Double, nullable=False),
        Column("seen", LargeBinary(1 << 24), nullable=False),
    )
