"""What the tests' training scripts share: the knobs that every one of them has, and a piece of user state.

Imported by its name: however a script is run, the folder it lies in comes first on the path.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from pathlib import Path

from slurm_elastic.trainer_shim import job as shim
from slurm_elastic.trainer_shim.control.worker_client import WorkerClient


def knobs(samples: int = 403) -> argparse.ArgumentParser:
    """The options of every script; `out` is the folder that its results go to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pace", type=float, default=0.004, help="seconds per micro batch")
    parser.add_argument("--samples", type=int, default=samples)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--micro", type=int)
    parser.add_argument("--lr", default="auto")
    parser.add_argument("--name", default="final")
    parser.add_argument("--hold-from", type=int, default=1 << 60, help="step from which on the test's hold counts")
    parser.add_argument("out")
    return parser


class Pace:
    """Called for each micro batch, naps. While the test's file `hold` is there, a step from --hold-from on takes an
    eighth of the time that the file has been there: it is as slow as its machine, so the training does not end. Not
    while something is wanted of this worker, nor the first step of a world: a resize must not take the longer, the
    later it comes."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._hold = args, Path(args.out) / "hold"
        self._world = self._step = -1

    def __call__(self) -> None:
        time.sleep(self._args.pace)
        (job,) = shim._current
        if os.environ.get("RAISE") == str(job.generation):
            raise ValueError("this rank fails")
        if self._world == job.generation and self._args.hold_from <= job.global_step != self._step:
            self._wait(job._session.membership.client)
        self._world, self._step = job.generation, job.global_step

    def _wait(self, link: WorkerClient | None) -> None:
        with contextlib.suppress(FileNotFoundError):
            began = self._hold.stat().st_mtime
            until = time.time() + (time.time() - began) / 8
            while self._hold.exists() and time.time() < until and (link is None or link.idle):
                time.sleep(0.01)


class Average:
    """User state: the number of steps that this object has seen."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]
