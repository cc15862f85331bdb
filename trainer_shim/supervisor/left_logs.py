"""The logs of companions that a job has left: those of the last few stand by themselves, older ones are put together.

A job that is resized for months has thousands of companions, and a disk has inodes for so many files only. A log goes,
under its name, to the end of one file. Limit: what is written to it later goes with it; of what was put together the
last MOST_BYTES are kept, and a few times that at most.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Set
from pathlib import Path

KEPT = 20
"""Companions whose logs stand by themselves."""
TOGETHER, OLDER = "left.log", "left.older.log"
MOST_BYTES = 16 << 20
_NAME = re.compile(r"(?:agents-)?(\d+)(?:\..+)?\.log")


def put_together(folder: Path, used: Set[int]) -> None:
    """Append the logs of all companions that are neither `used` nor among the last. Raises OSError."""
    logs: dict[int, list[Path]] = {}
    for path in folder.iterdir():
        if (found := _NAME.fullmatch(path.name)) and int(found.group(1)) not in used:
            logs.setdefault(int(found.group(1)), []).append(path)
    for job_id in sorted(logs)[:-KEPT]:
        for path in sorted(logs[job_id]):
            with (folder / TOGETHER).open("ab") as together, path.open("rb") as log:
                together.write(f"==> {path.name} <==\n".encode())
                log.seek(max(0, path.stat().st_size - MOST_BYTES))
                shutil.copyfileobj(log, together)
                full = together.tell() >= MOST_BYTES
            if full:
                (folder / TOGETHER).replace(folder / OLDER)
            path.unlink()
