"""A training under `selastic rehearse`: what every worker holds after each step is written down, and the training waits
where a resize is to come, loses a worker where one is to be killed, and ends after some steps.

Dropout is off: what it leaves out differs by rank, and would hide what else differs. Limits: files that libraries write
without Python's open() or torch.save() are not seen; a resize that does not come is waited for so long, and left out.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

import torch

from ..parallel.strategy import Strategy
from ..state.kept_parts import State
from ..world.process_group import World
from ..world.rendezvous import Membership
from .guards.replica_check import ReplicaCheck

VARIABLE = "SELASTIC_REHEARSE"
"""{"folder": where to write, "steps": after which it ends, "waits": those after which a resize comes, "kill": the one
after which the last rank is killed, once; 0: none}."""
WAIT_S = 90.0
RANDOM = ("Dropout", "DropPath", "StochasticDepth")
STATISTICS = "BatchNorm"


class RehearsedSession(Protocol):
    """What a rehearsal needs of the training's session."""

    membership: Membership
    state: State
    replica_check: ReplicaCheck

    @property
    def rank(self) -> int: ...

    def world(self) -> World: ...

    def model(self) -> Strategy: ...


class Rehearsed:
    """See the module. One per session that is rehearsed."""

    def __init__(self, session: RehearsedSession, plan: str) -> None:
        given = json.loads(plan)
        self._session, self._folder = session, Path(given["folder"])
        self._steps, self._waits, self._kill = given["steps"], given["waits"], given["kill"]
        self._worker = os.environ.get("SELASTIC_WORKER", "alone").replace("/", "_")
        self._seen = -1
        self._ended = False
        self._watch_files()

    def entered(self) -> None:
        """A world is complete."""
        module = self._session.model().module
        off, statistics = [], []
        for name, part in module.named_modules():
            kind = type(part).__name__
            rate = getattr(part, "dropout", None)
            if isinstance(rate, float) and rate > 0:  # of attention, and of recurrent layers
                part.dropout = 0.0
                off.append(name or kind)
            if any(word in kind for word in RANDOM) and float(getattr(part, "p", 0)):
                part.p = 0.0
                off.append(name or kind)
            if STATISTICS in kind:
                statistics.append(name or kind)
        self._note({"random": off, "statistics": statistics})
        if self._session.state.progress.step == 0:
            self._save("initial")

    def between_steps(self) -> None:
        """A step has been done, and the world may change now."""
        step, world = self._session.state.progress.step, self._session.world()
        if step == self._seen:
            return
        self._seen = step
        held = self._session.replica_check.look()
        place = {"step": step, "rank": world.rank, "size": world.size, "generation": world.generation}
        rates = {name: value for name, value in held.values.items() if name.startswith("lr ")}
        self._note({**place, "values": rates, "sums": dict(zip(held.names, held.read(), strict=True))})
        if step >= self._steps:
            self._end(step)
        killed = self._folder / "killed"
        if step in self._waits and world.generation <= self._waits.index(step) + 1:  # else it has come earlier
            until = time.monotonic() + WAIT_S
            while self._session.membership.vote(False, False, 0.0)[0] is None and time.monotonic() < until:
                time.sleep(0.005)
        if (
            self._kill
            and step >= self._kill
            and world.size > 1
            and world.rank == world.size - 1
            and not killed.exists()
        ):
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def finished(self) -> None:
        """The script's loop is over. Every rank calls this."""
        if not self._ended:
            self._ended = True
            self._save("final")

    def _end(self, step: int) -> None:
        client = self._session.membership.client
        self.finished()
        if client is not None:
            progress = self._session.state.progress
            said = {"step": step, "samples": progress.samples, "epoch": progress.epoch, "finished": True}
            client.send({"type": "done", **said, "unsaved": ""})
            self._session.membership.exit_process(0)

    def _save(self, name: str) -> None:
        session = self._session
        whole = session.model().full_state(keep=session.rank == 0)
        if session.rank == 0:
            names = {name for name, _ in session.model().module.named_parameters()}
            tensors = {key: value for key, value in whole.items() if isinstance(value, torch.Tensor)}
            values = {
                key: value.to_dense() if value.layout != torch.strided else value for key, value in tensors.items()
            }
            found = {"step": session.state.progress.step, "model": values, "parameters": sorted(names)}
            torch.save(found, self._folder / f"{name}.pt")

    def _note(self, line: dict[str, Any]) -> None:
        text = json.dumps({"worker": self._worker, **line}, default=str)
        with (self._folder / f"{self._worker}.jsonl").open("a") as file:
            file.write(text + "\n")

    def _watch_files(self) -> None:
        here, busy, save = Path.cwd(), [False], torch.save
        own = str(Path(os.environ.get("SELASTIC_JOB_DIR", here)).parent)
        others = (own, sys.prefix, sys.base_prefix, tempfile.gettempdir(), "/dev", "/proc", "/sys")

        def wrote(path: Any) -> None:
            if busy[0] or not isinstance(path, (str, os.PathLike)):
                return
            whole = here / os.fsdecode(path)
            inside = whole.is_relative_to(here)
            if "__pycache__" in whole.parts or (not inside and str(whole).startswith(others)):
                return
            busy[0] = True
            world = self._session.membership.world
            name = whole.relative_to(here) if inside else whole
            self._note({"file": str(name), "generation": world.generation if world is not None else -1})
            busy[0] = False

        def heard(event: str, args: tuple[Any, ...]) -> None:
            if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
                wrote(args[0])

        @functools.wraps(save)
        def seen(value: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            wrote(f)  # torch writes by itself
            busy[0] = True
            try:
                save(value, f, *args, **kwargs)
            finally:
                busy[0] = False

        sys.addaudithook(heard)
        torch.save = seen  # type: ignore[assignment]
