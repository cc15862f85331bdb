"""Copies of the training's state, taken between two steps; this rank writes them in the background: periodically, on
request, on a signal. What is due here goes to the other ranks with the next step.

At a switch of replicas the copy is taken while the new world forms and written after its first step; where every rank
holds parts they are written before it. Periodic ones are taken at a step that all ranks agreed on; during an evaluation
on rank 0, when no step comes, on the client's thread.
"""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from slurm_elastic.protocol.errors import TrainingError

from ..control.worker_client import ComingWorld
from ..parallel.strategy import Strategy
from ..state.kept_parts import State
from ..state.packed_tensors import pack
from ..world import process_group as worlds
from ..world.process_group import World
from ..world.rendezvous import Membership
from . import contents, disk_space
from .contents import Globals
from .files import Found, Saved, Writer, load_newest, megabytes

SAVE_WAIT_S = 20.0
"""How long a leaving worker waits for its last snapshot to be on disk; below worker_client.LOST_GRACE_S."""
AHEAD_S = 60.0
"""How long a switch is put off, while training goes on, until the checkpoint before it is written."""
EVERY_S = 600.0
"""Between two checkpoints where nobody says how often, and no supervisor asks."""
PARTS_WAIT_S = 5.0
"""How long a switch waits for parts that are still being written; such a checkpoint is lost, not the switch."""


class Snapshots:
    """See the module. One per job."""

    def __init__(
        self,
        membership: Membership,
        state: State,
        model: Callable[[], Strategy],
        directory: Any,
        every_s: float | None,
        safe: Globals = (),
    ) -> None:
        self.given_s = every_s or 0.0
        """Between two checkpoints, as the script says; 0: it does not."""
        if every_s is None:  # the supervisor asks in time
            every_s = EVERY_S if membership.client is None else math.inf
        self.saving = Saving(directory, every_s, self._saved, safe)
        self._membership, self._state, self._model = membership, state, model
        self._held: dict[str, Any] | None = None
        self._ahead, self._ahead_until, self._ahead_saved = 0, 0.0, False
        self._copying: Future[dict[str, Any]] | None = None
        self._still = threading.Lock()
        self._quiet = False
        self._pause_s = 0.0
        """How long the last checkpoint between two steps kept the training."""
        if self.saving.writer is not None:
            membership.on_leave = self._before_leaving
            self.saving.writer.on_free = self._free
            self.saving.writer.on_failed = self._failed

    # -- at a switch -----------------------------------------------------------------------------------------------

    def ahead(self, coming: ComingWorld | None, rank: int) -> tuple[bool, bool]:
        """Before a switch of a model that is cut up: whether rank 0 wants a checkpoint for it, and whether the switch
        may come. Written while training goes on, it is what a switch that fails falls back to."""
        writer = self.saving.writer
        if coming is None or coming.in_place or rank != 0 or writer is None or not self._model().sharded:
            return False, True
        if self._ahead != coming.generation:
            self._ahead, self._ahead_until, self._ahead_saved = coming.generation, time.monotonic() + AHEAD_S, False
            return True, False
        written = self._ahead_saved and not writer.busy
        return False, written or time.monotonic() >= self._ahead_until

    def begin(self, rank_0: bool) -> None:
        """Start copying for a switch; every rank calls this. rank_0: this will be rank 0 of the new world."""
        self._copying = None
        if self._model().sharded:
            self.saving.wait(PARTS_WAIT_S)  # what is being written in parts needs the group that is about to go
        elif rank_0 and self.saving.writer is not None:
            captured, stream = self._state.capture(), _behind_now()

            # Replicas are copied while the new world forms: until its first step nothing changes them.
            def copy() -> dict[str, Any]:
                with torch.cuda.stream(stream):
                    return self._state.copy(captured)

            self._copying = in_background(copy)

    def hold(self) -> None:
        """Have the snapshot of a switch complete before the next step, and written after it: writing takes time too."""
        self._held = self._copying.result() if self._copying is not None else None
        self._copying = None

    def write_held(self) -> None:
        """A step has been done."""
        snapshot, self._held = self._held, None
        if snapshot is not None and self.saving.writer is not None:
            self.saving.writer.put(snapshot)

    def _before_leaving(self) -> None:
        self.write_held()
        self.saving.wait(SAVE_WAIT_S)

    # -- between two steps -----------------------------------------------------------------------------------------

    def save(self, check: Callable[[], None] = lambda: None) -> None:
        """Copy the state and have it written; every rank calls this at the same step. check: raises where the copy is
        of no use."""
        began, self._held = time.monotonic(), None  # an older one
        self._ahead_saved = True
        writer, world = self.saving.writer, self._membership.world
        if writer is None or world is None:
            return
        if self._model().sharded and world.grouped:
            self._save_parts(writer, world, check)
        elif world.rank == 0:
            snapshot = self._state.snapshot()
            check()
            writer.put(snapshot)
        self._pause_s = time.monotonic() - began

    def save_last(self, check: Callable[[], None]) -> str:
        """Save, and wait until it is on disk; once more if that fails. Every rank calls this. Why it is not there; ""
        if it is."""
        problem = ""
        for _ in range(2):
            self.save(check)
            problem, world = self.saving.finish(), self._membership.world
            again = bool(problem)
            if world is not None and self._model().sharded:
                again = any(failed for (failed,) in worlds.gather(world, int(again)))
            if not again:
                break
        return problem

    def first_look(self) -> None:
        """On rank 0, as soon as optimizers have their state: whether it can be saved, and there is room for all
        checkpoints. Raises TrainingError for what no checkpoint holds; a lack of room is told."""
        writer = self.saving.writer
        tensors: list[torch.Tensor] = []
        captured = self._state.capture()
        contents.check_tensors(captured)
        if writer is None:
            return
        contents.check(captured, writer.safe)
        pack(captured, tensors)
        told = disk_space.missing(writer.directory, sum(tensor.numel() * tensor.element_size() for tensor in tensors))
        if told:
            sys.stderr.write(f"selastic: {told}\n")

    def _save_parts(self, writer: Writer, world: World, check: Callable[[], None]) -> None:
        """Every rank has its own parts written, none of them gathered."""
        from . import sharded

        # The earlier one's memory is still in use, and writers of all ranks have to keep one order.
        free = writer.wait(SAVE_WAIT_S)
        if not all(answer for (answer,) in worlds.gather(world, int(free))):
            step = self._state.progress.step
            print(f"no checkpoint of step {step}: the one before is not written after {SAVE_WAIT_S:.0f} s", flush=True)
            return
        skeleton, tensors = sharded.copy(self._state.capture())
        check()
        group = world.owned.beside()
        writer.put_parts(lambda: sharded.write(writer.directory, skeleton, tensors, group, writer.safe))

    def read_parts(self, found: Found, world: World | None) -> dict[str, Any]:
        """What a checkpoint in parts holds, cut up as this world's model is; every rank calls this.

        Without a world: whole tensors, on this rank alone, for a model that is not cut up.
        """
        from . import sharded

        saved, skeleton = found
        return sharded.read(
            saved.path, skeleton, self._state if world else None, world.owned.beside() if world else None
        )

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """While this lasts on rank 0 no step is taken, and nothing that is kept changes."""
        self._quiet = True
        try:
            yield
        finally:
            with self._still:
                self._quiet = False

    def while_quiet(self) -> None:
        """On rank 0's client thread. During an evaluation no step comes that could save."""
        client, writer = self._membership.client, self.saving.writer
        if client is None or not client.save_wanted or writer is None:
            return
        with self._still:
            if self._quiet and not self._model().sharded:
                client.save_wanted = False
                writer.put(self._state.snapshot())

    # -- on the writer's thread ------------------------------------------------------------------------------------

    def _free(self, snapshot: dict[str, Any]) -> None:
        if not self._model().sharded:  # there, optimizers may have taken over tensors of a snapshot
            self._state.recycle(snapshot)

    def _saved(self, saved: Saved) -> None:
        if self._membership.client is not None:
            fields = {"step": saved.step, "samples": saved.samples, "path": str(saved.path)}
            writer = self.saving.writer
            cost = {"pause_s": self._pause_s, "write_s": writer.took_s if writer is not None else 0.0}
            self._membership.client.send({"type": "saved", **fields, **cost, "megabytes": megabytes(saved.path)})

    def _failed(self, problem: str) -> None:
        world, client = self._membership.world, self._membership.client
        if client is not None and world is not None and world.rank == 0:
            client.send({"type": "unsaved", "error": problem})


def _behind_now() -> Any:
    """A stream of the GPU in which all comes behind what it has been given by now, and nothing waits for what it is
    given later, which may hang; None without a GPU."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return stream


LAST_S = 1800.0
"""How long the end of a training waits for its last checkpoint."""


def in_background(function: Callable[[], dict[str, Any]]) -> Future[dict[str, Any]]:
    """Run a function on a thread of its own."""
    future: Future[dict[str, Any]] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="selastic-snapshot", daemon=True).start()
    return future


class Saving:
    """When to save, and who does; a handler of signals only sets a flag. Without a directory nothing is saved."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        every_s: float,
        on_saved: Callable[[Saved], None],
        safe: Globals = (),
    ) -> None:
        job_dir = os.environ.get("SELASTIC_JOB_DIR")
        where = directory or (Path(job_dir) / "checkpoints" if job_dir else None)
        self.writer = Writer(Path(where), on_saved, safe) if where else None
        self._every_s = every_s
        self._signal = 0

    def memory(self) -> Path | None:
        """The file with the micro batches that this job's workers have found to fit; beside the checkpoints."""
        return self.writer.directory.parent / "micro_batch.json" if self.writer is not None else None

    def handle_signals(self) -> None:
        """SIGUSR1: save. SIGTERM: save, then end. Only without a supervisor, which handles both itself."""
        if self.writer is not None and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: Any) -> None:
        if self._signal != signal.SIGTERM:
            self._signal = number

    def ask(self) -> None:
        """Save with the next step."""
        self._signal = self._signal or signal.SIGUSR1

    def due(self, rank: int) -> bool:
        """Whether this rank wants a checkpoint. Rank 0 looks at the clock for all."""
        if self.writer is None:
            return False
        wanted = self._signal != 0
        if self._signal != signal.SIGTERM:
            self._signal = 0
        overdue = time.monotonic() - self.writer.last_at >= self._every_s
        return wanted or (rank == 0 and overdue and not self.writer.busy)

    @property
    def ending(self) -> bool:
        """Whether this rank has been asked to end."""
        return self._signal == signal.SIGTERM

    def wait(self, timeout_s: float) -> None:
        """Wait until what was put is on disk, or has failed; no longer than this."""
        if self.writer is not None:
            self.writer.wait(timeout_s)

    def finish(self) -> str:
        """Wait for the last checkpoint. Why it is not on disk; "" if it is."""
        if self.writer is None:
            return ""
        if not self.writer.wait(LAST_S):
            return f"the file system does not answer: not written after {LAST_S:.0f} s"
        return self.writer.problem

    def newest(self, must: bool) -> Found | None:
        """The newest readable checkpoint. Raises TrainingError when there `must` be one and is none."""
        found = load_newest(self.writer.directory, self.writer.safe) if self.writer is not None else None
        if found is None and must:
            where = self.writer.directory if self.writer is not None else "an unset directory"
            raise TrainingError(f"the supervisor asked to restore a checkpoint, and there is none in {where}")
        return found
