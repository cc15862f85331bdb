"""The stand-in's Python half: a CPU build of torch that says it has one CUDA device, and takes NCCL's place.

Importing it changes torch.cuda, and the product's choice of a backend; it starts no thread, so that an agent may fork
afterwards (`selastic run --preload standin`). tests/support/stand_in.py builds it and says what its processes need.

STANDIN_FORM_S, STANDIN_CLOSE_S: seconds that a communicator takes to form and to close. STANDIN_COPY_MB_S: of copies
between host and device. STANDIN_MEMORY_MB: the device's memory; STANDIN_COMM_MB: what a communicator takes of it.
STANDIN_TALK=1: say what forms and what is lost. STANDIN_OFF=1: leave the product's backend as it is.

Limits: one device a process; no kernels of its own, so that operators with new outputs wait for their stream; no
graphs, no reduce-scatter of uneven parts.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

c: Any = importlib.import_module("standin_c")  # needs what torch.distributed has registered
CONNECT = datetime.timedelta(hours=1)


class Event(torch.Event):
    """torch.cuda.Event as far as it is used; streams wait for it."""

    _recorded = False

    def __new__(cls, enable_timing: bool = False, **_: Any) -> Event:
        return super().__new__(cls, "cuda", enable_timing=True)

    def record(self, stream: Any = None) -> None:
        super().record(stream if stream is not None else current_stream())
        self._recorded = True

    def query(self) -> bool:
        return not self._recorded or super().query()

    def synchronize(self) -> None:
        if self._recorded:
            super().synchronize()

    def wait(self, stream: Any = None) -> None:
        if self._recorded:
            super().wait(stream if stream is not None else current_stream())

    def elapsed_time(self, other: torch.Event) -> float:
        return float(c.elapsed_ms(self, other))


class Stream:
    """torch.cuda.Stream as far as it is made, and named in annotations."""

    def __new__(cls, device: Any = None, priority: int = 0, **_: Any) -> Any:
        return torch.Stream(device="cuda", priority=priority)


def _stream(number: int) -> Any:
    return torch.Stream(stream_id=number, device_index=0, device_type=1)


def current_stream(device: Any = None) -> Any:
    return _stream(c.stream())


@contextlib.contextmanager
def stream(given: Any) -> Iterator[None]:
    before = c.set_stream(given.stream_id) if given is not None else None
    try:
        yield
    finally:
        if before is not None:
            c.set_stream(before)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    whole = int(1e6 * float(os.environ.get("STANDIN_MEMORY_MB", 80_000)))
    return whole - c.reserved() - c.of_communicators(), whole


for name, value in {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "_lazy_init": lambda: None,
    "_is_in_bad_fork": lambda: False,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda device: None,
    "get_device_name": lambda device=None: "stand-in",
    "get_device_capability": lambda device=None: (9, 0),
    "empty_cache": c.empty_cache,
    "max_memory_allocated": lambda device=None: c.held()[1],
    "memory_allocated": lambda device=None: c.held()[0],
    "memory_reserved": lambda device=None: c.reserved(),
    "mem_get_info": mem_get_info,
    "manual_seed": lambda seed: None,
    "manual_seed_all": lambda seed: None,
    "get_rng_state": lambda device=None: torch.empty(0, dtype=torch.uint8),  # it draws by the host's
    "set_rng_state": lambda state, device=None: None,
    "is_current_stream_capturing": lambda: False,
    "Event": Event,
    "Stream": Stream,
    "stream": stream,
    "current_stream": current_stream,
    "default_stream": lambda device=None: _stream(0),
    "synchronize": lambda device=None: c.synchronize(),
}.items():
    setattr(torch.cuda, name, value)

_resize, _cpu = torch.UntypedStorage.resize_, torch.UntypedStorage.cpu


def _bytes_of(storage: Any, size: int) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage, 0, (size,))


def resize_(storage: Any, size: int) -> Any:
    """A CPU build has none for CUDA, and fully_shard frees, and fills again, what it gathers."""
    if storage.device.type != "cuda":
        return _resize(storage, size)
    c.resize_storage(_bytes_of(storage, 0), size)
    return storage


def cpu(storage: Any) -> Any:
    """Nor a copy of one: torch.save() makes it."""
    on_device = storage.device.type == "cuda"
    return _bytes_of(storage, storage.nbytes()).cpu().untyped_storage() if on_device else _cpu(storage)


for name, method in {"resize_": resize_, "cpu": cpu}.items():
    setattr(torch.UntypedStorage, name, method)

dist.Logger.set_runtime_stats_and_log = lambda self: None  # wants a timer of CUDA's own


def _inner(store: Any, rank: int, size: int) -> Any:
    return dist.ProcessGroupGloo(dist.PrefixStore("standin", store), rank, size, CONNECT)


dist.Backend.register_backend(
    "standin",
    lambda store, rank, size, timeout: c.StandIn(store, rank, size, timeout.total_seconds(), _inner),
    devices=["cuda"],
)


c.StandIn._set_default_timeout = lambda backend, timeout: backend.set_timeout(timeout.total_seconds())

if "STANDIN_OFF" not in os.environ:
    from slurm_elastic.trainer_shim.control import cuda_backend
    from slurm_elastic.trainer_shim.world import process_group as worlds

    worlds.backend = lambda: f"cpu:gloo,cuda:{'gloo' if cuda_backend.chosen(os.environ) == 'gloo' else 'standin'}"
