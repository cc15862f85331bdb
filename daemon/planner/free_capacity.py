"""What a plan has to give: the ledger of free GPUs, what jobs that come back will take of it, and whom nodes can serve.

Promise: what a resize under way is going to take, and what a job that comes back will, is counted as taken once.
Limit: as of the snapshot; a reservation counts against a job when it starts before the job's time limit, though the job
may end sooner.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf

from slurm_elastic.protocol.messages import Piece, Shape

from ..capacity.constraints import apart, meets, out_of_reach
from ..capacity.ledger import Amount, Ledger, Pool, per_node
from ..capacity.pending_jobs import listed_gpus, unlisted_gpus
from ..capacity.placement import can_restart, comes_back_at, put_back, take
from ..capacity.shrink_options import shrinks, without
from ..optimizer.problem import Layout
from ..slurm.model import Node, Snapshot
from .context import Inputs
from .pools.candidate import Candidate
from .running.eligibility import not_listed
from .running.job import RunningJob


def free_ledger(snapshot: Snapshot, running_jobs: Collection[RunningJob]) -> Ledger:
    """What is free, what is about to be, less what resizes under way are going to take."""
    ledger = Ledger.of(snapshot)
    for running in running_jobs:
        for unit, amount in running.loose.items():
            ledger.release(unit[1], amount)
    coming = {running.job_id: coming_to(running) for running in running_jobs}
    # A companion that starts between the two listings waits in one, and its GPUs are in use in the other.
    started = unlisted_gpus(snapshot) if any(coming.values()) else {}
    for growth in coming.values():
        for node, amount in growth.items():
            if ledger.usable(node) and started.get(node, 0) < amount.gpus:
                ledger.take(node, amount)
    return ledger


def coming_to(running: RunningJob) -> dict[str, Amount]:
    """By node, what a job gets though this snapshot does not list it as held: what its open resize adds, and what it
    trains on already, where its companion still waits in the queue."""
    job, resize, found = running.job, running.state.resize, dict[str, Amount]()
    if resize is not None:
        granted = {node for held in job.held if held.resize == resize.id for node in held.piece.nodes}
        granted |= set(job.base.nodes) if resize.requeues else set()
        for shape in resize.add:
            amount = Amount(shape.gpus_per_node, shape.cpus_per_node, shape.mem_mb_per_node)
            found |= dict.fromkeys([node for node in shape.node_list if node not in granted], amount)
    waiting = {companion.job_id: per_node(companion) for companion, _ in job.queued}
    for piece in not_listed(job, running.state.in_use):
        if piece.slurm_job_id in waiting:
            share = waiting[piece.slurm_job_id]
            found |= dict.fromkeys(piece.nodes, Amount(piece.gpus_per_node, share.cpus, share.mem_mb))
    return found


def managed_gpus(
    snapshot: Snapshot,
    pool: Pool,
    running_jobs: Sequence[RunningJob],
    ledger: Ledger,
    idle: int,
    withdrawn: Collection[int] = (),
) -> int:
    """The GPUs of a pool that elastic jobs have, are getting, or may have: each counted once, whichever of the two
    listings knows of it first. `idle`: what the ledger has free in this pool, for them. `withdrawn`: jobs whose growth
    is given up for others."""
    held, leaving, room = 0, dict[str, int](), dict[str, int]()
    for running in running_jobs:
        held += running.job.gpus
        for (_, node), amount in running.loose.items():
            leaving[node] = leaving.get(node, 0) + amount.gpus
            held -= amount.gpus if ledger.usable(node) else 0  # the ledger has it, as free soon
    growths = [coming_to(running) for running in running_jobs if running.job_id not in withdrawn]
    if any(growths):
        listed, _ = listed_gpus(snapshot)
        room = {name: snapshot.nodes[name].gpus - listed[name] + leaving.get(name, 0) for name in pool.nodes}
    for growth in growths:
        for node, amount in growth.items():
            taken = min(amount.gpus, max(0, room.get(node, 0)))
            held, room[node] = held + taken, room.get(node, 0) - taken
    return held + idle


def comebacks(inputs: Inputs, ledger: Ledger) -> dict[int, Shape]:
    """What waiting jobs that have run before are to come back at; counted as used in the ledger."""
    found, elastic = {}, inputs.roster.elastic
    gone = [j for j, job in elastic.items() if put_back(job.base, inputs.snapshot.at) and can_restart(job)]
    for job_id in sorted(gone, key=lambda job_id: (-elastic[job_id].base.priority, job_id)):
        job = elastic[job_id]
        if job_id in inputs.put_back:
            continue
        shape = comes_back_at(
            inputs.snapshot, job, ledger, inputs.tables.accepted(job).every, _apart(inputs, job.base.user)
        )
        if shape is not None:
            take(ledger, (shape,))
            found[job_id] = shape
    return found


def reachable(
    inputs: Inputs, running_jobs: Mapping[int, RunningJob], places: Mapping[int, Pool]
) -> dict[int, frozenset[str]]:
    """Nodes of each job's pool that its own partition reaches, that are what the job asked for, and that nobody has
    reserved for a time before its end: Slurm would start no companion there. Nor those that do not reach the job's own.
    Alike ones share a set."""
    snapshot = inputs.snapshot
    coming = [kept for kept in inputs.site.reservations if kept.end > snapshot.at]
    known: dict[tuple[object, ...], frozenset[str]] = {}
    found = {}
    for job_id, pool in places.items():
        base, closed = running_jobs[job_id].job.base, _NONE
        if coming:
            ends = inf if base.ends_at is None else base.ends_at
            closed = frozenset(node for kept in coming if kept.start < ends for node in kept.nodes)
        if base.excluded_nodes or inputs.host_pairs:
            closed = closed.union(base.excluded_nodes, _out_of_reach(inputs, running_jobs[job_id]))
        partition = base.partition.split(",")[0]
        constraint = running_jobs[job_id].job.constraint
        whole = base.gpus_per_node if base.exclusive else 0
        key = pool.name, partition, constraint, whole, closed
        if key not in known:
            nodes = (snapshot.nodes[name] for name in pool.nodes - closed)
            fits = (node for node in nodes if partition in node.partitions and _suits(node, constraint, whole))
            known[key] = frozenset(node.name for node in fits)
        found[job_id] = known[key]
    return found


_NONE = frozenset[str]()


def _out_of_reach(inputs: Inputs, running: RunningJob) -> frozenset[str]:
    pairs = _apart(inputs, running.job.base.user)
    if not pairs:
        return frozenset()
    own = {node for piece in running.pieces for node in piece.nodes}
    concerned = (inputs.snapshot.nodes.get(name) for both in pairs for name in both)
    free = {node.name for node in concerned if node is not None and node.gpus > node.gpus_used}
    return out_of_reach(own, free, pairs)


def _apart(inputs: Inputs, user: str) -> Collection[tuple[str, str]]:
    return apart(inputs.host_pairs, user, inputs.now) if inputs.host_pairs else ()


def asleep(snapshot: Snapshot, nodes: Mapping[int, frozenset[str]]) -> dict[int, int]:
    """GPUs on those of each job's nodes that are asleep; jobs without any are left out."""
    sleeping = {name: node.gpus for name, node in snapshot.nodes.items() if node.asleep and node.gpus}
    if not sleeping:
        return {}
    gpus = {part: sum(count for name, count in sleeping.items() if name in part) for part in set(nodes.values())}
    return {job_id: gpus[part] for job_id, part in nodes.items() if gpus[part]}


def _suits(node: Node, constraint: str | None, whole: int) -> bool:
    """whole: GPUs of a node that the job is to have for itself; 0: it shares nodes."""
    if constraint is None or (whole and (node.gpus != whole or node.cpus_used)):
        return False
    return meets(constraint, node.features)


def layout(groups: Sequence[tuple[Pool, Sequence[Candidate]]], ledger: Ledger, inputs: Inputs) -> Layout:
    """Where these pools' movable jobs are and where there is room, as a policy's planner takes it: GPUs alone. What is
    being released counts as free, nodes that take no work do not."""
    nodes = inputs.snapshot.nodes
    return Layout(
        free=[{name: ledger.total(name).gpus for name in pool.nodes if ledger.usable(name)} for pool, _ in groups],
        node_gpus=[max((nodes[name].gpus for name in pool.nodes), default=1) for pool, _ in groups],
        held=[_held(m) for _, members in groups for m in members],
        most_moves=inputs.settings.max_resizes_per_round,
        min_gain=inputs.settings.min_gain,
    )


def _held(m: Candidate) -> dict[int, Mapping[str, int]]:
    """GPUs by node at each size that the job can come down to."""
    found = {m.rest: _by_node(without(m.running.pieces, m.forced))}
    for size, pieces in shrinks(m.running.shrinkable, m.forced).items() if m.forced or m.running.may_shrink else ():
        if size in m.downs and size != m.rest:
            found[size] = _by_node(pieces)
    return found


def _by_node(pieces: Iterable[Piece]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for piece in pieces:
        for node in piece.nodes:
            found[node] = found.get(node, 0) + piece.gpus_per_node
    return found
