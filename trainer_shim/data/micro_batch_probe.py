"""The largest micro batch that fits a GPU's memory, found by trying: doubling, then bisection, less a margin.

Tried on a worker that waits for its world, with the script's own model, data and loss; nothing of it is left behind:
gradients, buffers and modes are as before. Counted too: what the optimizers' state, DistributedDataParallel's buckets
and, on a GPU, a communicator take in a world of several ranks. Limit: other users of the GPU, and a communicator that
takes more, are what the margin is for.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from .loader import to_device

MARGIN = 0.08
"""Part of the largest size found that is left free."""
COMMUNICATOR_MB = 400
"""What NCCL takes for a world of several ranks; more where a node has many GPUs."""
PRECISION = 0.05
"""The search ends when the bounds are this close to each other."""


def largest(fits: Callable[[int], bool], limit: int, margin: float = MARGIN) -> int:
    """The largest size that fits, at most `limit`, less the margin where the limit was not reached; 0: not even one.

    fits has to be monotonous: what fits, fits when smaller. It is asked O(log limit) times.
    """
    good, bad = 0, limit + 1
    size = 1
    while size < bad:
        if not fits(size):
            bad = size
            break
        good = size
        size = min(size * 2, limit) if size < limit else bad
    while bad - good > max(1, int(PRECISION * good)):
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good if good == limit else max(min(good, 1), int(good * (1 - margin)))


@dataclass(eq=False)
class Probe:
    """One search; see the module."""

    module: torch.nn.Module
    optimizers: list[torch.optim.Optimizer]
    device: torch.device
    dataset: Any
    compute: Callable[[Any], torch.Tensor]
    collate: Any

    def run(self, limit: int, memory: Path | None) -> int | None:
        """The largest micro batch, remembered in the file `memory`; None where there is no GPU to fill."""
        if self.device.type == "cpu":
            return None
        return self.remembered(limit, memory)

    def remembered(self, limit: int, memory: Path | None) -> int:
        """The result of an earlier search by the same program, model and kind of device, or of one now."""
        known = _read(memory)
        key = self.key()
        if key not in known:
            known[key] = self.search(limit)
            _write(memory, known)
        return min(limit, known[key])

    def key(self) -> str:
        """What the result depends on: program, shapes and types of the model, kind of device."""
        kind = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        shapes = [(name, tuple(value.shape), str(value.dtype)) for name, value in self.module.state_dict().items()]
        shapes_digest = hashlib.blake2b(repr(shapes).encode(), digest_size=8).hexdigest()
        return f"{Path(sys.argv[0]).name} {shapes_digest} {kind}"

    def search(self, limit: int) -> int:
        """Look for it now. Raises MemoryError when not even one sample fits."""
        buffers = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        room = self._room()
        try:
            found = largest(self._fits, limit)
        finally:
            del room
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            self._clean()
        if found == 0:
            raise MemoryError(f"not even one sample fits the memory of {self.device}")
        return found

    def _fits(self, size: int) -> bool:
        try:
            samples = [self.dataset[index % len(self.dataset)] for index in range(size)]
            self.compute(to_device((self.collate or default_collate)(samples), self.device)).backward()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        except RuntimeError as error:  # torch.OutOfMemoryError, and cuBLAS or cuDNN in their own words
            text = str(error).lower()
            if "out of memory" not in text and "alloc_failed" not in text:
                raise
            return False
        finally:
            self._clean()
        return True

    def _room(self) -> list[torch.Tensor]:
        """Memory for what comes with a training's first step: of optimizers that have no state two tensors for each
        parameter, as Adam's; the buckets that gradients travel in; a communicator."""
        fresh = [optimizer for optimizer in self.optimizers if not optimizer.state]
        parameters = [p for optimizer in fresh for group in optimizer.param_groups for p in group["params"]]
        room = [torch.empty_like(parameter) for parameter in parameters for _ in range(2)]
        room += [torch.empty_like(parameter) for parameter in self.module.parameters() if parameter.requires_grad]
        if self.device.type == "cuda":
            room.append(torch.empty(COMMUNICATOR_MB * 10**6, dtype=torch.uint8, device=self.device))
        return room

    def _clean(self) -> None:
        for parameter in self.module.parameters():
            parameter.grad = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _read(memory: Path | None) -> dict[str, int]:
    if memory is None:
        return {}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return {str(key): int(value) for key, value in json.loads(memory.read_text()).items() if int(value) > 0}
    return {}


def _write(memory: Path | None, known: dict[str, int]) -> None:
    """A lost result costs another search: no error here stops a training."""
    if memory is None:
        return
    partial = memory.with_name(f".{memory.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(known))
        partial.replace(memory)
