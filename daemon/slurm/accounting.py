"""Limits of accounts, users and QOS, and who may use which QOS. From what scontrol and sacctmgr print; pure.

Limit: a QOS's limit of a user or account is seen once Slurm has counted somebody's jobs in it. Before 24.05
MaxTRESRunMinsPU and MaxTRESRunMinsPA of a QOS are not printed, and Slurm holds no job to them.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from slurm_elastic.protocol.errors import SlurmUnparsable
from slurm_elastic.protocol.text.times import duration_s

WORD = re.compile(r"(?<!\S)([A-Za-z/:]+)=(\S*)")
_COUNT = re.compile(r"(N|\d+(?:\.\d+)?)(?:\((\d+(?:\.\d+)?)\))?")
_UID = re.compile(r".*\((\d+)\)")

RUN_MINUTES, MINUTES_LEFT, MINUTES = " run minutes", " minutes left", " minutes"
"""After the name of a resource, such as in "gres/gpu run minutes": it times the minutes that running jobs still have
(GrpTRESRunMins, MaxTRESRunMinsPU), the same where past use counts too (GrpTRESMins), it times a job's whole time limit
(MaxTRESMins)."""
WALL_LEFT = "wall minutes left"
"""Of GrpWall: the minutes of jobs, whatever they hold."""

Scope = Literal["together", "user", "account", "job", "node", "least"]
PartitionUser = tuple[str, int, str]
"""Account, uid and partition."""
QosUser = tuple[str, str, str]
"""Account, user and partition; the last is "" for all partitions that the user has no association of its own for."""


@dataclass(frozen=True, slots=True)
class SlurmLimit:
    """At most this much for the jobs of an account (those below it too), of a user of one, or of a QOS.

    Fields left empty stand for everybody.
    """

    account: str = ""
    uid: int | None = None
    qos: str = ""
    tres: Mapping[str, float] = field(default_factory=dict)
    """cpu, mem (MiB), node, gres/gpu, gres/gpu:a100, …; their minutes; and of the jobs themselves: jobs (running),
    submits (all)."""
    scope: Scope = "together"
    """Whether the jobs share it, or each user's, each account's, each job or each node of a job has it for itself;
    least: each job has to ask for at least so much."""
    partition: str = ""
    """Of a user's association with one partition; it holds there in place of the user's other one."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has run and ended by itself, by its owner's will or at its time limit."""

    user: str
    name: str
    gpus: int
    cpus: int
    seconds: float
    """How long it ran."""
    at: float
    """When it ended, in Unix seconds."""


ENDED_STATES = "CD,F,TO,CA,OOM"
"""Of those: not what was preempted, or lost its node."""
ENDED_FIELDS = "End,User,ElapsedRaw,AllocTRES,JobName"


def ended_jobs(text: str) -> list[EndedJob]:
    """Of what sacct prints of ENDED_FIELDS, in the order of their ends. SlurmUnparsable."""
    found = []
    for line in text.splitlines():
        try:
            end, user, elapsed, held, name = line.split("|", 4)
            tres = dict(one.split("=", 1) for one in held.split(",") if "=" in one)
            if end.isdigit() and int(elapsed) > 0:
                gpus, cpus = int(tres.get("gres/gpu", 0)), int(tres.get("cpu", 0))
                found.append(EndedJob(user, name, gpus, cpus, float(elapsed), float(end)))
        except ValueError:
            raise SlurmUnparsable(f"sacct printed a job of no known form: {line[:200]!r}.") from None
    return sorted(found, key=lambda job: job.at)


@dataclass(frozen=True, slots=True)
class Limits:
    """What `scontrol show assoc_mgr flags=assoc,qos` says."""

    limits: tuple[SlurmLimit, ...] = ()
    parents: Mapping[str, str] = field(default_factory=dict)
    """Account -> the account above it."""
    partition_users: frozenset[PartitionUser] = frozenset()
    """The users who have an association of their own for a partition."""


def configured(config: str, key: str, otherwise: str = "") -> str:
    """What a key is set to, by `scontrol show config`."""
    found = re.search(rf"(?mi)^{key}\s*=\s*([^\s(]+)", config)
    return found[1] if found else otherwise


def multifactor(config: str) -> bool:
    """Whether priorities are made of factors, by `scontrol show config`."""
    return configured(config, "PriorityType") == "priority/multifactor"


def enforced(config: str) -> frozenset[str]:
    """What `scontrol show config` says that accounting enforces: associations, limits, qos, safe, …."""
    return frozenset(configured(config, "AccountingStorageEnforce").lower().split(",")) - {""}


def run_minutes_lag_s(config: str) -> float | None:
    """For how long Slurm counts minutes of a job that have passed as still to come; None: until the job ends."""
    return float(duration_s(configured(config, "PriorityCalcPeriod", "5:00"))) if multifactor(config) else None


def limits(text: str, safe: bool = False) -> Limits:
    """Of `scontrol show assoc_mgr flags=assoc,qos`. `safe`: as AccountingStorageEnforce has it; Slurm then starts no
    job that could use up its minutes. SlurmUnparsable for a number of no known form."""
    found: list[SlurmLimit] = []
    parents: dict[str, str] = {}
    users = set()
    for block in re.split(r"(?m)^(?=ClusterName=|QOS=)", text):
        words = dict(reversed(WORD.findall(block)))
        if block.startswith("ClusterName="):
            account, user = words.get("Account", "").lower(), words.get("UserName", "")
            if not user and words.get("ParentAccount"):
                parents[account] = words["ParentAccount"].partition("(")[0]
            uid = int(match[1]) if (match := _UID.fullmatch(user)) else None
            if uid is not None and words.get("Partition"):
                users.add((account, uid, words["Partition"]))
            if uid is not None or not user:
                found += _of_association(words, account, uid, safe)
        elif block.startswith("QOS="):
            found += _of_qos(block, words, safe)
    return Limits(tuple(found), parents, frozenset(users))


def _of_association(words: Mapping[str, str], account: str, uid: int | None, safe: bool) -> Iterator[SlurmLimit]:
    partition = words.get("Partition", "")
    together = _together(words, safe)
    if uid is None:  # what else an account says, its users inherit
        yield from _limit(account, uid, "", together, "together")
        return
    own = _counts(words, {"MaxJobs": "jobs", "MaxSubmitJobs": "submits"})
    yield from _limit(account, uid, "", _least(together, own), "together", partition)
    yield from _limit(account, uid, "", _of_one_job(words), "job", partition)
    yield from _limit(account, uid, "", _tres(words, "MaxTRESPN"), "node", partition)


def _of_qos(block: str, words: Mapping[str, str], safe: bool) -> Iterator[SlurmLimit]:
    qos = words["QOS"].partition("(")[0]
    yield from _limit("", None, qos, _together(words, safe), "together")
    yield from _limit("", None, qos, _of_one_job(words), "job")
    yield from _limit("", None, qos, _tres(words, "MaxTRESPN"), "node")
    yield from _limit("", None, qos, _tres(words, "MinTRESPJ"), "least")
    for heading, suffix, scope in _PER:
        section = re.search(rf"(?ms)^ +{heading}\n(.*?)(?=^ {{4}}\S|\Z)", block)
        # The same for every user or account that is listed, and for those whose jobs were not counted yet.
        entry = re.search(r"(?ms)^ {6}\S+\n(.*?)(?=^ {6}\S|\Z)", section[1] if section else "")
        own = dict(WORD.findall(entry[1])) if entry else {}
        counts = _counts(own, {f"MaxJobs{suffix}": "jobs", f"MaxSubmitJobs{suffix}": "submits"})
        minutes = _tres(own, f"MaxTRESRunMins{suffix}", RUN_MINUTES)
        yield from _limit("", None, qos, {**_tres(own, f"MaxTRES{suffix}"), **minutes, **counts}, scope)


_PER: tuple[tuple[str, str, Scope], ...] = (("Account Limits", "PA", "account"), ("User Limits", "PU", "user"))


def _limit(
    account: str, uid: int | None, qos: str, tres: Mapping[str, float], scope: Scope, partition: str = ""
) -> list[SlurmLimit]:
    """One limit, or none where nothing is limited."""
    return [SlurmLimit(account, uid, qos, tres, scope, partition)] if tres else []


def _together(words: Mapping[str, str], safe: bool) -> dict[str, float]:
    """What all its jobs share."""
    found = {
        **_tres(words, "GrpTRES"),
        **_tres(words, "GrpTRESRunMins", RUN_MINUTES),
        **_tres(words, "GrpTRESMins", MINUTES_LEFT, _safely_left if safe else _used_up),
        **_counts(words, {"GrpJobs": "jobs", "GrpSubmitJobs": "submits"}),
    }
    wall = (_safely_left if safe else _used_up)(words.get("GrpWall", ""))
    return found if wall is None else {**found, WALL_LEFT: wall}


def _of_one_job(words: Mapping[str, str]) -> dict[str, float]:
    return {**_tres(words, "MaxTRESPJ"), **_tres(words, "MaxTRESMinsPJ", MINUTES)}


def _count(text: str) -> float | None:
    """8 of 8(4); None for N(4), which is no limit, and for nothing."""
    return _most_and_used(text)[0]


def _safely_left(text: str) -> float | None:
    """4 of 8(4): what running jobs and new ones may still use."""
    most, used = _most_and_used(text)
    return None if most is None else max(0.0, most - used)


def _used_up(text: str) -> float | None:
    """0 of 8(8), when no job starts any more; None of 8(4), for without `safe` Slurm does not look ahead."""
    return 0.0 if _safely_left(text) == 0 else None


def _most_and_used(text: str) -> tuple[float | None, float]:
    if not text:
        return None, 0.0
    match = _COUNT.fullmatch(text)
    if match is None:
        raise SlurmUnparsable(f"{text[:40]!r} from scontrol show assoc_mgr is not a limit such as 8(4).")
    return (None if match[1] == "N" else float(match[1])), float(match[2] or 0)


def _tres(
    words: Mapping[str, str], word: str, unit: str = "", most: Callable[[str], float | None] = _count
) -> dict[str, float]:
    parts = (part.rpartition("=") for part in words.get(word, "").split(",") if part)
    return {name + unit: number for name, _, text in parts if (number := most(text)) is not None}


def _counts(words: Mapping[str, str], counts: Mapping[str, str]) -> dict[str, float]:
    """`counts`: the words that limit jobs, and what they limit."""
    return {name: number for word, name in counts.items() if (number := _count(words.get(word, ""))) is not None}


def _least(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {**one, **{name: min(most, one.get(name, most)) for name, most in other.items()}}


def qos_over_partition(text: str) -> frozenset[str]:
    """The QOS with the flag OverPartQOS, of `sacctmgr -n -P show qos format=name,flags`."""
    rows = (line.partition("|") for line in text.splitlines())
    return frozenset(name for name, _, flags in rows if "overpartqos" in flags.lower().split(","))


def qos_users(text: str, qos: str) -> dict[QosUser, bool]:
    """Whether each may use a QOS, of `sacctmgr -n -P show assoc format=account,user,partition,qos`."""
    rows: list[Collection[str]] = [line.split("|") for line in text.splitlines()]
    found = {}
    for row in rows:
        if len(row) != 4:
            raise SlurmUnparsable(f"an association of no known form from sacctmgr: {'|'.join(row)[:80]!r}.")
        account, user, partition, usable = row
        if user:
            found[account, user, partition] = qos in usable.split(",")
    return found
