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
from typing import Any

from slurm_elastic.protocol.errors import ConfigError

from ..control import copies
from ..training import watched
from .findings import Row, Trained, as_another_seed, compare, table

EPILOG = """It runs in a copy of the working directory: files there are copied, up to 50 MB each, folders linked.
Dropout is off in both runs; where all held, three more have it on. Exit status: 0 if all held, 1 if not, 2 wrong
usage."""
COPIED_MB = 50
FEWEST = 12
"""Steps that a grow, a kill, a shrink and a signal need."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--steps", type=int, default=32, metavar="N", help="optimizer steps of each run (default: 32)")
    parser.add_argument(
        "--keep", metavar="DIR", help="new directory for what both runs wrote (default: a temporary one)"
    )
    parser.add_argument("script", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")


def run(args: argparse.Namespace) -> int:
    """All runs and the table; 0: all held."""
    if args.steps < FEWEST:
        raise ConfigError(f"--steps {args.steps} is not accepted; accepted: {FEWEST} and more")
    if not Path(args.script).is_file():
        raise ConfigError(f"script {args.script} is not there; accepted: the path of a Python file")
    why = copies.refusal(os.environ, "the training", "accepted: one command alone, which starts all workers itself")
    if why:
        if copies.is_first(os.environ):
            print(table([Row("started once", False, why)]))
        return 1
    folder = Path(args.keep or tempfile.mkdtemp(prefix="selastic-rehearse-")).resolve()
    words = [args.script, *(args.arguments[1:] if args.arguments[:1] == ["--"] else args.arguments)]
    print(f"{args.steps} steps on one worker, and beside it with a grow, a kill and a shrink ...", flush=True)
    rows = rehearsed(folder, words, args.steps)
    print(table(rows))
    held = all(row.held for row in rows)
    if held and not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"what the runs wrote: {folder}")
    return 0 if held else 1


def rehearsed(folder: Path, words: list[str], steps: int) -> list[Row]:
    """All runs, and what held."""

    def together(runs: dict[str, tuple[str, bool]]) -> list[Trained]:
        """Runs side by side, by their folders: what is random (see rehearsed.py), and whether it is resized. All others
        are compared with the first one."""
        first, *others = [Training(folder / name, words, steps, *how, next(iter(runs))) for name, how in runs.items()]
        ended = first.ended()
        for other in others:
            other.goes_on(ended)
        return [ended, *(other.ended() for other in others)]

    plain, resized = together({"undisturbed": ("off", False), "resized": ("off", True)})
    if plain.code != 0:
        return [Row("the run on one worker", False, plain.why())]
    if plain.steps < FEWEST:
        few = f"it has {plain.steps} steps; accepted: {FEWEST} and more, or another data set"
        return [Row("the run", False, few)]
    rows = compare(plain, resized)
    if plain.random and all(row.held for row in rows):
        print(f"the same again with {plain.random[0]} on, and beside it with another seed ...", flush=True)
        runs = {"random": ("on", False), "another seed": ("other", False), "random, resized": ("on", True)}
        rows.append(as_another_seed(*together(runs)))
    return rows


class Training:
    """One run in a folder of its own, under way."""

    def __init__(self, folder: Path, words: list[str], steps: int, random: str, resized: bool, first: str) -> None:
        self._folder, place, record = folder, folder / "cwd", folder / "record"
        record.mkdir(parents=True)
        shadow(Path.cwd(), place)
        program = [str(place), str((place / words[0]).resolve().parent)]
        plan: dict[str, Any] = {
            "folder": str(record),
            "program": program,
            "steps": steps,
            "random": random,
            "resized": resized,
        }
        plan["beside"] = str(folder.parent / first / "record") if folder.name != first else ""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SELASTIC_"))}
        command = [sys.executable, "-m", "slurm_elastic.trainer_shim.rehearse.driven", json.dumps(plan), "--nproc", "1"]
        command += ["--preload", watched.__name__]
        command += ["--job-dir", str(folder / "job"), "--audit", str(folder / "audit"), *words]
        with (folder / "out.txt").open("w") as out:
            self._process = subprocess.Popen(
                command,
                cwd=place,
                env={**kept, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def goes_on(self, first: Trained) -> None:
        """The run that it is compared with is over; where that has failed this one ends."""
        (self._folder / "record" / "length").write_text(str(max(1, first.steps)))
        if first.code != 0:
            self._process.terminate()

    def ended(self) -> Trained:
        """What it has left, once it is over."""
        return Trained(self._folder, self._process.wait())


def shadow(source: Path, place: Path) -> None:
    """A directory that a script can take for `source`, and write to."""
    place.mkdir()
    for entry in source.iterdir():
        if entry.is_file() and not entry.is_symlink() and entry.stat().st_size <= COPIED_MB << 20:
            shutil.copy2(entry, place / entry.name)
        else:
            (place / entry.name).symlink_to(entry.resolve())
