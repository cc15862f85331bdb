"""How Alembic runs here: on the connection that the caller hands over, inside the caller's transaction.

For writing a new revision there is `python -m slurm_elastic.db.migrations.new`, with no database of anyone's involved.
"""

from __future__ import annotations

from alembic import context

from slurm_elastic.db.schema import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    # SQLite changes a column only by copying the table; Alembic does that in batch mode.
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
