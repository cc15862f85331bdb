"""Whether what lies at a path can have been written by somebody else; how many files this process may have open.

Limit: whoever may write to a directory above can put another of the owner's own directories in its place. File systems
that show other owners or modes than were set (CIFS, some NFS) cannot say it: what TRUSTED names is taken for one's own.
"""

import contextlib
import os
import resource
import stat
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
TRUSTED = "SELASTIC_TRUSTED_DIRS"
"""The variable that names directories, with colons between them. Neither owner nor mode of what lies in them counts."""


def foreign(path: Path) -> str:
    """Who else may have written this file or directory, as in "belongs to uid 7"; "" if nobody else, or it is missing.

    root may write everything, and is trusted. Raises OSError where it cannot be looked at.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ""
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    real = Path(os.path.realpath(path))
    if any(real.is_relative_to(Path(one).resolve()) for one in os.environ.get(TRUSTED, "").split(":") if one):
        return ""
    if found.st_uid not in (0, os.geteuid()):
        return f"belongs to uid {found.st_uid}"
    if found.st_mode & OTHERS_WRITE:
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


def foreign_below(path: Path) -> str:
    """As `foreign`, of a directory and all that it holds: the path and why."""
    for place in (path, *sorted(path.rglob("*"))):
        if why := foreign(place):
            return f"{place} {why}"
    return ""


def make_own(path: Path) -> None:
    """Take from all others the right to write to a file or directory of one's own, where its file system can."""
    mode = stat.S_IMODE(path.stat().st_mode) & ~OTHERS_WRITE
    with contextlib.suppress(OSError):
        path.chmod(mode)


def make_private(path: Path) -> None:
    """Make a directory that its owner alone can enter, whatever the umask, where its file system can. Raises OSError;
    what somebody else may have put there stays as it is."""
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
        with contextlib.suppress(OSError):
            path.chmod(0o700)


UNLIMITED = 1 << 20
"""What "unlimited" is taken for."""


def limit() -> int:
    """How many it may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """As many as this process may allow itself; what it starts inherits that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
