"""A real disk of a few megabytes for tests: it can be filled. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A tmpfs of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, but: int = 0) -> None:
        """Leave room for `but` bytes only."""
        free = os.statvfs(self.path)
        with (self.path / "filler").open("ab") as file:
            file.write(b"x" * max(0, free.f_bavail * free.f_frsize - but))

    def empty(self) -> None:
        """Give back what was filled."""
        (self.path / "filler").unlink()


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[SmallDisk]:
    """Mount one at `path`; the test is skipped where that is not possible."""
    path.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
