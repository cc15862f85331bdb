"""The state of the last finished step, written by rank 0 alone where the job ends and the step under way does not.

That step may take longer than the job has left, or wait for ranks that are gone. Limits: replicas only, for nobody
holds all of a model that is cut up over ranks; buffers that a forward pass changes are those of the step under way.
"""

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from ..checkpoint.files import Writer
from ..parallel.strategy import Strategy
from ..state.kept_parts import State
from ..world.rendezvous import Membership

GPU_S, LOOK_S = 2.0, 0.01
"""How long a GPU may need for the last step that the host has ended."""
PATIENCE = 0.35
"""Share of the time left that the step under way gets; the rest is for writing."""


class LastState:
    """See the module. One per session."""

    def __init__(
        self,
        membership: Membership,
        state: State,
        model: Callable[[], Strategy],
        writer: Writer | None,
        device: torch.device,
    ) -> None:
        self._membership, self._state, self._model, self._writer = membership, state, model, writer
        self._lock = threading.Lock()
        self.torn = False
        """In the middle of an optimizer step: parameters and position do not belong together."""
        self._written = False
        self._told: tuple[float, float] | None = None
        """When the end was first seen coming, and when it comes."""
        self._device = device
        self._stepped: Any = torch.cuda.Event() if device.type == "cuda" else None

    # -- on the training's thread ----------------------------------------------------------------------------------

    def step_begins(self) -> None:
        """The optimizers are stepped next."""
        with self._lock:
            self.torn = True

    def step_ended(self) -> None:
        """The position belongs to the parameters again."""
        if self._stepped is not None:
            self._stepped.record()
        self.torn = False

    def saved(self, save: Callable[[], None]) -> None:
        """All ranks save together, at the end of a step: there is a better one than this could write."""
        with self._lock:
            self._written = True
            save()

    def write_broken(self) -> None:
        """The world is broken, and this rank leaves it: where the job ends, what it has is written first."""
        client = self._membership.client
        if client is not None and client.ends_at is not None and self._write() and self._writer is not None:
            self._writer.wait(max(0.0, client.ends_at - time.monotonic()))

    # -- on the client's thread ------------------------------------------------------------------------------------

    def write_overdue(self) -> None:
        """Where the job ends and the step under way has had its share of the time; or the world, which does none."""
        client = self._membership.client
        if client is not None and client.stalled:
            client.stalled = False
            self._write()
        if client is None or client.ends_at is None or self._written:
            return
        now = time.monotonic()
        since, until = self._told or (now, client.ends_at)
        self._told = since, until
        if now >= since + PATIENCE * (until - since):
            self._write()

    def _write(self) -> bool:
        """Whether it is being written now."""
        world = self._membership.world
        if self._writer is None or world is None or world.rank != 0 or self._model().sharded:
            return False
        with self._lock:
            if self.torn or self._written:
                return False
            position = dataclasses.replace(self._state.progress)
            snapshot = self._copied()
            if snapshot is None or (world.grouped and world.owned.broken) or position != self._state.progress:
                return False
            self._written = True
            self._writer.put(snapshot)
        print(f"the step under way does not end in time: the state of step {position.step} is written", flush=True)
        return True

    def _copied(self) -> dict[str, Any] | None:
        """A copy that does not wait for what the step under way has queued on a GPU; None where the step before hangs
        there too."""
        if self._stepped is None:
            return self._state.snapshot()
        until = time.monotonic() + GPU_S
        while not self._stepped.query():
            if time.monotonic() > until:
                return None
            time.sleep(LOOK_S)
        with torch.cuda.stream(torch.cuda.Stream(self._device)):
            torch.cuda.current_stream().wait_event(self._stepped)
            return self._state.snapshot()
