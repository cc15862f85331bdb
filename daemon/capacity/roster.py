"""Which jobs of a snapshot are elastic, what Slurm holds for each, and why the others are not managed.

Promise: a Slurm job is in the roster only when its own comment (or its supervisor, in its owner's name) asked for it,
or when it is a companion tagged for such a job by the same user. Everything else is never touched.
Limit: judges one snapshot; it remembers nothing.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.errors import RequestError
from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.records import record
from slurm_elastic.protocol.request import ElasticRequest, check_start, find, parse

from ..derived.table import Derived, one_by_one
from ..slurm.model import Job, Snapshot
from .constraints import held_to

_TAG = re.compile(r"(?:^|[\s;])selastic:companion-of=([0-9]{1,10});resize=([0-9]{1,10})(?:$|[\s;])")

ALIVE = ("RUNNING", "SUSPENDED", "CONFIGURING", "RESIZING", "SIGNALING", "STOPPED")
"""States of a base in which its companions are still wanted."""


@dataclass(frozen=True, slots=True)
class Tag:
    """What a companion's comment says: for which base job, for which resize."""

    base: int
    resize: int


@record(frozen=True, slots=True)
class RunningPiece:
    """One running Slurm job that belongs to an elastic job: its piece, and of which resize a companion came."""

    job: Job
    piece: Piece
    resize: int = 0


@record(frozen=True, slots=True)
class ElasticJob:
    """An elastic job as Slurm has it: the base first, then components by offset, then companions by job id."""

    base: Job
    request: ElasticRequest
    held: tuple[RunningPiece, ...] = ()
    """Empty while the base waits."""
    components: tuple[Job, ...] = ()
    """Of a heterogeneous job that waits or runs, without the base."""
    queued: tuple[tuple[Job, Tag], ...] = ()
    """Companions still in Slurm's queue."""
    constraint: str | None = ""
    """What further nodes have to meet, as --constraint= says it; None: that cannot be said."""

    @property
    def job_id(self) -> int:
        return self.base.job_id

    @property
    def running(self) -> bool:
        return self.base.state == "RUNNING"

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple([held.piece for held in self.held])

    @property
    def gpus(self) -> int:
        return sum(held.piece.gpus for held in self.held)


@dataclass(frozen=True, slots=True)
class Unmanaged:
    """A job that asked to be elastic and is left alone: the reason and its sentence."""

    job: Job
    request: str
    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Roster:
    """Every job of one snapshot, sorted by what may be done to it."""

    elastic: Mapping[int, ElasticJob] = field(default_factory=dict)
    unmanaged: Mapping[int, Unmanaged] = field(default_factory=dict)
    orphans: tuple[Job, ...] = ()
    """Companions, running or queued, whose base does not run."""

    def members(self) -> dict[int, int]:
        """Slurm job id -> elastic job id, for every Slurm job that belongs to an elastic one."""
        found = {}
        for job_id, elastic in self.elastic.items():
            for job in (
                elastic.base,
                *elastic.components,
                *(h.job for h in elastic.held),
                *(j for j, _ in elastic.queued),
            ):
                found[job.job_id] = job_id
        return found


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose jobs may be managed."""

    partitions: Collection[str] = ()
    """Empty: all."""
    accounts: Collection[str] = ()
    """Empty: all."""
    uid: int | None = None
    """One user's jobs only; None: everyone's."""


@record(frozen=True, slots=True)
class RosterEntry:
    """What it depends on whether a job is elastic, and what Slurm holds for it, its companions left out."""

    job: Job
    parts: tuple[Job, ...]
    """Its further components."""
    text: str
    """Of the request."""
    reached: tuple[int, frozenset[str]] | None
    """GPUs and their types on the nodes of its partitions; None: those have no nodes."""
    scope: Scope
    started: bool
    features: tuple[frozenset[str], ...]
    """Of each node that it has, where it asks for some."""


Companions = tuple[ElasticJob, tuple[RunningPiece, ...], tuple[tuple[Job, Tag], ...]]
"""A job, and of its companions those that run and those that wait."""


class RosterTables:
    """What the last rosters were made of. It changes none: a job that is as it was stays the same object, so that
    whoever keeps what was made of it knows it again."""

    def __init__(self) -> None:
        self.alone = Derived[int, RosterEntry, ElasticJob | Unmanaged](one_by_one(_judge))
        self.whole = Derived[int, Companions, ElasticJob](one_by_one(_with_companions))

    def turn(self) -> None:
        self.alone.turn()
        self.whole.turn()


def companion_tag(job: Job) -> Tag | None:
    """The tag of a companion. Both its comment and its name must say so: one alone may be a user's own text."""
    match = _TAG.search(job.comment)
    if match is None or job.name != f"selastic-{match.group(1)}":
        return None
    return Tag(int(match.group(1)), int(match.group(2)))


def sort_jobs(
    snapshot: Snapshot,
    scope: Scope | None = None,
    asked: Mapping[int, str] | None = None,
    accepted: Collection[int] = (),
    tables: RosterTables | None = None,
) -> Roster:
    """Sort a snapshot's jobs.

    `asked`: requests that supervisors brought, by job id; they override the comment. `accepted`: jobs that were
    elastic before, whose present size is ours and no longer has to be a starting size.
    """
    scope, asked, tables = scope or Scope(), asked or {}, tables or RosterTables()
    tables.turn()
    entries: dict[int, RosterEntry] = {}
    components, reached = _components(snapshot), dict[str, tuple[int, frozenset[str]] | None]()
    for job in snapshot.jobs.values():
        text = asked.get(job.job_id) or find(job.comment)
        if text is None or not _in_scope(job, scope) or job.het_offset > 0 or companion_tag(job) is not None:
            continue
        if job.partition not in reached:  # most jobs share one
            reached[job.partition] = _reached(snapshot, job.partition)
        features = tuple(_features(snapshot, job)) if job.features else ()
        of_job = job, tuple(components.get(job.job_id, ())), text, reached[job.partition]
        entries[job.job_id] = RosterEntry(*of_job, scope, job.job_id in accepted, features)
    elastic, unmanaged = dict[int, ElasticJob](), dict[int, Unmanaged]()
    for job_id, found in tables.alone.of(entries).items():
        if isinstance(found, Unmanaged):
            unmanaged[job_id] = found
        else:
            elastic[job_id] = found
    companions, orphans = _companions(snapshot, scope, elastic)
    return Roster({**elastic, **tables.whole.of(companions)}, unmanaged, orphans)


def _judge(entry: RosterEntry) -> ElasticJob | Unmanaged:
    job, scope, text = entry.job, entry.scope, entry.text
    if scope.partitions and not set(job.partition.split(",")) & set(scope.partitions):
        return Unmanaged(job, text, Reason.NOT_ALLOWED, f"partition {job.partition} is not open to elastic jobs")
    if scope.accounts and job.account not in scope.accounts:
        return Unmanaged(job, text, Reason.NOT_ALLOWED, f"account {job.account} is not open to elastic jobs")
    try:
        request = parse(text)
        # One that is exclusive will hold whole nodes, whatever it asks for.
        if not entry.started and not (job.exclusive and job.pending):
            check_start(request, job.gpus + sum(part.gpus for part in entry.parts))
    except RequestError as error:
        return Unmanaged(job, text, Reason.MALFORMED, str(error))
    sentence = _impossible(entry.reached, job, entry.parts, request)
    if sentence:
        return Unmanaged(job, text, Reason.IMPOSSIBLE, sentence)
    constraint = held_to(job.features, entry.features) if job.features else ""
    return ElasticJob(job, request, _held(job, entry.parts), entry.parts, constraint=constraint)


def _reached(snapshot: Snapshot, partition: str) -> tuple[int, frozenset[str]] | None:
    """GPUs and their types on the nodes of a job's partitions; None: those have no nodes."""
    names = set(partition.split(","))
    nodes = [node for node in snapshot.nodes.values() if names & set(node.partitions)]
    types = frozenset(node.gpu_type for node in nodes if node.gpus)
    return (sum(node.gpus for node in nodes), types) if nodes else None


def _impossible(
    reached: tuple[int, frozenset[str]] | None, job: Job, parts: tuple[Job, ...], request: ElasticRequest
) -> str:
    """Why this cluster can never meet the request; empty when it can."""
    total, types = reached or (0, frozenset())
    if reached and request.min_gpus > total:
        return f"gpus={request.min_gpus}-{request.max_gpus}: partition {job.partition} has {total} GPUs in all"
    if reached and job.gpu_type and job.gpu_type not in types:
        return f"GPU type {job.gpu_type}: partition {job.partition} has {', '.join(sorted(types)) or 'none'}"
    for part in (job, *parts):
        if part.state == "RUNNING" and part.gpus != len(part.nodes) * part.gpus_per_node:
            where = f"{part.gpus} GPUs on {len(part.nodes)} nodes, not known to be as many on each"
            return (
                f"job {part.job_id} holds {where}; "
                "accepted: --gpus-per-node=N or --gres=gpu:N, or components of a heterogeneous job with a number each"
            )
    return ""


def _in_scope(job: Job, scope: Scope) -> bool:
    return scope.uid is None or job.uid == scope.uid


def _components(snapshot: Snapshot) -> dict[int, list[Job]]:
    found: dict[int, list[Job]] = {}
    for job in sorted(snapshot.jobs.values(), key=lambda job: job.het_offset):
        if job.het_job_id and job.het_offset > 0:
            found.setdefault(job.het_job_id, []).append(job)
    return found


def _features(snapshot: Snapshot, job: Job) -> Iterator[frozenset[str]]:
    """Of each node that the job has."""
    return (frozenset(snapshot.nodes[name].features) for name in job.nodes if name in snapshot.nodes)


def _held(base: Job, parts: tuple[Job, ...]) -> tuple[RunningPiece, ...]:
    if base.state != "RUNNING":
        return ()
    kinds = [(base, "base"), *((part, "component") for part in parts if part.state == "RUNNING")]
    return tuple(RunningPiece(job, piece_of(job, kind)) for job, kind in kinds)


def piece_of(job: Job, kind: str) -> Piece:
    """What a running Slurm job holds, as a piece."""
    return Piece(job.job_id, kind, tuple(job.nodes), job.gpus_per_node, job.gpu_type)


def _companions(
    snapshot: Snapshot, scope: Scope, elastic: Mapping[int, ElasticJob]
) -> tuple[dict[int, Companions], tuple[Job, ...]]:
    """The companions of each base that has some; and those whose base does not run."""
    running, queued = dict[int, list[RunningPiece]](), dict[int, list[tuple[Job, Tag]]]()
    orphans = []
    for job in sorted(snapshot.jobs.values(), key=lambda job: job.job_id):
        tag = companion_tag(job)
        if tag is None or job.state not in ("RUNNING", "PENDING") or not _in_scope(job, scope):
            continue
        base = snapshot.jobs.get(tag.base)
        if base is not None and base.uid != job.uid:
            continue  # another user's text about somebody's job
        if base is None or base.state not in ALIVE:
            orphans.append(job)
        elif tag.base not in elastic:
            continue  # its base runs and is left alone, and so is this
        elif job.state == "RUNNING":
            running.setdefault(tag.base, []).append(RunningPiece(job, piece_of(job, "companion"), tag.resize))
        else:
            queued.setdefault(tag.base, []).append((job, tag))
    found = {
        job_id: (elastic[job_id], tuple(running.get(job_id, ())), tuple(queued.get(job_id, ())))
        for job_id in elastic
        if job_id in running or job_id in queued
    }
    return found, tuple(orphans)


def _with_companions(of_base: Companions) -> ElasticJob:
    base, running, queued = of_base
    return replace(base, held=(*base.held, *running), queued=queued)
