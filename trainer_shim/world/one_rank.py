"""Where one rank runs code that the others do not, a collective waits for ever: it is seen before it is called.

Limit: a function that a script took out of torch.distributed by `from ... import` before is not seen.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from slurm_elastic.protocol.errors import TrainingError

COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "irecv", "isend", "monitored_barrier",
    "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send"
)  # fmt: skip


@contextmanager
def collectives_refused(call: str) -> Iterator[None]:
    """While this lasts a collective of this thread raises TrainingError, in place of waiting for ever. call: what the
    script has called."""

    def refuse(name: str) -> None:
        raise TrainingError(
            f"torch.distributed.{name}() was called inside {call}, which rank 0 runs alone while the other ranks "
            "wait; accepted: collectives outside of it, which every rank calls"
        )

    with _collectives_seen(refuse):
        yield


class BeforePass:
    """Code of the script's between the top of an epoch and the pass that it goes on with: a worker that joins in the
    middle of that pass runs it alone."""

    def __init__(self, joins: bool, tell: Callable[[str], None]) -> None:
        """joins: whether this worker does so; then a collective raises TrainingError. Elsewhere all ranks are there
        together, and the first one is only told."""
        self._joins, self._tell = joins, tell
        self._told = False
        self._seen = _collectives_seen(self._met)
        self._seen.__enter__()
        self._open = True

    def end(self) -> None:
        """The pass begins, or the loop is left."""
        if self._open:
            self._open = False
            self._seen.__exit__(None, None, None)

    def _met(self, name: str) -> None:
        line = line_of_script()
        if not line or self._told:
            return
        where = f"torch.distributed.{name}() is called at {line} before the pass over the data"
        if self._joins:
            raise TrainingError(
                f"{where}, and a worker that joins in that pass is alone there and would wait for ever; accepted: "
                "behind the pass"
            )
        self._told = True
        self._tell(
            f"{where}: a worker that joins in that pass would wait there alone, so that the job cannot grow; accepted: "
            "behind the pass"
        )


@contextmanager
def _collectives_seen(met: Callable[[str], None]) -> Iterator[None]:
    """While this lasts `met` gets the name of each collective that this thread is about to call."""
    here, before = threading.get_ident(), {name: getattr(dist, name) for name in COLLECTIVES}

    def seen(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == here:
                met(name)
            return before[name](*args, **kwargs)

        return call

    for name in COLLECTIVES:
        setattr(dist, name, seen(name))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(dist, name, function)


def line_of_script() -> str:
    """What calls the caller, behind all of torch's own; empty where that is this package."""
    frame = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("slurm_elastic.") and module != __name__:
            return ""
        if module != __name__ and module.partition(".")[0] != "torch":
            return f"{Path(frame.f_code.co_filename).name} line {frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
