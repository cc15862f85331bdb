"""The next actions for every elastic job: releases, orphans, resizes that came to an end or to nothing; and which
resizes are given up because somebody else has got their nodes, or Slurm keeps their companions waiting. Pure.

Level-triggered: each call looks at what Slurm holds, what the supervisor says it trains on, and the one open resize; it
never relies on having seen an event, and acting twice on the same answer is harmless. What Slurm holds for a job that
its supervisor does not use and no open resize adds is released. Limit: it believes the snapshot it is given, so it must
not be called with one that failed.

A companion is asked for on nodes that were free; whoever was quicker has them now, and it would wait out its time for
nothing. So would the workers of one that is suspended while they warm up. Limit: judged is what the plan judged (GPUs,
cores, memory, whether the node takes work).

A companion that Slurm keeps waiting for something else than nodes is withdrawn in the round in which Slurm says so.
Where the limits of the site, read anew, explain it, the job grows again at once as far as they allow; where they do not
(a limit that is not known, a node that is gone), not before its backoff. One whose nodes another job is to get before
it would end may wait: its supervisor gives it less time. Limit: Slurm gives one reason of perhaps several.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from slurm_elastic.db.rows import InUse, ResizeRow
from slurm_elastic.protocol.codes import ResizeState
from slurm_elastic.protocol.records import record

from ..actions.action import Action, Close
from ..capacity.ledger import Amount, free, per_node
from ..capacity.pending_jobs import RESOURCE_REASONS, unlisted_gpus
from ..capacity.roster import ElasticJob, Roster, RunningPiece, companion_tag
from ..capacity.shrink_options import Unit, units_of
from ..capacity.slurm_limits import LimitUsage, charged
from ..slurm.model import Job, Snapshot
from ..slurm.site import Site
from .registry import COMPANION, carrier, dropping, stuck
from .settings import Bounds


def next_actions(
    roster: Roster,
    in_use: Mapping[int, InUse],
    resizes: Iterable[ResizeRow],
    unused_since: Mapping[Unit, float],
    now: float,
    bounds: Bounds,
    overtaken: Mapping[int, str] | None = None,
    kept_whole: Mapping[int, str] = MappingProxyType({}),
) -> list[Action]:
    """What to do now, in the order in which to do it; at most one action per Slurm job.

    `resizes`: the open ones. `unused_since`: see `unused`. `overtaken`: what `overtaken` gives. `kept_whole`: why
    no Slurm job of an elastic job is asked to give up single nodes, by job id.
    """
    actions: list[Action] = []
    in_use = _understood(in_use)
    for orphan in roster.orphans:
        why = "the job that this companion belongs to does not run"
        actions += COMPANION.undo(int(orphan.name.removeprefix("selastic-")), (orphan.job_id,), why)
    by_job = {resize.job_id: resize for resize in resizes}
    for number, why in (overtaken or {}).items():
        job_id = next(j for j, resize in by_job.items() if resize.id == number)
        actions += carrier(by_job.pop(job_id).message).undo(job_id, (), why)
        actions.append(Close(job_id, number, ResizeState.OVERTAKEN, why))
    led = {job_id: carrier(resize.message) for job_id, resize in by_job.items()}
    for job_id, resize in by_job.items():
        actions += led[job_id].next_actions(roster.elastic.get(job_id), in_use.get(job_id), resize, now, bounds)
    for job_id, job in roster.elastic.items():
        if job_id not in by_job and _all_in_use(job, in_use.get(job_id)):
            continue
        if job.running and not (job_id in led and led[job_id].restarts):
            whole = kept_whole.get(job_id, "")
            actions += _for_job(job, in_use.get(job_id), by_job.get(job_id), unused_since, now, bounds, whole)
    return actions


def unused(
    roster: Roster, in_use: Mapping[int, InUse], resizes: Iterable[ResizeRow], before: Mapping[Unit, float], now: float
) -> dict[Unit, float]:
    """Since when each unit that Slurm holds has been neither trained on nor part of an open resize."""
    by_job = {resize.job_id: resize for resize in resizes}
    found: dict[Unit, float] = {}
    in_use = _understood(in_use)
    for job_id, job in roster.elastic.items():
        resize = by_job.get(job_id)
        if resize is None and _all_in_use(job, in_use.get(job_id)):
            continue
        for held in job.held:
            for unit in units_of((held.piece,)) - _wanted(in_use.get(job_id), resize, held):
                found[unit] = before.get(unit, now)
        for queued, tag in job.queued:
            if resize is None or tag.resize != resize.id:
                found[(queued.job_id, "")] = before.get((queued.job_id, ""), now)
    return found


def _all_in_use(job: ElasticJob, use: InUse | None) -> bool:
    """Whether it trains on just what it holds, and waits for nothing: as most jobs do."""
    return use is not None and not job.queued and job.pieces == use.pieces


def _understood(in_use: Mapping[int, InUse]) -> dict[int, InUse]:
    """Without those whose supervisor is not understood: what it trains on may be something else by now."""
    return {job_id: use for job_id, use in in_use.items() if not use.refusal}


def _for_job(
    job: ElasticJob,
    use: InUse | None,
    resize: ResizeRow | None,
    unused_since: Mapping[Unit, float],
    now: float,
    bounds: Bounds,
    kept_whole: str,
) -> list[Action]:
    overdue = _overdue(job, resize, now, bounds) if resize else None
    if overdue:
        return [overdue]  # what it leaves behind is unused from now on, and released in its time
    actions: list[Action] = _leaked_queued(job, unused_since, now, bounds)
    if use is None or not _base_in_use(job, use):
        return actions  # nobody has said what this job trains on: nothing of it is known to be unused
    idle = [(held, units_of((held.piece,)) - _wanted(use, resize, held)) for held in job.held]
    stays = [bool(units) and stuck(held.piece, units, not kept_whole) for held, units in idle]
    releases = [
        None if stay else _release(job, held, units, resize, unused_since, now, bounds)
        for (held, units), stay in zip(idle, stays, strict=True)
    ]
    actions += [action for action in releases if action]
    if resize and resize.state == ResizeState.RUNNING and not any(releases):
        actions.append(Close(job.job_id, resize.id, ResizeState.DONE, kept_whole if any(stays) else ""))
    return actions


def _release(
    job: ElasticJob,
    held: RunningPiece,
    idle: Collection[Unit],
    resize: ResizeRow | None,
    unused_since: Mapping[Unit, float],
    now: float,
    bounds: Bounds,
) -> Action | None:
    """The release of what is unused of one piece, if it is time."""
    switched = resize is not None and resize.state == ResizeState.RUNNING
    due = {unit for unit in idle if switched or now - unused_since.get(unit, now) >= bounds.leak_s}
    if not due:
        return None
    why = f"given up by resize {resize.id}" if resize and switched else "held, but not trained on"
    return dropping(held.piece.kind).release(job, held, due, why)


def _wanted(use: InUse | None, resize: ResizeRow | None, held: RunningPiece) -> set[Unit]:
    """Units of a piece that must stay: trained on, or part of a resize that has not switched yet."""
    if use is None:
        return units_of((held.piece,))
    wanted = units_of(use.pieces)
    if resize is not None and resize.state != ResizeState.RUNNING:
        wanted |= units_of(resize.keep)
        if held.resize == resize.id:
            wanted |= units_of((held.piece,))
    return wanted


def _leaked_queued(job: ElasticJob, unused_since: Mapping[Unit, float], now: float, bounds: Bounds) -> list[Action]:
    since = {queued.job_id: unused_since.get((queued.job_id, ""), now) for queued, _ in job.queued}
    leaked = [slurm_job_id for slurm_job_id, at in since.items() if now - at >= bounds.leak_s]
    return COMPANION.undo(job.job_id, leaked, "waits for a resize that is over")


def _overdue(job: ElasticJob, resize: ResizeRow, now: float, bounds: Bounds) -> Close | None:
    quiet = now - resize.updated
    wait = resize.wait_s + bounds.margin_s
    limit = {
        ResizeState.ISSUED: bounds.issued_s,
        ResizeState.ACCEPTED: wait if resize.add else bounds.switch_s,
        ResizeState.SAVED: wait,  # not said by ours, of a resize that keeps something
        ResizeState.SUBMITTED: wait,
        ResizeState.GRANTED: bounds.warm_up_s,
        ResizeState.READY: bounds.switch_s,
        ResizeState.RUNNING: bounds.release_s,
    }[resize.state]
    if quiet < limit:
        return None
    if resize.state == ResizeState.RUNNING:
        return Close(
            job.job_id, resize.id, ResizeState.DONE, f"not everything given up was released within {limit:.0f} s"
        )
    return Close(job.job_id, resize.id, ResizeState.WITHDRAWN, f"no progress for {quiet:.0f} s after '{resize.state}'")


def _base_in_use(job: ElasticJob, use: InUse) -> bool:
    """Whether the supervisor's word is about this very allocation."""
    return bool(job.held) and bool(units_of((job.held[0].piece,)) & units_of(use.pieces))


NOTHING = Amount()


def overtaken(snapshot: Snapshot, roster: Roster, resizes: Iterable[ResizeRow]) -> dict[int, str]:
    """By resize, why it is to be given up: a node that it waits for is lost. Only while that does no harm."""
    found = {}
    for resize in resizes:
        job = roster.elastic.get(resize.job_id)
        if job is None or not job.running:
            continue
        own = _own(job) if carrier(resize.message).restarts else {}
        if resize.state in (ResizeState.GRANTED, ResizeState.READY) and (stopped := _stopped(snapshot, job, resize)):
            found[resize.id] = f"its companion {stopped} was suspended"
            continue
        for node, need in _awaited(job, resize):
            if _gone(snapshot, node, need, own.get(node, NOTHING)):
                found[resize.id] = f"node {node} is no longer free"
                break
    return found


def _awaited(job: ElasticJob, resize: ResizeRow) -> list[tuple[str, Amount]]:
    """The nodes that a resize waits for, and what it needs on each."""
    return [
        (node, Amount(shape.gpus_per_node, shape.cpus_per_node, shape.mem_mb_per_node))
        for shape in carrier(resize.message).awaits(job, resize)
        for node in shape.node_list
    ]


def _stopped(snapshot: Snapshot, of: ElasticJob, resize: ResizeRow) -> int:
    """A companion of it that is suspended; 0: none."""
    for job in snapshot.jobs.values():
        tag = companion_tag(job) if job.state == "SUSPENDED" and job.uid == of.base.uid else None
        if tag is not None and (tag.base, tag.resize) == (resize.job_id, resize.id):
            return job.job_id
    return 0


def _own(job: ElasticJob) -> Mapping[str, Amount]:
    """What the job gives back, by node, when it starts again."""
    found: dict[str, Amount] = {}
    for held in job.held:
        for node in held.piece.nodes:
            found[node] = found.get(node, NOTHING) + per_node(held.job)
    return found


def _gone(snapshot: Snapshot, name: str, need: Amount, own: Amount) -> bool:
    node = snapshot.nodes.get(name)
    if node is None or not node.schedulable:
        return True
    # Jobs are read a moment before nodes: what no job there holds may be the very companion, just granted.
    return not (free(node) + own).covers(need) and name not in unlisted_gpus(snapshot)


@record(frozen=True, slots=True)
class KeptWaiting:
    """A resize whose companion waits in vain."""

    resize: ResizeRow
    companion: Job

    def actions(self, snapshot: Snapshot, site: Site) -> list[Action]:
        """How it ends. `site`: as it is now."""
        usage = LimitUsage(site, snapshot.jobs.values(), snapshot.at)
        explained = usage.lacks(charged(self.companion), usage.of(self.companion)) != {}
        state = ResizeState.OVERTAKEN if explained else ResizeState.WITHDRAWN
        why = f"Slurm keeps companion {self.companion.job_id} waiting: {self.companion.reason}"
        close = Close(self.resize.job_id, self.resize.id, state, why)
        return [*COMPANION.undo(self.resize.job_id, (self.companion.job_id,), why), close]


def kept_waiting(roster: Roster, resizes: Iterable[ResizeRow], but: Collection[int] = ()) -> list[KeptWaiting]:
    """One for each such resize. `but`: resizes that are given up already."""
    found = []
    for resize in resizes:
        job = roster.elastic.get(resize.job_id)
        if job is None or resize.id in but or resize.state != ResizeState.SUBMITTED:
            continue
        own = (asked for asked, tag in job.queued if tag.resize == resize.id)
        late = next((asked for asked in own if not _for_nodes(asked.reason)), None)
        if late is not None:
            found.append(KeptWaiting(resize, late))
    return found


def _for_nodes(reason: str) -> bool:
    return reason in RESOURCE_REASONS or reason == _PLANNED or reason.startswith(f"{_PLANNED}, UnavailableNodes:")


_PLANNED = "ReqNodeNotAvail"
"""What Slurm says of a companion that must get nodes planned for another job; a node that is down is `overtaken`."""
