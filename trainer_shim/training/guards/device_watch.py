"""A world's communicators, watched from beside: one with a lost rank hangs for ever, and so does who waits for the GPU.

On a thread of its own, for the training's own may be what hangs. While a world's first step is awaited it asks whether
the world is lost; from then on whether the GPU still answers, where no step has been done for long: a mark that is put
behind all that the GPU was given has to pass. Then the communicators are aborted. What they were to compute is garbage
from there on, and the world says so (Groups.broken); the training's thread is free, and goes back, or leaves. Where it
does neither in RELEASE_S this process ends. Limit: what a rank computes for longer than patience() while others
wait for it, such as an evaluation outside job.once(), looks like a lost rank.
"""

import os
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from ...control.worker_client import EXIT_LOST
from ...numerics.patience import patience
from ...world.process_group import World

PATIENCE = "SELASTIC_GPU_PATIENCE_S"
LEAST_S = 600.0
"""So long without a step a GPU is not asked, as torch waits for a collective over NCCL."""
MARK_S = 20.0
"""For the mark to pass: a host may be a thousand launches ahead."""
LOOK_S, RELEASE_S = 0.05, 60.0


class DeviceWatch:
    """See the module. One per world; nothing where it has no communicators."""

    def __init__(self, world: World, usual_s: Callable[[], float], lost: Callable[[], str]) -> None:
        """usual_s: of a step; 0: not known. lost: why this world cannot come about, while its first step is awaited."""
        self._world, self._usual_s, self._lost = world, usual_s, lost
        self._over = threading.Event()
        self._stepped_at, self._longest_s = time.monotonic(), 0.0
        self.on_trial = False
        """The first step is awaited."""
        if world.grouped and world.size > 1 and world.owned.on_gpu:
            self._stream = torch.cuda.current_stream()
            threading.Thread(target=self._run, name="selastic-gpu-watch", daemon=True).start()

    def stepped(self) -> None:
        """A step has been done, as far as the host knows."""
        now = time.monotonic()
        self._stepped_at, self._longest_s = now, max(self._longest_s, now - self._stepped_at)

    def accept(self) -> None:
        """Its first step is done: the old world, and its store, are held no longer."""
        self.on_trial, self._lost = False, lambda: ""

    def done(self) -> None:
        """Wait until the GPU has done all that it was given. Raises DistBackendError where that has been aborted."""
        if self._world.grouped and self._world.size > 1 and self._world.owned.on_gpu:
            event = torch.cuda.Event()
            event.record()
            while not event.query() and not self._world.owned.broken:
                time.sleep(0.0005)
        self.check()

    def check(self) -> None:
        """Raises DistBackendError where communicators have been aborted: nothing on the GPU counts any more."""
        if self._world.grouped and (why := self._world.owned.broken):
            raise dist.DistBackendError(why)

    def end(self) -> None:
        """This world is left."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            if why := self._lost() if self.on_trial else self._hung():
                self._world.owned.abort(why)
                if not self._over.wait(RELEASE_S):
                    sys.stderr.write(f"selastic: {why}, and the script is not back after {RELEASE_S:g} s: it ends\n")
                    os._exit(EXIT_LOST)

    def _hung(self) -> str:
        waited = time.monotonic() - self._stepped_at
        least_s = float(os.environ.get(PATIENCE) or LEAST_S)
        if waited <= patience(least_s, self._usual_s(), self._longest_s) or self._answers():
            return ""
        return f"world {self._world.generation}: no step for {waited:.0f} s, and the GPU waits for another rank"

    def _answers(self) -> bool:
        """Whether it comes to the end of what it was given. Asking may itself wait, where the launch queue is full."""

        def ask() -> None:
            event = torch.cuda.Event()
            event.record(self._stream)
            event.synchronize()

        thread = threading.Thread(target=ask, name="selastic-gpu-mark", daemon=True)
        thread.start()
        thread.join(min(MARK_S, 0.5 * float(os.environ.get(PATIENCE) or LEAST_S)))
        return not thread.is_alive()
