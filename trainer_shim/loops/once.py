"""A function called on rank 0 for all: what job.once() does."""

import os
import pickle
import secrets
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from slurm_elastic.protocol.errors import OtherRankFailed, TrainingError

from ..checkpoint import contents, results
from ..parallel.strategy import is_part
from ..training.session import Session
from ..world import process_group as worlds
from ..world.one_rank import collectives_refused


def on_rank_0(session: Session, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """function(*args, **kwargs) of rank 0, on every rank; a sharded model has every rank call it.

    Raises what the function raised on this rank, and OtherRankFailed where it failed on rank 0.
    """
    if any(is_part(leaf) for leaf in tree_leaves((args, kwargs))):
        raise TrainingError(
            f"job.once({_name(function)}) was given parts of a sharded model, each rank its own; accepted: "
            "job.save(path), or job.full_state() inside the function"
        )
    outcome: tuple[bool, Any] = (False, None)
    error: Exception | None = None
    if session.rank == 0 or session.model().sharded:
        session.reporting.away(True)
        try:
            outcome = (True, _sendable(function, _quietly(session, function, args, kwargs)))
        except Exception as caught:
            error = caught
            outcome = (False, f"{type(caught).__name__}: {caught}")
        finally:
            session.reporting.away(False)  # where others never come, that is a hang
    worked, result = share(session, outcome)
    if error is not None:
        raise error
    if not worked:
        raise OtherRankFailed(f"job.once({_name(function)}) failed on rank 0: {result}")
    return result


def before_loop(session: Session, number: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """function(*args, **kwargs) of one process, on every worker of this job, now or later; the `number`-th such call.

    Kept beside the checkpoints, where there are any. Raises what the function raised on this worker, and
    OtherRankFailed where a fixed world's rank 0 failed.
    """
    writer, world = session.saving.writer, session.membership.world

    def call() -> Any:
        if writer is None:
            return function(*args, **kwargs)
        name = results.file_name(function, number)
        return results.once(writer.directory / "once", name, lambda: function(*args, **kwargs), writer.safe)

    if world is None or world.size == 1:
        return call()
    outcome: tuple[bool, Any] = (False, None)
    try:
        if world.rank == 0:
            outcome = (True, _sendable(function, call()))
    except Exception as error:
        outcome = (False, f"{type(error).__name__}: {error}")
        raise
    finally:
        worked, result = worlds.share(world, outcome)
    if not worked:
        raise OtherRankFailed(f"job.once({_name(function)}) failed on rank 0: {result}")
    return result


def on_each_node(session: Session, number: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """function(*args, **kwargs) of one process of each node, on all its workers, now or later."""
    writer = session.saving.writer
    # Below /tmp nobody is to know the name beforehand.
    secret = results.once(writer.directory, "node-key", lambda: secrets.token_hex(16)) if writer is not None else ""
    key = secret or os.environ.get("TORCHELASTIC_RUN_ID", "")
    if not key:
        return function(*args, **kwargs)
    restarts = os.environ.get("SLURM_RESTART_COUNT", "0")  # what lay on a node's own disk may be gone
    name = results.file_name(function, number)
    return results.once_on_node(
        f"{key} {restarts}", name, lambda: function(*args, **kwargs), writer.safe if writer else ()
    )


def save(session: Session, path: str | os.PathLike[str]) -> None:
    """Rank 0 writes the model's whole state; the file is as before or whole."""
    state = session.model().full_state(keep=session.rank == 0)
    if session.rank == 0:
        partial = Path(f"{os.fspath(path)}.partial")
        try:
            torch.save(state, partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def check_kept(session: Session, function: Callable[..., Any], result: Any) -> None:
    """Raise TrainingError, on every rank, if the checkpoint that this result goes into could not be loaded."""
    writer = session.saving.writer
    if writer is not None and (what := contents.refusal(result, writer.safe)):
        raise TrainingError(
            f"job.once({_name(function)}) returned {what}, which no checkpoint holds; accepted: {contents.ACCEPTED}"
        )


def share(session: Session, value: Any) -> Any:
    """Rank 0's picklable value, on every rank."""
    with session.membership.ending_when_broken():
        return worlds.share(session.world(), value)


def _quietly(session: Session, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Nothing is saved or switched meanwhile, and modes that the function sets (eval) are undone."""
    parallel = session.model()
    modes = [(module, module.training) for module in parallel.module.modules()]
    alone = session.world().size > 1 and not parallel.sharded
    refused = collectives_refused(f"job.once({_name(function)})") if alone else nullcontext()
    with parallel.bypassed(), session.snapshots.quiet(), refused:
        result = function(*args, **kwargs)
    for module, mode in modes:
        module.training = mode
    return result


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))


def _sendable(function: Callable[..., Any], result: Any) -> Any:
    try:
        pickle.dumps(result)
    except Exception as error:
        raise TrainingError(
            f"job.once({_name(function)}) returned a {type(result).__name__} that cannot be sent to the other ranks "
            f"({error}); accepted: None, numbers, tensors, and anything else that pickles"
        ) from None
    return result
