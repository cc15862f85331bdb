"""What changes rarely on a site: limits of accounts and QOS, reservations. From what scontrol prints; pure.

Limit: limits on minutes (GrpTRESMins and the like) are not read; a companion that Slurm keeps waiting for one of them
is withdrawn. A QOS's limit of a user or account is seen once Slurm has counted somebody's jobs in it. The flag
OverPartQOS and what an association says of one partition are not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from slurm_elastic.protocol.errors import SlurmUnparsable

from .nodelist import expand

_WORD = re.compile(r"(?<!\S)([A-Za-z/:]+)=(\S*)")
_COUNT = re.compile(r"(N|\d+(?:\.\d+)?)(?:\(.*\))?")
_UID = re.compile(r".*\((\d+)\)")
BF_INTERVAL_S = 30.0
"""Slurm's own default."""
Scope = Literal["together", "user", "account", "job", "node", "least"]


@dataclass(frozen=True, slots=True)
class SlurmLimit:
    """At most this much for the jobs of an account (those below it too), of a user of one, or of a QOS.

    Fields left empty stand for everybody.
    """

    account: str = ""
    uid: int | None = None
    qos: str = ""
    tres: Mapping[str, float] = field(default_factory=dict)
    """cpu, mem (MiB), node, gres/gpu, gres/gpu:a100, …; and of the jobs themselves: jobs (running), submits (all)."""
    scope: Scope = "together"
    """Whether the jobs share it, or each user's, each account's, each job or each node of a job has it for itself;
    least: each job has to ask for at least so much."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Reserved nodes, from `start` to `end` in Unix seconds."""

    name: str
    nodes: tuple[str, ...]
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Site:
    """What was read, and when. Empty where the site enforces no limits."""

    at: float = 0.0
    limits: tuple[SlurmLimit, ...] = ()
    parents: Mapping[str, str] = field(default_factory=dict)
    """Account -> the account above it."""
    reservations: tuple[Reservation, ...] = ()
    switches: Mapping[str, str] = field(default_factory=dict)
    """Node -> the lowest switch over it; empty where the site describes no tree."""
    power_saving: bool = False
    """Slurm puts nodes to sleep that have been idle for a while."""
    partition_qos: Mapping[str, str] = field(default_factory=dict)
    """Partition -> the QOS whose limits all its jobs have, for partitions with one."""
    bf_interval_s: float = 0.0
    """Seconds between two looks of the backfill scheduler; 0: there is none, or it is not known."""

    def accounts(self, account: str) -> list[str]:
        """An account, then those above it."""
        found: list[str] = []
        while account and account not in found:
            found.append(account)
            account = self.parents.get(account, "")
        return found


def enforces_limits(config: str) -> bool:
    """Whether `scontrol show config` says that limits count."""
    match = re.search(r"(?m)^AccountingStorageEnforce\s*=\s*(\S*)", config)
    return bool(match and {"limits", "safe"} & set(match[1].lower().split(",")))


def bf_interval_s(config: str) -> float:
    """Seconds between two looks of the backfill scheduler, of `scontrol show config`; 0 where it does not run."""
    if "sched/backfill" not in config:
        return 0.0
    said = re.search(r"(?m)^SchedulerParameters\s*=.*\bbf_interval=(\d+)", config)
    return float(said[1]) if said else BF_INTERVAL_S


def saves_power(config: str) -> bool:
    """Whether `scontrol show config` says that idle nodes are put to sleep."""
    said = dict(re.findall(r"(?m)^(SuspendTime|SuspendProgram)\s*=\s*(\S+)", config))
    return said.get("SuspendTime", "NONE") not in ("NONE", "INFINITE") and said.get("SuspendProgram") != "(null)"


def limits(text: str) -> tuple[list[SlurmLimit], dict[str, str]]:
    """(limits, parents) of `scontrol show assoc_mgr flags=assoc,qos`. SlurmUnparsable for a number of no known form."""
    found: list[SlurmLimit] = []
    parents: dict[str, str] = {}
    for block in re.split(r"(?m)^(?=ClusterName=|QOS=)", text):
        words = dict(reversed(_WORD.findall(block)))
        if block.startswith("ClusterName="):
            account, user = words.get("Account", "").lower(), words.get("UserName", "")
            if not user and words.get("ParentAccount"):
                parents[account] = words["ParentAccount"].partition("(")[0]
            uid = int(match[1]) if (match := _UID.fullmatch(user)) else None
            if not user:
                found += _limit(words, "GrpTRES", {"GrpJobs": "jobs", "GrpSubmitJobs": "submits"}, account=account)
            elif uid is not None:  # users inherit the others from their account
                counts = {"GrpJobs": "jobs", "MaxJobs": "jobs", "GrpSubmitJobs": "submits", "MaxSubmitJobs": "submits"}
                found += _limit(words, "GrpTRES", counts, account=account, uid=uid)
                found += _limit(words, "MaxTRESPJ", account=account, uid=uid, scope="job")
                found += _limit(words, "MaxTRESPN", account=account, uid=uid, scope="node")
        elif block.startswith("QOS="):
            found += _of_qos(block, words)
    return found, parents


def _of_qos(block: str, words: Mapping[str, str]) -> list[SlurmLimit]:
    qos = words["QOS"].partition("(")[0]
    found = _limit(words, "GrpTRES", {"GrpJobs": "jobs", "GrpSubmitJobs": "submits"}, qos=qos)
    found += _limit(words, "MaxTRESPJ", qos=qos, scope="job")
    found += _limit(words, "MaxTRESPN", qos=qos, scope="node")
    found += _limit(words, "MinTRESPJ", qos=qos, scope="least")
    for heading, suffix, scope in _PER:
        section = re.search(rf"(?ms)^ +{heading}\n(.*?)(?=^ {{4}}\S|\Z)", block)
        # The same for every user or account that is listed, and for those whose jobs were not counted yet.
        entry = re.search(r"(?ms)^ {6}\S+\n(.*?)(?=^ {6}\S|\Z)", section[1] if section else "")
        own = dict(_WORD.findall(entry[1])) if entry else {}
        counts = {f"MaxJobs{suffix}": "jobs", f"MaxSubmitJobs{suffix}": "submits"}
        found += _limit(own, f"MaxTRES{suffix}", counts, qos=qos, scope=scope)
    return found


_PER: tuple[tuple[str, str, Scope], ...] = (("Account Limits", "PA", "account"), ("User Limits", "PU", "user"))


def _limit(
    words: Mapping[str, str],
    tres: str,
    counts: Mapping[str, str] = MappingProxyType({}),
    *,
    account: str = "",
    uid: int | None = None,
    qos: str = "",
    scope: Scope = "together",
) -> list[SlurmLimit]:
    """One limit, or none where nothing is limited. `counts`: the words that limit jobs, and what they limit."""
    found: dict[str, float] = {}
    for part in filter(None, words.get(tres, "").split(",")):
        name, _, value = part.rpartition("=")
        most = _count(value)
        if most is not None:
            found[name] = most
    for word, name in counts.items():
        most = _count(words.get(word, ""))
        if most is not None:
            found[name] = min(most, found.get(name, most))
    return [SlurmLimit(account, uid, qos, found, scope)] if found else []


def _count(text: str) -> float | None:
    """8 of 8(4); None for N(4), which is no limit, and for nothing."""
    if not text:
        return None
    match = _COUNT.fullmatch(text)
    if match is None:
        raise SlurmUnparsable(f"{text[:40]!r} from scontrol show assoc_mgr is not a limit such as 8(4).")
    return None if match[1] == "N" else float(match[1])


def reservations(text: str) -> tuple[Reservation, ...]:
    """Of `scontrol -o show reservation`, with times in Unix seconds."""
    found = []
    for line in text.splitlines():
        words = dict(_WORD.findall(line))
        if "ReservationName" not in words:
            continue
        try:
            start, end = float(words["StartTime"]), float(words["EndTime"])
        except (KeyError, ValueError):
            raise SlurmUnparsable(f"a reservation without times: {line[:80]!r}.") from None
        nodes = words.get("Nodes", "")
        held = expand(nodes) if nodes not in ("", "(null)") else ()
        found.append(Reservation(words["ReservationName"], held, start, end))
    return tuple(found)


def switches(text: str) -> dict[str, str]:
    """Node -> leaf switch, of `scontrol show topology`; of other kinds of topology than trees nothing is known."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        words: dict[str, str] = dict(_WORD.findall(line))
        if "SwitchName" in words and words.get("Level") == "0" and words.get("Nodes"):
            found.update(dict.fromkeys(expand(words["Nodes"]), words["SwitchName"]))
    return found


def partition_qos(text: str) -> dict[str, str]:
    """Partition -> its QOS, of `scontrol -o show partition`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        words: dict[str, str] = dict(_WORD.findall(line))
        if words.get("QoS", "N/A") != "N/A":
            found[words["PartitionName"]] = words["QoS"]
    return found
