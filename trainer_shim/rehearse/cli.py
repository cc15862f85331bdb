"""`selastic rehearse`: train a script for some steps on one worker as it is, and again while workers come, leave and
are killed, and say what held. On the CPUs of this machine; no Slurm is needed, and none is asked."""

import argparse
import json
import os
import shutil
import signal
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
Dropout is off in both runs, and each sample has random numbers of its own; where all held, three more runs have these
as they are. Exit status: 0 if all held, 1 if not, 2 wrong usage."""
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
    for notice in (signal.SIGUSR1, signal.SIGUSR2):  # a job's, before its end; the runs take it as those of a job do
        signal.signal(notice, signal.SIG_IGN)
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

    def begin(name: str, random: str, resized: bool = False, beside: str = "") -> Training:
        other = str(folder / beside / "record") if beside else ""
        return Training(folder / name, words, {"steps": steps, "random": random, "resized": resized, "beside": other})

    first, beside = begin("undisturbed", "off"), begin("resized", "off", True, "undisturbed")
    plain = first.ended()
    resized = beside.ended(plain)
    if plain.code != 0:
        return [Row("the run on one worker", False, plain.why())]
    if plain.steps < FEWEST:
        few = f"it ended after {plain.steps} steps; accepted: {FEWEST} and more (further epochs, more data)"
        if not plain.steps:
            few = "it made no optimizer step of elastic.join()'s; accepted: a script that calls it and trains"
        return [Row("the run", False, few)]
    rows = compare(plain, resized, lambda: begin("nudged", "nudged", beside="undisturbed").ended(plain))
    chance = plain.random + plain.drawn + plain.apart
    if chance and all(row.held for row in rows):
        print(f"the same again with {chance[0]} as it is, and beside it with another seed ...", flush=True)
        # Without spaces, which the compiler of torch.compile() does not bear.
        first, beside = begin("random", "on"), begin("random-resized", "on", True, "random")
        other, plain = begin("another-seed", "other", beside="random"), first.ended()
        rows.append(as_another_seed(plain, other.ended(plain), beside.ended(plain)))
    return rows


class Training:
    """One run in a folder of its own, under way. plan: see rehearsed.py."""

    def __init__(self, folder: Path, words: list[str], plan: dict[str, Any]) -> None:
        self._folder, place = folder, folder / "cwd"
        (folder / "record").mkdir(parents=True)
        shadow(Path.cwd(), place)
        program = [str(place), str((place / words[0]).resolve().parent)]
        text = json.dumps({**plan, "folder": str(folder / "record"), "program": program, "pid": os.getpid()})
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SELASTIC_"))}
        command = [sys.executable, "-m", "slurm_elastic.trainer_shim.rehearse.driven", text, "--nproc", "1"]
        command += ["--preload", watched.__name__, "--job-dir", str(folder / "job")]
        command += ["--audit", str(folder / "audit"), *words]
        env = {**kept, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        with (folder / "out.txt").open("w") as out:
            self._process = subprocess.Popen(command, cwd=place, env=env, stdout=out, stderr=subprocess.STDOUT)

    def ended(self, first: Trained | None = None) -> Trained:
        """What it has left, once it is over. first: that of the run which it is compared with, and waits for."""
        if first is not None:
            (self._folder / "record" / "length").write_text(str(max(1, first.steps)))
            if first.code != 0:
                self._process.terminate()
        return Trained(self._folder, self._process.wait())


def shadow(source: Path, place: Path) -> None:
    """A directory that a script can take for `source`, and write to."""
    place.mkdir()
    for entry in source.iterdir():
        if entry.is_file() and not entry.is_symlink() and entry.stat().st_size <= COPIED_MB << 20:
            shutil.copy2(entry, place / entry.name)
        else:
            (place / entry.name).symlink_to(entry.resolve())
