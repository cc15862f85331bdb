"""While one rank runs code for all of them the others wait, and nobody would answer a collective.

Limit: a function that a script took out of torch.distributed by `from ... import` before is not seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from slurm_elastic.protocol.errors import TrainingError

COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "irecv",
    "isend",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
)


@contextmanager
def collectives_refused(call: str) -> Iterator[None]:
    """While this lasts a collective of this thread raises TrainingError, in place of waiting for ever. call: what the
    script has called."""
    here, before = threading.get_ident(), {name: getattr(dist, name) for name in COLLECTIVES}

    def refusing(name: str) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != here:
                return before[name](*args, **kwargs)
            raise TrainingError(
                f"torch.distributed.{name}() was called inside {call}, which rank 0 runs alone while the other ranks "
                "wait; accepted: collectives outside of it, which every rank calls"
            )

        return refuse

    for name in COLLECTIVES:
        setattr(dist, name, refusing(name))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(dist, name, function)
