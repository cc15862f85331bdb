"""What changes rarely on a site: limits of accounts and QOS, reservations. From what scontrol prints; pure.

Limit: limits on minutes (GrpTRESMins and the like) are not read; a companion that Slurm keeps waiting for one of them
is withdrawn like any that does not start. Where a QOS and an association limit the same resource, both count, although
in Slurm the QOS takes precedence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_elastic.protocol.errors import SlurmUnparsable

from .nodelist import expand

_WORD = re.compile(r"(?<!\S)([A-Za-z/:]+)=(\S*)")
_COUNT = re.compile(r"(N|\d+(?:\.\d+)?)(?:\(.*\))?")
_UID = re.compile(r".*\((\d+)\)")
_QOS_USER = re.compile(r"(?:.*\()?(\d+)\)?")
"""5 up to 22.05, games(5) after it."""


@dataclass(frozen=True, slots=True)
class SlurmLimit:
    """At most this much for all jobs of an account (those below it too), a user of one, a QOS, or a user in one; or for
    each of these jobs by itself.

    Fields left empty stand for everybody.
    """

    account: str = ""
    uid: int | None = None
    qos: str = ""
    tres: Mapping[str, float] = field(default_factory=dict)
    """cpu, mem (MiB), node, gres/gpu, gres/gpu:a100, …"""
    jobs: int | None = None
    """Running jobs."""
    each: bool = False
    """For each job by itself (MaxTRESPerJob)."""


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

    def within(self, account: str, above: str) -> bool:
        """Whether an account is `above` or lies below it."""
        seen = set()
        while account and account not in seen:
            if account == above:
                return True
            seen.add(account)
            account = self.parents.get(account, "")
        return False


def enforces_limits(config: str) -> bool:
    """Whether `scontrol show config` says that limits count."""
    match = re.search(r"(?m)^AccountingStorageEnforce\s*=\s*(\S*)", config)
    return bool(match and {"limits", "safe", "qos"} & set(match[1].lower().split(",")))


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
            if not user or uid is not None:
                # An account's own MaxJobs is what its users inherit, each for themselves.
                jobs = ("GrpJobs",) if uid is None else ("GrpJobs", "MaxJobs")
                found += _limit(words, "GrpTRES", jobs, account=account, uid=uid)
            if uid is not None:  # users inherit it from their account
                found += _limit(words, "MaxTRESPJ", (), account=account, uid=uid, each=True)
        elif block.startswith("QOS="):
            found += _of_qos(block, words)
    return found, parents


def _of_qos(block: str, words: Mapping[str, str]) -> list[SlurmLimit]:
    qos = words["QOS"].partition("(")[0]
    found = _limit(words, "GrpTRES", ("GrpJobs",), qos=qos) + _limit(words, "MaxTRESPJ", (), qos=qos, each=True)
    for heading, suffix in (("Account Limits", "PA"), ("User Limits", "PU")):
        section = re.search(rf"(?ms)^ +{heading}\n(.*?)(?=^ {{4}}\S|\Z)", block)
        for entry in re.finditer(r"(?ms)^ {6}(\S+)\n(.*?)(?=^ {6}\S|\Z)", section[1] if section else ""):
            own = dict(_WORD.findall(entry[2]))
            user = _QOS_USER.fullmatch(entry[1])
            account, uid = (entry[1], None) if suffix == "PA" else ("", int(user[1]) if user else -1)
            found += _limit(own, f"MaxTRES{suffix}", (f"MaxJobs{suffix}",), qos=qos, account=account, uid=uid)
    return found


def _limit(
    words: Mapping[str, str],
    tres: str,
    jobs: tuple[str, ...],
    *,
    account: str = "",
    uid: int | None = None,
    qos: str = "",
    each: bool = False,
) -> list[SlurmLimit]:
    """One limit, or none where nothing is limited."""
    counts = {}
    for part in filter(None, words.get(tres, "").split(",")):
        name, _, value = part.rpartition("=")
        most = _count(value)
        if most is not None:
            counts[name] = most
    most_jobs = [most for name in jobs if (most := _count(words.get(name, ""))) is not None]
    if not counts and not most_jobs:
        return []
    return [SlurmLimit(account, uid, qos, counts, int(min(most_jobs)) if most_jobs else None, each)]


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
