"""Writes the next revision from the difference between schema.py and the revisions so far.

    python -m slurm_elastic.db.migrations.new 0201 "jobs know their QOS"

A start, to be read and corrected by hand: Alembic sees no renames.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic import command

from ..engine import Database
from ..migrate import alembic_config, migrate


def main(revision: str, message: str) -> None:
    """Write versions/<revision>_<message>.py."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{Path(folder) / 'empty.db'}")
        migrate(database)
        config = alembic_config()
        config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
        with database.write() as connection:
            config.attributes["connection"] = connection
            command.revision(config, message, autogenerate=True, rev_id=revision)
        database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
