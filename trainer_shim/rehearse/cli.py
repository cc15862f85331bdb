"""`selastic rehearse`: train a script for some steps on one worker as it is, and again while workers come, leave and
are killed, and say what held. On the CPUs of this machine; no Slurm is needed, and none is asked."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_elastic.protocol.errors import ConfigError

if TYPE_CHECKING:
    from .findings import Trained

EPILOG = """It runs in a copy of the working directory: files there are copied, up to 50 MB each, folders linked.
Dropout is off in both runs. Exit status: 0 if all held, 1 if not, 2 wrong usage."""
COPIED_MB = 50
WAITS = (0.15, 0.35, 0.5)
"""Parts of the steps after which the next change of the world comes at the latest."""
KILL = 0.75
"""Part after which a worker is killed."""
FEWEST = 10
"""Steps that a grow, a shrink, another grow and a kill need."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--steps", type=int, default=32, metavar="N", help="optimizer steps of each run (default: 32)")
    parser.add_argument(
        "--keep", metavar="DIR", help="new directory for what both runs wrote (default: a temporary one)"
    )
    parser.add_argument("script", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(args: argparse.Namespace) -> int:
    """Both runs and the table; 0: all held."""
    from .findings import Row, compare, table  # not above: pages and completions are made where no torch is

    if args.steps < FEWEST:
        raise ConfigError(f"--steps {args.steps} is not accepted; accepted: {FEWEST} and more")
    if not Path(args.script).is_file():
        raise ConfigError(f"script {args.script} is not there; accepted: the path of a Python file")
    folder = Path(args.keep or tempfile.mkdtemp(prefix="selastic-rehearse-")).resolve()
    words = [args.script, *(args.arguments[1:] if args.arguments[:1] == ["--"] else args.arguments)]
    print(
        f"{args.steps} steps on one worker, and beside it with a grow, a shrink, another grow and a kill ...",
        flush=True,
    )
    runs = [
        Training(folder / "undisturbed", words, args.steps, False),
        Training(folder / "resized", words, args.steps, True),
    ]
    plain, resized = (run.ended() for run in runs)
    if plain.code == 0 and FEWEST <= plain.steps < args.steps:  # the script has no more
        print(
            f"the training ends after {plain.steps} steps: with a grow, a shrink, another grow and a kill in these ..."
        )
        resized = Training(folder / "resized again", words, plain.steps, True, ends=False).ended()
    if plain.code != 0:
        rows = [Row("the run on one worker", False, plain.why())]
    elif plain.steps < FEWEST:
        rows = [Row("the run", False, f"it has {plain.steps} steps; accepted: {FEWEST} and more, or another data set")]
    else:
        rows = compare(plain, resized)
    print(table(rows))
    held = all(row.held for row in rows)
    if held and not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"what both runs wrote: {folder}")
    return 0 if held else 1


class Training:
    """One run in a directory of its own, under way."""

    def __init__(self, folder: Path, words: list[str], steps: int, resized: bool, ends: bool = True) -> None:
        """ends: after so many steps; else with the script, whose length they are."""
        self._folder, place, record = folder, folder / "cwd", folder / "record"
        record.mkdir(parents=True)
        shadow(Path.cwd(), place)
        waits = [round(part * steps) for part in WAITS] if resized else []
        plan = {"folder": str(record), "steps": steps + (not ends), "waits": waits}
        plan["kill"] = round(KILL * steps) if resized else 0
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SELASTIC_"))}
        command = [sys.executable, "-m", "slurm_elastic.trainer_shim.rehearse.driven", json.dumps(plan), "--nproc", "1"]
        command += ["--job-dir", str(folder / "job"), "--audit", str(folder / "audit"), *words]
        with (folder / "out.txt").open("w") as out:
            self._process = subprocess.Popen(
                command,
                cwd=place,
                env={**kept, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def ended(self) -> Trained:
        """What it has left, once it is over."""
        from .findings import Trained

        return Trained(self._folder, self._process.wait())


def shadow(source: Path, place: Path) -> None:
    """A directory that a script can take for `source`, and write to."""
    place.mkdir()
    for entry in source.iterdir():
        if entry.is_file() and not entry.is_symlink() and entry.stat().st_size <= COPIED_MB << 20:
            shutil.copy2(entry, place / entry.name)
        else:
            (place / entry.name).symlink_to(entry.resolve())
