"""A folder that fails as a disk with a quota, or a file server, does: for the programs that are started with its `env`.

Limit: the errors come from broken_disk.c, in place of libc, since not every kernel has quotas; what a program does to
files in other ways than that file knows is not touched.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("broken_disk.c")


class BrokenDisk:
    """The folder `path`, which works until `breaks`."""

    def __init__(self, path: Path, beside: Path) -> None:
        """beside: a folder for what makes it fail."""
        path.mkdir()
        library, self._errno = beside / "broken_disk.so", beside / "broken_errno"
        command = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        self.env = {"LD_PRELOAD": str(library), "BROKEN_ERRNO": str(self._errno), "BROKEN_FOLDER": str(path)}
        self._errno.write_bytes(struct.pack("i", 0))

    def breaks(self, number: int) -> None:
        """From now on with this error; 0: not any more."""
        with self._errno.open("r+b") as file:
            file.write(struct.pack("i", number))
