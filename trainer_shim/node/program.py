"""The user's program as the job began with it: an edit while it runs makes no second program in its world.

Promise: the first worker that reads a file of it keeps a copy in the job directory, and every later one, a joiner or
after a restart, runs that copy under the file's own name. What is installed is not the user's program. Limit: the main
module of processes that are spawned, not forked, and files that are read as data, are those of the moment.
"""

import contextlib
import hashlib
import importlib.util
import linecache
import os
import secrets
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

FOLDER = "program"
_INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_OTHERS = (str(Path(__file__).parents[2]) + os.sep, *(f"{folder}{os.sep}" for folder in _INSTALLED))
_folder: Path | None = None
"""Of the copies; None: there are none, and files are what they are."""


def keep_in(folder: Path) -> None:
    """From now on, for this process and those that it forks, if there is such a folder."""
    global _folder
    if folder.is_dir():
        _folder = folder
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _Finder)


def source(path: str) -> tuple[bytes, bool]:
    """A file of the program as the job began with it, and whether it is another one by now, which is told.

    Raises OSError for a file that is not there and was not kept."""
    now = kept = None
    with contextlib.suppress(OSError):
        now = Path(path).read_bytes()
    if _folder is not None:
        place = Path(path).resolve()
        copy = _folder / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}-{place.name}"
        with contextlib.suppress(OSError):  # a full disk, say
            if now is not None and not copy.exists():
                _keep(copy, now)
            kept = copy.read_bytes()
    if kept is None:
        return now if now is not None else Path(path).read_bytes(), False
    with contextlib.suppress(SyntaxError, UnicodeDecodeError):  # for tracebacks, and all that reads a function's source
        lines = importlib.util.decode_source(kept).splitlines(keepends=True)
        linecache.cache[path] = (len(kept), None, lines, path)
    if kept != now:
        print(
            f"selastic: {path} was edited since this job began, and goes on as it was then; accepted for the new one: "
            "a new job, with --job-dir to go on from the checkpoints of this one",
            file=sys.stderr,
            flush=True,
        )
    return kept, kept != now


def _keep(copy: Path, content: bytes) -> None:
    """The first one counts, of all nodes."""
    partial = copy.with_name(f".{copy.name}.{secrets.token_hex(8)}")
    try:
        partial.write_bytes(content)
        try:
            os.link(partial, copy)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links: of two nodes at the same moment the last one counts
            partial.replace(copy)
    finally:
        partial.unlink(missing_ok=True)


class _Finder:
    """Stands in front of the one that looks through sys.path."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader and _is_users(spec.loader.path):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType | None:
        kept, edited = source(self.path)
        return self.source_to_code(kept, self.path) if edited else super().get_code(fullname)


def _is_users(path: str) -> bool:
    return not path.startswith(_OTHERS) and not {"site-packages", "dist-packages"} & set(Path(path).parts)
