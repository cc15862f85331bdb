"""The database as a place to read and to write: addresses, pragmas, locks, and every refusal as one sentence.

Writers of this process take turns at a lock (SQLite has one writer, and its own waiting is not fair) and wait up to
TURN_S for theirs; other processes are waited for, up to BUSY_S. Together that is less than a client's patience. Every
commit reaches the disk before it returns. SQLite must lie on a local file system.
"""

import json
import math
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
)

from slurm_elastic.protocol.errors import StoreError

BUSY_S = 3.0
"""How long another process may hold the database before we say so."""
TURN_S = 5.0
"""How long other writers of this process may. With BUSY_S less than the 10 s that clients wait for an answer."""
NETWORK_FILE_SYSTEMS = (
    *("nfs", "nfs4", "lustre", "gpfs", "mmfs", "beegfs", "ceph", "cephfs", "cifs", "smb3", "smbfs", "afs", "coda"),
    *("ocfs2", "gfs2", "glusterfs", "panfs", "orangefs", "pvfs2", "wekafs", "ncpfs"),
)
LOCAL_FUSE = ("fuse.fuse-overlayfs", "fuse.overlayfs")
"""A container's own root is local although it goes through FUSE."""


def _without_password(url: str) -> str:
    """What may stand in a log, of an address that cannot be taken apart."""
    return re.sub(r"(://[^:@]*):.*@", r"\1:***@", url)


def parse_url(url: str) -> URL:
    """Check a database address without touching the database. Raises StoreError."""
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError):
        raise StoreError(
            f"database_url={_without_password(url)} cannot be read; accepted: "
            "sqlite:////var/lib/slurm-elastic/selastic.db or any SQLAlchemy URL, such as postgresql+psycopg://user@host/name"
        ) from None
    try:
        parsed.get_dialect().import_dbapi()
    except ImportError as error:
        raise StoreError(
            f"database_url={_without_password(url)}: its driver {error.name} is not installed beside selasticd; see "
            "docs/how-to/install.md, another database"
        ) from None
    if parsed.get_backend_name() == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise StoreError(f"database_url={url} keeps nothing; accepted: sqlite:////absolute/path/of/the/file.db")
        _check_place(Path(str(parsed.database)))
    return parsed


def file_system(path: Path, mounts: str | None = None) -> str:
    """Type of the file system that holds `path`, by the longest matching mount point; '' when unknown."""
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(errors="replace")
        except OSError:
            return ""
    target, best, kind = str(path.resolve()), "", ""
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        point = words[1].encode().decode("unicode_escape").rstrip("/")
        if (target == point or target.startswith(point + "/")) and len(point) >= len(best):
            best, kind = point, words[2]
    return kind


def is_network(kind: str) -> bool:
    """Whether SQLite's locks cannot be trusted on a file system of this type."""
    return kind in NETWORK_FILE_SYSTEMS or (kind.startswith("fuse.") and kind not in LOCAL_FUSE)


def _check_place(path: Path) -> None:
    folder = path.parent
    try:
        there = folder.is_dir()
    except PermissionError:
        raise StoreError(
            f"database directory {folder} is closed to uid {os.geteuid()}; open it to the daemon's user"
        ) from None
    if not there:
        raise StoreError(f"database directory {folder} does not exist; create it, owned by the daemon's user")
    kind = file_system(path)
    if is_network(kind):
        raise StoreError(
            f"database {path} lies on a network file system ({kind}), where SQLite loses data; "
            "set database_url to a path on a local disk or to a PostgreSQL or MariaDB server"
        )
    for place in (folder, path):
        if place.exists() and not os.access(place, os.W_OK, effective_ids=True):
            raise StoreError(f"database {place} is not writable by uid {os.geteuid()}; give it to the daemon's user")


class Database:
    """One engine with its write lock. `read()` and `write()` give a connection inside a transaction."""

    def __init__(self, url: str) -> None:
        parsed = parse_url(url)
        self.sqlite = parsed.get_backend_name() == "sqlite"
        self.name = str(parsed.database) if self.sqlite else parsed.render_as_string(hide_password=True)
        if self.sqlite:
            # Four readers beside the writer; SQLAlchemy's default would open a file per thread.
            options: dict[str, Any] = {"connect_args": {"timeout": BUSY_S, "check_same_thread": False}}
        else:
            options = {"pool_pre_ping": True}
        self.engine = create_engine(parsed, pool_size=8, max_overflow=24, json_serializer=to_json, **options)
        if self.sqlite:
            event.listen(self.engine, "do_connect", _keep_private)
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)
        self._writing: Engine = self.engine.execution_options(selastic_writes=True)
        self.fence: Callable[[Connection], None] | None = None
        """Called within every transaction that writes; raises where this process may write no more."""
        self.lock = threading.RLock()
        self.version = 0
        """Number of this process's commits that changed more than measurements."""
        self.trouble = ""
        """Why the last transaction that was to write did not; "" when it did."""

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads: one consistent view, never waiting for a writer on SQLite."""
        with self.errors(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self, *, counts: bool = True) -> Iterator[Connection]:
        """A transaction that is on the disk when the block has ended, or not there at all when it raised.

        counts: whether `version` tells of it.
        """
        with self.errors(), self._turn():
            try:
                with self._writing.begin() as connection:
                    if self.fence is not None:
                        self.fence(connection)
                    yield connection
            except OperationalError as error:
                self.trouble = self._sentence(error)
                raise
            self.trouble = ""
            self.version += counts

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self.lock.acquire(timeout=TURN_S):
            self.trouble = self.trouble or f"database {self.name} is busy: its writers wait longer than {TURN_S:.0f} s"
            raise StoreError(self.trouble)
        try:
            yield
        finally:
            self.lock.release()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what the driver raises into a StoreError with a remedy."""
        try:
            yield
        except SQLAlchemyError as error:
            raise StoreError(self._sentence(error)) from error
        except (OverflowError, UnicodeEncodeError) as error:
            raise StoreError(f"a value that the database cannot hold was refused ({error})") from error

    def _sentence(self, error: SQLAlchemyError) -> str:
        text = str(error.orig if isinstance(error, DBAPIError) else error).split("\n")[0]
        lowered = text.lower()
        for sign, sentence in _SIGNS:
            if sign in lowered:
                return f"database {self.name} {sentence}"
        if isinstance(error, IntegrityError):
            return f"database {self.name} refuses a record that breaks its rules ({text})"
        return f"database {self.name} does not do what is asked ({text})"

    def close(self) -> None:
        self.engine.dispose()


def to_json(value: Any) -> str:
    """JSON for a column. A number that JSON does not have (nan, inf) becomes null: it is not known."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False, default=_plain)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    # numpy's scalars and arrays, in evidence that a model has put together.
    return _finite(value.tolist()) if hasattr(value, "tolist") else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_SIGNS = (
    ("database is locked", f"is held by another process for more than {BUSY_S:.0f} s; stop that process"),
    ("database table is locked", f"is held by another process for more than {BUSY_S:.0f} s; stop that process"),
    ("disk is full", "cannot grow: the disk is full; free some space, nothing acknowledged was lost"),
    ("disk i/o error", "meets an I/O error; look at the disk and at free space"),
    ("readonly database", "is not writable; give the file and its directory to the daemon's user"),
    ("unable to open", "cannot be opened; the directory must exist and belong to the daemon's user"),
    ("malformed", "is damaged; stop the daemon and restore it from a backup"),
    ("not a database", "is another kind of file; choose another path in database_url"),
    ("foreign key", "has no record of that job; a job is stored before what belongs to it"),
)


def _keep_private(_dialect: object, _record: object, arguments: list[Any], _options: object) -> None:
    """A new file is its owner's alone whatever the umask; what SQLite lays beside it has the same mode. One that is
    there already is closed to others."""
    path = Path(arguments[0])
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        mode = path.stat().st_mode
        if mode & 0o007 and path.stat().st_uid == os.geteuid():
            path.chmod(mode & 0o770)
    except OSError:
        return  # SQLite says why it cannot be opened


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # The driver would begin transactions on its own, too late and never for reads: _begin_sqlite does it.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={int(BUSY_S * 1000)}")
    _write_ahead(cursor)
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _write_ahead(cursor: sqlite3.Cursor) -> None:
    """Log ahead. While somebody else writes to a new database SQLite refuses that at once, busy_timeout or not."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _begin_sqlite(connection: Connection) -> None:
    # A writer that began as a reader could not wait for the lock: it would fail at once.
    writes = connection.get_execution_options().get("selastic_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
