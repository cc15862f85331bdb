"""What is used of Slurm's own limits: GrpTRES, MaxTRES per user, account, job; MaxJobs, MaxSubmitJobs, minutes. Pure.

Promise: usage is counted as Slurm counts it: what running jobs hold, the minutes that they may still use, and jobs in
the queue as submitted. Where a partition's QOS, a job's QOS and its association limit the same, the first of them
holds, as in Slurm; a QOS with the flag OverPartQOS comes before the partition's.
Limit: jobs that share a node count it twice in a limit of nodes. Nobody is asked to give back what Slurm has granted,
but for a waiting job; a limit lowered afterwards only keeps jobs from more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_elastic.protocol.messages import Shape
from slurm_elastic.protocol.records import record

from ..slurm.accounting import MINUTES, MINUTES_LEFT, RUN_MINUTES, WALL_LEFT, SlurmLimit
from ..slurm.model import Job
from ..slurm.site import Site
from .ledger import Amount

Charged = tuple[int, str, str, str]
"""uid, account, QOS and partition of a job: what decides which limits it has."""
Owner = tuple[str, int | None, str, str]
"""account, uid, QOS and partition of a limit."""
Key = tuple[object, ...]

SHARED = ("together", "user", "account")
LEFT_FREE = 10
"""Of so many jobs that a user may submit, companions leave one; of fewer, one too."""


@record(frozen=True, slots=True)
class Bound:
    """So much of one resource for all the jobs that share it, or for each of them."""

    name: str
    """cpu, gres/gpu, …, jobs, submits."""
    most: float
    key: Key
    """Equal for all jobs that share it."""
    scope: str
    whose: str

    @property
    def of_time(self) -> bool:
        """Whether it limits minutes."""
        return self.name.endswith(_TIMED)

    @property
    def label(self) -> str:
        each = {"job": " of each job", "node": " on each node of a job", "least": " at least in each job"}
        return f"Slurm's limit {self.name}={self.most:g}{each.get(self.scope, '')} ({self.whose})"


def charged(job: Job) -> Charged:
    """What decides which limits a job has. Of several partitions none: it may start in one whose QOS does not hold
    it."""
    return job.uid, job.account, job.qos, job.partition if "," not in job.partition else ""


def as_companion(base: Job, companion_qos: str) -> Job:
    """A job as its companions are charged. `companion_qos`: the setting."""
    return replace(base, qos=companion_qos) if companion_qos else base


def bounds(site: Site, of: Mapping[Owner, Sequence[SlurmLimit]], who: Charged) -> tuple[Bound, ...]:
    """What limits jobs of this user, account, QOS and partition. `of`: the site's limits by their owner."""
    uid, account, qos, partition = who
    named = [name for name in (site.partition_qos.get(partition, ""), qos) if name]
    layers: list[list[Owner]] = [[("", None, name, "")] for name in named]
    if qos in site.qos_over_partition:
        layers.reverse()
    own = partition if (account, uid, partition) in site.partition_users else ""
    above: list[Owner] = [(name, None, "", "") for name in ("", *site.accounts(account))]
    layers.append([*above, (account, uid, "", own), ("", uid, "", "")])
    found: dict[tuple[Key, str], Bound] = {}
    said: set[tuple[str, str]] = set()
    for layer in layers:
        new = set()
        for limit in (limit for owner in layer for limit in of.get(owner, ())):
            for name, most in limit.tres.items():
                what = _kind(limit, name)
                if what not in said:
                    bound = Bound(name, most, _key(limit, uid, account), limit.scope, _whose(limit))
                    found[bound.key, name] = bound
                    new.add(what)
        said |= new
    return tuple(found.values())


def _by_owner(limits: Iterable[SlurmLimit]) -> dict[Owner, list[SlurmLimit]]:
    found: dict[Owner, list[SlurmLimit]] = {}
    for limit in limits:
        found.setdefault((limit.account, limit.uid, limit.qos, limit.partition), []).append(limit)
    return found


def _kind(limit: SlurmLimit, name: str) -> tuple[str, str]:
    """What a QOS's limit takes the place of: a user's number of jobs may be limited in the QOS or the association."""
    if name in ("jobs", "submits") and limit.uid is not None:
        return "user", name
    return limit.scope, name


def _key(limit: SlurmLimit, uid: int, account: str) -> Key:
    owner = {"user": uid, "account": account}.get(limit.scope)
    return limit.account, limit.uid, limit.qos, limit.partition, limit.scope, owner


def _whose(limit: SlurmLimit) -> str:
    parts = [f"account {limit.account}"] if limit.account else []
    parts += [f"QOS {limit.qos}"] if limit.qos else []
    parts += [f"user {limit.uid}"] if limit.uid is not None else []
    parts += [f"partition {limit.partition}"] if limit.partition else []
    parts += [f"each {limit.scope}"] if limit.scope in ("user", "account") else []
    return ", ".join(parts)


class LimitUsage:
    """What is used of each limit. Copy it before trying."""

    def __init__(self, site: Site, jobs: Iterable[Job] = (), at: float = 0.0) -> None:
        """at: when the jobs were looked at, for what limits of time are used."""
        self.site, self.at = site, at
        self.used: dict[tuple[Key, str], float] = {}
        self._bounds: dict[Charged, tuple[Bound, ...]] = {}
        self._of = _by_owner(site.limits)
        self._minutes = any(name.endswith(_TIMED) for limit in site.limits for name in limit.tres)
        if site.limits:
            totals: dict[Charged, Counter[str]] = {}
            for job in jobs:
                totals.setdefault(charged(job), Counter()).update(self.of(job) if job.active else submitted(job))
            for who, amounts in totals.items():
                self.add(who, amounts)

    def empty(self) -> LimitUsage:
        """The same limits, and nothing used of them."""
        made = LimitUsage(Site())
        made.site, made.at, made._bounds, made._of = self.site, self.at, self._bounds, self._of
        made._minutes = self._minutes
        return made

    def copy(self) -> LimitUsage:
        made = self.empty()
        made.used = dict(self.used)
        return made

    def plus(self, other: LimitUsage) -> LimitUsage:
        """What both use, together."""
        made = self.copy()
        for place, amount in other.used.items():
            made.used[place] = made.used.get(place, 0.0) + amount
        return made

    def of(self, job: Job) -> Mapping[str, float]:
        """What a job uses, or will when it starts, in the names of limits."""
        return self.part_of(job, uses(job))

    def part_of(self, job: Job, amounts: Mapping[str, float]) -> Mapping[str, float]:
        """What so much of a job uses, its minutes included."""
        if not self._minutes:
            return amounts
        whole, lag = _minutes(job.time_limit_s), self.site.run_minutes_lag_s
        counted = whole if lag is None or not job.active else min(whole, self._left(job) + lag / 60)
        return _with_minutes(amounts, counted, whole)

    def beside(self, base: Job, amounts: Mapping[str, float]) -> Mapping[str, float]:
        """What a companion of a running job will use, its minutes included: it ends when the job does."""
        left = self._left(base)
        return _with_minutes(amounts, left, left) if self._minutes else amounts

    def _left(self, job: Job) -> float:
        return _minutes(None if job.ends_at is None else job.left_s(self.at))

    def bounds(self, who: Charged) -> tuple[Bound, ...]:
        """What limits such jobs."""
        if who not in self._bounds:
            self._bounds[who] = bounds(self.site, self._of, who)
        return self._bounds[who]

    def add(self, who: Charged, amounts: Mapping[str, float], sign: int = 1) -> None:
        """Count so much more as used, or with sign=-1 less."""
        for bound in self.bounds(who):
            if bound.scope in SHARED and amounts.get(bound.name):
                place = bound.key, bound.name
                self.used[place] = self.used.get(place, 0.0) + sign * amounts[bound.name]

    def left(self, bound: Bound) -> float:
        """What is left of a limit; below 0 where more is used than it allows."""
        return bound.most - self.used.get((bound.key, bound.name), 0.0)

    def lacks(self, who: Charged, amounts: Mapping[str, float]) -> dict[Bound, float] | None:
        """How much would have to be given back of each limit for a job to start; None: it never may."""
        found = {}
        for bound in self.bounds(who):
            wanted = amounts.get(bound.name, 0.0)
            if bound.scope in SHARED:
                lack = wanted - self.left(bound) if wanted and bound.name not in _NOT_JUDGED else 0.0
                if lack > 0:
                    if wanted > bound.most:
                        return None
                    found[bound] = lack
            elif (bound.scope == "job" and wanted > bound.most) or (bound.scope == "least" and wanted < bound.most):
                return None
        return found


_NOT_JUDGED = ("node", "submits")
"""Nodes are counted once in Slurm, whatever jobs share them; one that waits has been submitted."""
_TIMED = (RUN_MINUTES, MINUTES_LEFT, MINUTES)
NO_LIMIT_MINUTES = 365 * 24 * 60.0
"""What Slurm takes for the time of a job without a time limit."""


def _minutes(seconds: float | None) -> float:
    return NO_LIMIT_MINUTES if seconds is None else seconds / 60


def _with_minutes(amounts: Mapping[str, float], left: float, whole: float) -> dict[str, float]:
    """`left`: the minutes that Slurm counts as still to come; `whole`: the time limit."""
    found = dict(amounts)
    for name, amount in amounts.items():
        if name not in _OF_JOBS:
            found[name + RUN_MINUTES] = found[name + MINUTES_LEFT] = amount * left
            found[name + MINUTES] = amount * whole
    found[WALL_LEFT] = amounts.get("jobs", 0.0) * left
    return found


_OF_JOBS = ("jobs", "submits")


def uses(job: Job) -> dict[str, float]:
    """What a job holds, or asks for, in the names of limits."""
    nodes = len(job.nodes) or max(1, job.num_nodes)
    found: dict[str, float] = {"gres/gpu": job.gpus, "cpu": job.cpus, "mem": job.mem_mb * nodes, "node": nodes}
    if job.gpu_type:
        found[f"gres/gpu:{job.gpu_type}"] = job.gpus
    return {**found, "jobs": 1, "submits": 1}


def submitted(job: Job) -> dict[str, float]:
    """What counts of a job in the queue: every waiting task of an array."""
    return {"submits": float(tasks(job.array_task))}


def tasks(text: str) -> int:
    """3 for "1,5-6%2", as squeue names waiting tasks; 1 for what is no list of them."""
    count = 0
    for part in text.partition("%")[0].strip("[]").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            return 1
        first, last = int(match[1]), int(match[2] or match[1])
        count += max(0, last - first) // max(1, int(match[3] or 1)) + 1
    return max(1, count)


def amounts_of(share: Amount, nodes: int, gpu_type: str) -> Counter[str]:
    """So much on each of so many nodes, in the names of limits."""
    gpus = share.gpus * nodes
    found: Counter[str] = Counter({"gres/gpu": gpus, "cpu": share.cpus * nodes, "mem": share.mem_mb * nodes})
    found["node"] = nodes
    if gpu_type:
        found[f"gres/gpu:{gpu_type}"] = gpus
    return found


def of_shape(shape: Shape) -> dict[str, float]:
    """What a companion of this shape is charged, but for its minutes."""
    amount = Amount(shape.gpus_per_node, shape.cpus_per_node, shape.mem_mb_per_node)
    return {**amounts_of(amount, shape.nodes, shape.gpu_type), "jobs": 1, "submits": 1}


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """The running elastic jobs `jobs` may together hold so many GPUs more than they do; fewer, if it is below 0."""

    label: str
    more: int
    jobs: frozenset[int]


def gpu_limits(
    usage: LimitUsage,
    elastic: Sequence[tuple[Job, Mapping[str, float]]],
    promised: LimitUsage | None = None,
    companion_qos: str = "",
) -> list[GpuLimit]:
    """The limits of elastic jobs, in GPUs: what is left, over what a GPU of the job that needs least of it takes.

    `elastic`: the base of each job and what it holds with all its pieces. `promised`: what waiting jobs will use.
    `companion_qos`: see `as_companion`; each job is taken to grow by companions.
    """
    inside: dict[Bound, list[tuple[Job, Mapping[str, float]]]] = {}
    for base, holds in elastic:
        for bound in usage.bounds(charged(as_companion(base, companion_qos))):
            if bound.scope in SHARED:
                inside.setdefault(bound, []).append((base, holds))
        for bound in usage.bounds(charged(base)):
            if bound.scope == "job":  # what one job may have, an elastic one may have with all its pieces together
                inside[replace(bound, key=(*bound.key, base.job_id))] = [(base, holds)]
    best: dict[tuple[Key, frozenset[int]], GpuLimit] = {}
    for bound, jobs in inside.items():
        if bound.scope == "job":
            left = max(0.0, bound.most - jobs[0][1].get(bound.name, 0.0))
        else:
            left = max(0.0, usage.left(bound)) - (promised.used.get((bound.key, bound.name), 0.0) if promised else 0.0)
        bases = [base for base, _ in jobs]
        for some in [bases, *([base] for base in bases if bound.of_time)]:  # each has its own time to run
            more, ids = _in_gpus(usage, bound, left, some), frozenset(base.job_id for base in some)
            if more is not None and ((bound.key, ids) not in best or more < best[bound.key, ids].more):
                leaves = "leaves it" if bound.scope == "job" else "leaves its elastic jobs"
                best[bound.key, ids] = GpuLimit(f"{bound.label} {leaves}", more, ids)
    return list(best.values())


def _in_gpus(usage: LimitUsage, bound: Bound, left: float, bases: Iterable[Job]) -> int | None:
    """GPUs that may be added; None: it limits something else."""
    if bound.name in _OF_JOBS:
        return None if companions_left(bound, left) > 0 else 0  # a companion is a job as well
    each = [(usage.beside(base, uses(base)).get(bound.name, 0.0), max(1, base.gpus)) for base in bases]
    if bound.name == WALL_LEFT:
        return None if any(minutes <= left for minutes, _ in each) else 0
    share = min((amount / gpus for amount, gpus in each), default=0.0)
    return int(left // share) if share > 0 else None


def companions_left(bound: Bound, left: float) -> int:
    """How many companions may still be asked for under a limit of jobs. Of those that a user may submit, the last ones
    are not theirs."""
    return int(left - (max(1, bound.most // LEFT_FREE) if bound.name == "submits" else 0))
