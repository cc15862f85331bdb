"""How many GPUs the jobs of a user, of an account, or of a partition with few nodes may hold together, and what of
Slurm's limits is used at the beginning of a plan. Pure.

Promise: no limit asks a job to come below a size that it can come to rest on. Limit: of the settings' limits only
elastic jobs count; Slurm's own, which count every job, come in as what they leave.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from slurm_elastic.protocol.codes import ResizeState

from ..capacity.ledger import Ledger
from ..capacity.slurm_limits import GpuLimit, LimitUsage, amounts_of, as_companion, charged, of_shape
from ..optimizer.solver.limits import Cap
from ..slurm.model import Snapshot
from ..slurm.site import Site
from .pools.candidate import Candidate
from .running.job import RunningJob


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `gpus` GPUs for these jobs together."""

    label: str
    gpus: int
    jobs: frozenset[int]


class Limits:
    """The limits of a round, and what is held under each; kept up to date as GPUs are given."""

    def __init__(
        self,
        settings: Sequence[str],
        running_jobs: Iterable[RunningJob],
        slurm: Iterable[GpuLimit] = (),
        paid: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """paid: see Weights."""
        known, of_slurm = list(running_jobs), list(slurm)
        tries = [running for running in known if running.most is not None]
        budgets = [running for running in known if running.job_id in paid]
        limited = known if settings or of_slurm else tries + budgets
        self.held = {running.job_id: _spoken_for(running) for running in limited}
        self.limits = _limits(settings, known)
        for limit in of_slurm:
            jobs = limit.jobs & self.held.keys()
            gpus = self._used(jobs) + limit.more
            self.limits.append(Limit(f"{limit.label} {gpus} GPUs", gpus, jobs))
        for one in tries:
            assert one.most is not None
            label = f"Slurm refused it more at once, and it may try {one.most} GPUs"
            self.limits.append(Limit(label, max(one.gpus, one.most), frozenset({one.job_id})))
        for one in budgets:
            gpus = paid[one.job_id] or min(one.accepted.ascending)
            pays = "pays for" if paid[one.job_id] else "does not pay for its end, so it may hold"
            label = f"its budget {pays} {gpus} GPUs"
            self.limits.append(Limit(label, gpus, frozenset({one.job_id})))
        self._of: dict[int, list[Limit]] = {}
        for each in self.limits:
            for job_id in each.jobs:
                self._of.setdefault(job_id, []).append(each)

    def room(self, job_id: int) -> int | None:
        """GPUs that the job may gain; None: no limit holds it."""
        own = [limit.gpus - self._used(limit.jobs) for limit in self._of.get(job_id, ())]
        return max(0, min(own)) if own else None

    def give(self, job_id: int, gpus: int) -> None:
        """Count the job as holding so many GPUs from now on."""
        self.held[job_id] = gpus

    def label(self, job_id: int) -> str:
        """The limit that leaves the job the least room; empty when there is none."""
        own = self._of.get(job_id, ())
        return min(own, key=lambda limit: limit.gpus - self._used(limit.jobs)).label if own else ""

    def caps(self, members: Sequence[Candidate]) -> list[Cap]:
        """The limits as the optimizer takes them, over these jobs; what others hold is taken off."""
        out = []
        place = {m.running.job_id: i for i, m in enumerate(members)}
        for limit in self.limits:
            inside = sorted(place[job_id] for job_id in limit.jobs if job_id in place)
            others = limit.jobs - {members[i].running.job_id for i in inside}
            cap = _cap(members, inside, limit.gpus - self._used(others), limit.label)
            out += [cap] if cap else []
        return out

    def _used(self, jobs: Iterable[int]) -> int:
        return sum(self.held[job] for job in jobs)


def reach(
    members: Sequence[Candidate], nodes: Mapping[int, frozenset[str]], pool: Collection[str], ledger: Ledger
) -> list[Cap]:
    """Limits of the jobs whose partitions reach a part of their pool only: what they have and what is free there.

    `nodes`: what each job may grow onto, by job id; `pool`: all nodes of theirs, whose GPUs need no limit here.
    Exact where the parts nest, as partitions'
    usually do; elsewhere a growth that does not fit is cut down when it is placed.
    """
    parts = {nodes[m.running.job_id] for m in members}
    out = []
    for part in sorted((part for part in parts if len(part) < len(pool)), key=sorted):
        inside = [i for i, m in enumerate(members) if nodes[m.running.job_id] <= part]
        room = sum(members[i].rest for i in inside) + ledger.gpus(part)
        cap = _cap(members, inside, room, "")
        out += [cap] if cap else []
    return out


def _cap(members: Sequence[Candidate], inside: list[int], gpus: int, label: str) -> Cap | None:
    """The limit over these positions, at least what they cannot come below; None when it could never bind."""
    sizes = [[k for k, _ in members[i].choices] for i in inside]
    least, most = sum(min(row) for row in sizes), sum(max(row) for row in sizes)
    return Cap(max(gpus, least), frozenset(inside), label) if max(gpus, least) < most else None


def _spoken_for(running: RunningJob) -> int:
    resize = running.state.resize
    return max(running.gpus, resize.gpus if resize is not None else 0)


def _limits(settings: Sequence[str], running_jobs: Sequence[RunningJob]) -> list[Limit]:
    if not settings:
        return []
    groups: dict[tuple[str, str], set[int]] = {}
    for running in running_jobs:
        base = running.job.base
        for kind, name in (("user", base.user), ("account", base.account)):
            groups.setdefault((kind, name), set()).add(running.job_id)
    said = {}
    for text in settings:
        who, _, gpus = text.partition("=")
        kind, _, name = who.partition(":")
        said[kind, name] = int(gpus)
    found = []
    for (kind, name), jobs in sorted(groups.items()):
        most = said.get((kind, name), said.get((kind, "*")))
        if most is not None:
            found.append(Limit(f"{kind} {name} may hold {most} GPUs", most, frozenset(jobs)))
    return found


def limit_usage(
    site: Site, snapshot: Snapshot, running_jobs: Collection[RunningJob], companion_qos: str = ""
) -> LimitUsage:
    """The usage of the site's limits; of a site without limits, nothing. `companion_qos`: the setting. What a resize
    under way is going to take is counted as used, and what it gives up as free, both once."""
    if not site.limits:
        return LimitUsage(site)
    usage = LimitUsage(site, snapshot.jobs.values(), snapshot.at)
    for running in running_jobs:
        for job_id, gone in _loose(running).items():
            job = snapshot.jobs[job_id]
            usage.add(charged(job), usage.part_of(job, gone), sign=-1)
        base = running.job.base
        for amounts in _coming(running):
            usage.add(charged(as_companion(base, companion_qos)), usage.beside(base, amounts))
    return usage


def holds(running: RunningJob, usage: LimitUsage) -> Mapping[str, float]:
    """What an elastic job has with all its pieces, and will have, in the names of limits."""
    if len(running.job.held) == 1 and running.state.resize is None:
        return usage.of(running.job.held[0].job)
    total: Counter[str] = Counter()
    base = running.job.base
    coming = (usage.beside(base, amounts) for amounts in _coming(running))
    for amounts in (*(usage.of(held.job) for held in running.job.held), *coming):
        total.update(amounts)
    return total


def _loose(running: RunningJob) -> dict[int, Counter[str]]:
    """What is about to be released, by Slurm job."""
    found: dict[int, Counter[str]] = {}
    for held in running.job.held:
        job, here = held.job, [amount for unit, amount in running.loose.items() if unit[0] == held.job.job_id]
        for amount in here:
            found.setdefault(job.job_id, Counter()).update(amounts_of(amount, 1, job.gpu_type))
        if here and len(here) == len(job.nodes):
            found[job.job_id].update(jobs=1, submits=1)
    return found


def _coming(running: RunningJob) -> Iterator[dict[str, float]]:
    """What a resize under way will add and Slurm does not hold for it yet."""
    resize = running.state.resize
    if resize is None or resize.state == ResizeState.RUNNING or resize.requeues:
        return
    granted = {node for held in running.job.held if held.resize == resize.id for node in held.piece.nodes}
    queued = {node for job, tag in running.job.queued if tag.resize == resize.id for node in job.required_nodes}
    for shape in resize.add:
        if granted.isdisjoint(shape.node_list):
            yield {**of_shape(shape), "submits": float(queued.isdisjoint(shape.node_list))}
