"""The directory of one run: checkpoints, logs, and the little that a supervisor must know of its predecessors.

A batch job that is requeued finds its directory again and goes on; a second `selastic run` in the same batch script
gets one of its own. The directory has to be on a file system that all nodes of the job share.
"""

import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_elastic.protocol import own_files
from slurm_elastic.protocol.errors import ConfigError

from ..node import program

PRIVATE = "logs", "checkpoints", "compiled"
"""Folders of the job directory that nobody else can enter: torch loads code from the last one."""
KEPT = 20
"""So many companions keep logs of their own."""
TOGETHER, OLDER = "left.log", "left.older.log"
MOST_BYTES = 16 << 20
"""Bytes of the logs that were put together: the last so many are kept, and a few times that at most."""
RECORD = "run.json"
MARK = ".mark-"
RUN = ".run"
_LOG = re.compile(r"(?:agents-)?(\d+)(?:\..+)?\.log")


@dataclass(frozen=True, slots=True)
class Run:
    """What is remembered of a run. `command`: the script and its arguments."""

    command: tuple[str, ...]
    cluster: str
    generation: int = 0
    submitted: str = ""
    """When its job was submitted, as Slurm writes it."""


def cluster(env: Mapping[str, str]) -> str:
    """Which Slurm this is; "" without one."""
    return env.get("SLURM_CLUSTER_NAME", "") if "SLURM_JOB_ID" in env else ""


def choose(
    env: Mapping[str, str],
    command: Sequence[str],
    given: str | None,
    work_dir: str = "",
    submitted: str = "",
    restarts: int = 0,
) -> Path:
    """The directory for this command, which may hold an earlier part of it. Nothing is created.

    In a Slurm job it lies under the job's working directory, where its output goes too. A directory of another
    command, of another cluster's job with the same id, or that others can write to, is left alone and the next number
    taken. So is one of a job that was submitted at another time: ids begin anew when a Slurm does. Slurm changes that
    time only when it puts a job back into the queue; after that, `restarts` > 0, the last directory is the job's own.
    Without Slurm, and without `given`, it is always a new one: only who names the directory wants to go on.
    """
    if given:
        return Path(given).resolve()
    job_id = env.get("SLURM_JOB_ID")
    parent = Path(work_dir or env.get("SLURM_SUBMIT_DIR") or Path.cwd()) / ".selastic"
    if not job_id:
        return parent / f"local-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    found: list[tuple[bool, Path]] = []
    for number in itertools.count(1):
        place = parent / (job_id if number == 1 else f"{job_id}-{number}")
        new = not place.exists()
        if not own_files.foreign(place):
            earlier = read(place)
            if earlier is None or (earlier.command, earlier.cluster) == (tuple(command), cluster(env)):
                found.append((earlier is None or _of_run(place, earlier, submitted), place))
        if new:
            break
    *earlier_ones, (_, first_free) = found
    if restarts and earlier_ones:
        return earlier_ones[-1][1]
    return next((place for own, place in earlier_ones if own), first_free)


def _of_run(place: Path, earlier: Run, submitted: str) -> bool:
    """Whether the job that was submitted then, as Slurm writes it, has made this record. One of a build that did not
    note it counts if it is younger."""
    if earlier.submitted or not submitted:
        return submitted in ("", earlier.submitted)
    with contextlib.suppress(OSError, ValueError):
        return (place / RECORD).stat().st_mtime >= time.mktime(time.strptime(submitted, "%Y-%m-%dT%H:%M:%S"))
    return True


def create(place: Path) -> None:
    """Make the directory. Raises ConfigError when that is not possible."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        if why := own_files.foreign(place):
            own_files.make_own(place)  # what the umask gave to a group
            why = own_files.foreign(place)
        if why:
            raise ConfigError(
                f"the job directory {place} {why}; accepted: --job-dir that you alone can write to. A file system that "
                f"shows this whatever is set: {own_files.TRUSTED}={place}, where all who can write there are trusted"
            )
        for name in PRIVATE:
            own_files.make_private(place / name)
            if why := own_files.foreign(place / name):
                raise ConfigError(f"{place / name} {why}; accepted: a directory of your own, or none")
    except OSError as error:
        raise ConfigError(
            f"the job directory {place} cannot be made ({error.strerror}); "
            "accepted: --job-dir on a file system that all nodes share and you can write to"
        ) from None


def begin_program(place: Path, run: str, fresh: bool) -> None:
    """Make the folder of what is kept of the program (node/program.py). What it holds of another run is dropped: who
    goes on in a new job may have edited it. So it is where the training begins anew."""
    folder = place / program.FOLDER
    with contextlib.suppress(OSError):
        known = (folder / RUN).exists() and not own_files.foreign_below(folder)  # these are programs, too
        if fresh or not known or (folder / RUN).read_text() != run:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            (folder / RUN).write_text(run)


def mark(place: Path) -> str:
    """Leave a file of a name that was never used before, by which other nodes see that the directory is the same there;
    "" when that is not possible."""
    try:
        for old in place.glob(f"{MARK}*"):
            old.unlink(missing_ok=True)
        name = MARK + secrets.token_hex(8)
        (place / name).touch()
    except OSError:
        return ""
    return name


def read(place: Path) -> Run | None:
    """The record of an earlier part of this run; None when there is none."""
    try:
        values = json.loads((place / RECORD).read_text())
        command, submitted = tuple(values["command"]), str(values.get("submitted", ""))
        return Run(command, str(values["cluster"]), int(values["generation"]), submitted)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        # A generation may be lost here; `newest_step` still finds the checkpoints, and a new world never meets an old.
        return None


def write(place: Path, run: Run) -> None:
    """Replace the record; it is on disk when this returns."""
    partial = place / f".{RECORD}.partial"
    with partial.open("w") as file:
        file.write(json.dumps(asdict(run)))  # json.dump leaves cycles behind
        file.flush()
        os.fsync(file.fileno())
    own_files.make_own(partial)  # what the umask gave to a group
    partial.replace(place / RECORD)


def newest_step(place: Path) -> int | None:
    """Step of the newest complete checkpoint; None when there is none. The workers verify what they load."""
    found = [*place.glob("step-*/checkpoint.json"), *place.glob("*/step-*/checkpoint.json")]
    steps = [int(match.group(1)) for path in found if (match := re.match(r"step-(\d+)", path.parent.name))]
    return max(steps, default=None)


def put_together(folder: Path, used: Set[int]) -> None:
    """Append the logs of all companions that are neither `used` nor among the last to one file, each under its name: a
    job that is resized for months has thousands of them, and a disk has inodes for so many files only. What is written
    to one later goes with it. Raises OSError."""
    logs: dict[int, list[Path]] = {}
    for path in folder.iterdir():
        if (found := _LOG.fullmatch(path.name)) and int(found.group(1)) not in used:
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
