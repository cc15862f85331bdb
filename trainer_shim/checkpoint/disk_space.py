"""Room on the disk for checkpoints: what a full one is told by, and how much is needed.

Two checkpoints are kept while a third is written. Limit: a quota is only seen when it is reached.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

NEEDED = 3
"""Checkpoints that there has to be room for."""
FULL = (errno.ENOSPC, errno.EDQUOT)
_TORCH_SAYS = "unexpected pos"
"""What torch says when it closes a file that could not be written to its end."""


def is_full(error: BaseException) -> bool:
    """Whether this error, or what is behind it, is a full disk or an exceeded quota."""
    return any(
        one.errno in FULL if isinstance(one, OSError) else _TORCH_SAYS in str(one).partition("\n")[0]
        for one in _behind(error)
    )


def said(error: BaseException) -> str:
    """An error in words for whoever has to do something about it."""
    if not is_full(error):
        return str(error)
    told = next((one.strerror for one in _behind(error) if isinstance(one, OSError) and one.errno in FULL), "")
    return f"the disk is full ({told or 'No space left on device'})"


def missing(directory: Path, size: int) -> str:
    """A sentence about room that is missing for checkpoints of this size; "" if there is enough, or the disk does not
    say: what cannot be written is told then."""
    try:
        free = _free(directory)
    except OSError:
        return ""
    if free >= NEEDED * size:
        return ""
    return (
        f"a checkpoint takes {in_words(size)}, and {directory} has room for {free / max(size, 1):.1f} of them; "
        f"{NEEDED} are needed: two are kept while the next one is written"
    )


def _free(directory: Path) -> int:
    """Bytes, what is kept there included."""
    place = directory
    while not place.exists():
        place = place.parent
    disk = os.statvfs(place)
    files = (path for kept in directory.glob("step-*") for path in kept.rglob("*"))
    return disk.f_bavail * disk.f_frsize + sum(path.stat().st_size for path in files)


def in_words(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _behind(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it came of."""
    yield error
    inner = error.__cause__ or error.__context__
    if inner is not None:
        yield from _behind(inner)
