"""Why a move is made the way it is: each mechanism that was passed over, with the reason. Pure, and made for reading.

The order is that of cost: the first that reaches a size is taken. Limit: judges one move that has been made up already;
whether Slurm accepts it is found out when it is asked.
"""

from __future__ import annotations

from ..config.settings import Settings
from .moves import Move

MECHANISMS = ("component", "companion", "shrink", "requeue", "expand")
"""From the gentlest on. `expand` is known to be of no use to a job that holds GPUs: Slurm refuses it."""


def passed_over(move: Move, settings: Settings) -> list[dict[str, str]]:
    """{mechanism, why} for every one that is not part of the move; empty when nothing but the batch changes."""
    used = set(move.mechanism.split("+"))
    if not move.changes or used <= {"", "batch"}:
        return []
    return [{"mechanism": name, "why": _why_not(move, settings, name)} for name in MECHANISMS if name not in used]


def cost(move: Move, settings: Settings) -> float:
    """Seconds that the training is expected to stand still for this move."""
    state = move.wish.standing.state
    if move.mechanism == "requeue":
        return settings.assumed_requeue_s if state.requeue_s is None else state.requeue_s
    return settings.assumed_pause_s if state.pause_s is None else state.pause_s


def _why_not(move: Move, settings: Settings, name: str) -> str:
    standing = move.wish.standing
    job, grows = standing.job, move.gpus > standing.gpus
    kinds = {piece.kind for piece in standing.pieces}
    if name == "expand":
        return "Slurm refuses it for a job that holds GPUs"
    if move.wish.elsewhere:
        return "one of its own nodes is being drained: the base itself has to leave it"
    if name == "component" and "component" not in kinds:
        return "it is no heterogeneous job"
    if name not in job.request.via:
        return f"its request does not name it (via={'+'.join(job.request.via)})"
    if name == "requeue":
        if not standing.may_start_anew:
            return "only an ordinary batch job that asked for its GPUs per node can get another size in the queue"
        dear = settings.assumed_requeue_s if standing.state.requeue_s is None else standing.state.requeue_s
        return f"it would cost {dear:.3g} s where this costs {cost(move, settings):.3g} s"
    if name == "companion":
        if not grows and "companion" not in kinds:
            return "it holds none that it could give up"
        return "no free nodes for one" if grows else _no_cut(move)
    return "it only gives up nodes" if grows else _no_cut(move)


def _no_cut(move: Move) -> str:
    """Why giving up nodes did not come into it."""
    if move.mechanism == "requeue":
        return f"whole nodes given up do not come to {move.gpus} GPUs"
    return "others give up enough"
