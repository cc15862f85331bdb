"""Jobs that move off further leaf switches, onto idle GPUs under the switch of their batch host. Pure.

Only where the policy counts switches. A job comes to the same size on no more nodes: what lies under other switches is
given up, and companions under its own take its place.
Promise: only jobs that would stay as they are move, to GPUs that nobody else gets; a move pays for its pause within the
job's horizon and gains `min_gain` beside that. Limit: the gain is what the setting `switch_cost` says, not measured;
the batch host's switch is the only one tried; GPUs that are being released are not waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..capacity.ledger import Ledger, Pool
from ..capacity.placement import take
from ..capacity.shrink_options import Unit, droppable, units_of, without
from ..mechanisms import registry
from ..mechanisms.base import FreeNodes
from ..text.reasons import Reason
from .context import RoundContext
from .moves import Allotment, Move
from .pools.member import Member
from .running.job import RunningJob

LEAST_LEFT = 0.05
"""Share of its progress that a job keeps however many switches it lies under."""


def off_split(
    context: RoundContext,
    staying: Collection[Member],
    pools: Mapping[int, Pool],
    nodes: Mapping[int, Collection[str]],
    ledger: Ledger,
) -> dict[int, Move]:
    """The moves of jobs that would stay, by job id: the largest gains first. `nodes`: where each may grow. What they
    get is taken from the ledger."""
    settings = context.inputs.settings
    found = dict[int, Move]()
    gains = [(gain(member, settings.switch_cost), member.running.job_id, member) for member in staying]
    for worth, job_id, member in sorted(gains, key=lambda one: (-one[0], one[1])):
        running, pool = member.running, pools[job_id]
        if worth <= 0 or worth < settings.min_gain:
            break
        kept_free = settings.rigid_reserve_gpus * len(pool.partitions)
        spare = context.more(running, max(0, ledger.gpus(pool.nodes, soon=False) - kept_free))
        move = _moved(context, running, nodes[job_id], Ledger(ledger.now), spare, worth)
        if move is not None:
            found[job_id] = move
            take(ledger, move.add)
    return found


def gain(member: Member, switch_cost: float) -> float:
    """What a job gains relatively, its pause paid, when it lies under the switch of its batch host alone; 0 where it
    does already, or cannot."""
    running, view = member.running, member.view
    if member.forced or not (running.may_grow and running.may_shrink and running.can_add and far_units(running)):
        return 0.0
    now = max(LEAST_LEFT, 1.0 - switch_cost * (switches(running.site.switches, nodes_of(running)) - 1))
    return (1.0 - min(1.0, view.pause_s / view.horizon_s)) / now - 1.0


def far_units(running: RunningJob) -> frozenset[Unit]:
    """What the job holds under other switches than its batch host's, where it can give up all of that; else nothing."""
    over = running.site.switches
    home = over.get(running.job.base.batch_host, "")
    far = frozenset(unit for unit in units_of(running.pieces) if over.get(unit[1], "") != home)
    drops = droppable(running.giver) if far else {}
    return far if all(unit in drops and far.issuperset(drops[unit]) for unit in far) else frozenset()


def switches(over: Mapping[str, str], nodes: Collection[str]) -> int:
    """How many leaf switches these nodes lie under; those under none count as under one more."""
    return len({over.get(node, "") for node in nodes})


def nodes_of(running: RunningJob) -> set[str]:
    """The nodes that a job trains on."""
    return {node for piece in running.pieces for node in piece.nodes}


def _moved(
    context: RoundContext, running: RunningJob, nodes: Collection[str], ledger: Ledger, spare: int, worth: float
) -> Move | None:
    over, far = running.site.switches, far_units(running)
    home, keep = over.get(running.job.base.batch_host, ""), without(running.pieces, far)
    mechanism = registry.adding(running, running.site)
    more = running.gpus - sum(piece.gpus for piece in keep)
    if mechanism is None or not keep or more > spare:
        return None
    near = frozenset(node for node in nodes if over.get(node, "") == home)
    placed = mechanism.place(running, keep, running.gpus, FreeNodes(ledger, near, companions=context.companions))
    if placed is None or sum(shape.nodes for shape in placed.add) > len(far):
        return None
    allotment = Allotment(running, running.gpus, running.batch, Reason.MOVE_SWITCH, worth)
    return Move(allotment, placed.keep, placed.add, "", mechanism)
