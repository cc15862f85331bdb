"""What changes rarely on a site: limits of accounts and QOS, reservations, switches. From what scontrol prints; pure.

Limit: of a topology only trees are known.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from slurm_elastic.protocol.errors import SlurmUnparsable
from slurm_elastic.protocol.messages import NOT_TRIED, REFUSED, Tried
from slurm_elastic.protocol.text.times import duration_s

from .accounting import WORD, PartitionUser, QosUser, SlurmLimit, configured, multifactor
from .fair_share import ShareTree
from .nodelist import expand

BF_INTERVAL_S = 30.0
"""Slurm's own default."""
STARTS_UNDER_NO_SWITCH = (25, 5)
"""The first release that may. 22.05 and 24.11 leave jobs for a node under no switch waiting; 26.05 starts them."""
Members = Callable[[frozenset[str] | None], frozenset[str] | None]
ACCOUNTS_HOLD_THOSE_BELOW = (23, 2)
"""The first release where a partition's list of accounts counts for all accounts below these, too."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Reserved nodes, from `start` to `end` in Unix seconds."""

    name: str
    nodes: tuple[str, ...]
    start: float
    end: float

    @property
    def ours(self) -> bool:
        """Whether it keeps nodes for a job that a resize puts back."""
        return self.name.startswith("selastic-")


@dataclass(frozen=True, slots=True)
class PartitionRules:
    """What a partition asks of its jobs, beside the limits of its QOS."""

    state: str = "UP"
    """UP; else it takes no job (DRAIN, INACTIVE), or starts none (DOWN)."""
    min_nodes: int = 0
    max_nodes: float = inf
    max_cpus_per_node: float = inf
    exclusive_user: bool = False
    """Nodes are shared with no other user."""
    accounts: frozenset[str] | None = None
    """Those that may use it; None: all but `no_accounts`."""
    no_accounts: frozenset[str] = frozenset()
    qos: frozenset[str] | None = None
    no_qos: frozenset[str] = frozenset()
    users: frozenset[str] | None = None
    """The members of its AllowGroups; None: all may use it, or who may is not known."""
    suspends: bool = False
    """Slurm puts its nodes to sleep that have been idle for a while."""
    max_time_s: float = inf
    billing: Mapping[str, float] = field(default_factory=dict)
    """TRESBillingWeights of its GPUs, such as gres/gpu:a100 -> 2.5."""

    def closed(self, user: str, accounts: Sequence[str], qos: str) -> str:
        """Why it takes no job with these now; empty: it does. accounts: `Site.listed_as` of the job's."""
        if self.state != "UP":
            return f"is {self.state}"
        if self.users is not None and user not in self.users and user != "root":
            return f"does not take user {user}, who is in none of its AllowGroups"
        for kind, names, only, never in (
            ("account", accounts, self.accounts, self.no_accounts),
            ("QOS", [qos], self.qos, self.no_qos),
        ):
            if any(names) and not (never.isdisjoint(names) and (only is None or not only.isdisjoint(names))):
                return f"does not take {kind} {names[0]}"
        return ""

    def unfit(self, nodes: int) -> str:
        """The limit that a job of so many nodes is over; empty: none."""
        if nodes < self.min_nodes:
            return f"MinNodes={self.min_nodes}"
        return f"MaxNodes={self.max_nodes:g}" if nodes > self.max_nodes else ""


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
    needs_switch: bool = False
    """Slurm starts nothing on a node under no switch."""
    users_apart: bool = False
    """No two users' jobs share a node, of whatever partition."""
    power_saving: bool = False
    """Slurm puts nodes to sleep that have been idle for a while."""
    can_suspend: bool = False
    """It has a program for that."""
    never_sleep: frozenset[str] = frozenset()
    """Nodes, and partitions all of whose nodes are not to be put to sleep."""
    administers: bool = False
    """The daemon may change nodes."""
    partitions: Mapping[str, PartitionRules] = field(default_factory=dict)
    holds_those_below: bool = False
    """A partition's list of accounts counts for all accounts below these, too."""
    partition_qos: Mapping[str, str] = field(default_factory=dict)
    """Partition -> the QOS whose limits all its jobs have, for partitions with one."""
    partition_users: frozenset[PartitionUser] = frozenset()
    """The users who have an association of their own for a partition."""
    qos_over_partition: frozenset[str] = frozenset()
    """The QOS whose limits come before those of a partition's QOS."""
    run_minutes_lag_s: float | None = None
    """For how long Slurm counts minutes of a job that have passed as still to come; None: until the job ends."""
    checks_qos: bool = False
    """Slurm refuses a job whose user may not use its QOS."""
    companion_qos_users: Mapping[QosUser, bool] = field(default_factory=dict)
    """Whether each may use the QOS of companions; empty where that is not known."""
    counts_shares: bool = False
    """Slurm's priorities count fair-share."""
    multifactor: bool = False
    """Slurm's priorities are made of factors, one of which is the site's own."""
    orders_queue: bool = False
    """They are, and the daemon may give everybody's jobs that one."""
    shares: ShareTree | None = None
    """None: not asked for, or not known."""
    bf_interval_s: float = 0.0
    """Seconds between two looks of the backfill scheduler; 0: there is none, or it is not known."""

    probed: Mapping[tuple[str, str], Mapping[str, Tried]] = field(default_factory=dict)
    """What `selastic probe` found, by user ("": for everybody's jobs) and partition."""

    def found(self, user: str, partition: str) -> Mapping[str, Tried]:
        """What counts for this user's jobs in a partition: the user's own findings before the site's."""
        own = {k: one for k, one in self.probed.get((user, partition), {}).items() if one.outcome != NOT_TRIED}
        return {**self.probed.get(("", partition), {}), **own} if self.probed else {}

    def same_gpus(self, user: str, partition: str) -> bool:
        """Whether two jobs of this user's on one node were seen to get the same GPUs."""
        gpus = self.found(user, partition).get("gpus")
        return gpus is not None and gpus.outcome == REFUSED

    def gpu_price(self, prices: Sequence[str], partition: str, kind: str, factor: float = 1.0) -> float:
        """Of an hour of one GPU. prices: the setting gpu_prices; factor: UsageFactor, where Slurm's billing counts."""
        own, billed = dict(one.split("=") for one in prices), self.partitions.get(partition, PartitionRules()).billing
        if own:
            return float(own.get(f"{partition}:{kind}", own.get(kind, 1.0)))
        return factor * (billed.get("gres/gpu", 0.0) + billed.get(f"gres/gpu:{kind.lower()}", 0.0) if billed else 1.0)

    def listed_as(self, account: str) -> list[str]:
        """By which names a partition's lists mean an account, its own first; none where that is not known."""
        if not self.holds_those_below:
            return [account]
        return self.accounts(account) if account in self.parents else []

    def accounts(self, account: str) -> list[str]:
        """An account, then those above it."""
        found: list[str] = []
        while account and account not in found:
            found.append(account)
            account = self.parents.get(account, "")
        return found

    def bars_companion_qos(self, account: str, user: str, partition: str) -> bool:
        """Whether jobs of this user may not use the QOS of companions."""
        known = self.companion_qos_users
        return not known.get((account, user, partition), known.get((account, user, ""), True))


def bf_interval_s(config: str) -> float:
    """Seconds between two looks of the backfill scheduler, of `scontrol show config`; 0 where it does not run."""
    if "sched/backfill" not in config:
        return 0.0
    said = re.search(r"(?m)^SchedulerParameters\s*=.*\bbf_interval=(\d+)", config)
    return float(said[1]) if said else BF_INTERVAL_S


def counts_shares(config: str) -> bool:
    """Whether `scontrol show config` says that the queue's order depends on fair-share."""
    return multifactor(config) and configured(config, "PriorityWeightFairShare", "0") != "0"


def users_apart(config: str) -> bool:
    """Whether `scontrol show config` says that every job has its user's label, and nodes are selected by it."""
    labels = {"enforced", "select"} <= set(configured(config, "MCSParameters").split(","))
    return labels and configured(config, "MCSPlugin").endswith("user")


def saves_power(config: str) -> bool:
    """Whether `scontrol show config` says that idle nodes are put to sleep."""
    return _suspends(configured(config, "SuspendTime", "NONE")) and can_suspend(config)


def can_suspend(config: str) -> bool:
    """Whether it has a program for that: a partition may have a time of its own."""
    return configured(config, "SuspendProgram") != ""


def never_sleep(config: str) -> frozenset[str]:
    """Of `scontrol show config`: SuspendExcNodes and SuspendExcParts. Of n[1-4]:2, two of four, none sleeps."""
    nodes, parts = (re.sub(r":\d+", "", configured(config, f"SuspendExc{of}")) for of in ("Nodes", "Parts"))
    return frozenset((*expand(nodes), *parts.split(","))) - {""}


def partitions(text: str, members: Members) -> tuple[dict[str, PartitionRules], dict[str, str]]:
    """By partition its rules, and its QOS where it has one, of `scontrol -o show partition`. members: of groups."""
    rules: dict[str, PartitionRules] = {}
    qos: dict[str, str] = {}
    for line in text.splitlines():
        words: dict[str, str] = dict(WORD.findall(line))
        name = words.get("PartitionName", "")
        if not name:
            continue
        if words.get("QoS", "N/A") != "N/A":
            qos[name] = words["QoS"]
        try:
            rules[name] = PartitionRules(
                state=words.get("State", "UP"),
                min_nodes=int(words.get("MinNodes", "0")),
                max_nodes=_most(words.get("MaxNodes", "UNLIMITED")),
                max_cpus_per_node=_most(words.get("MaxCPUsPerNode", "UNLIMITED")),
                exclusive_user=words.get("Exclusive") == "USER" or words.get("ExclusiveUser") == "YES",  # 26.05; before
                accounts=_names(words.get("AllowAccounts", "ALL")),
                no_accounts=_names(words.get("DenyAccounts", "")) or frozenset(),
                # Names of QOS are in small letters, however they are written here; of accounts they have to be.
                qos=_names(words.get("AllowQos", "ALL").lower()),
                no_qos=_names(words.get("DenyQos", "").lower()) or frozenset(),
                users=members(_names(words.get("AllowGroups", "ALL"))),
                suspends=_suspends(words.get("SuspendTime", "GLOBAL")),
                max_time_s=inf if words.get("MaxTime", "UNLIMITED") == "UNLIMITED" else duration_s(words["MaxTime"]),
                billing={key: float(w) for key, w in _BILLED.findall(words.get("TRESBillingWeights", "").lower())},
            )
        except ValueError as error:
            raise SlurmUnparsable(f"a partition of no known form from scontrol: {error} in {line[:80]!r}.") from None
    return rules, qos


_BILLED = re.compile(r"(gres/gpu(?::[^=,]+)?)=([0-9.]+)")


def _suspends(time: str) -> bool:
    return time not in ("NONE", "INFINITE", "GLOBAL", "-1")


def _most(text: str) -> float:
    return inf if text == "UNLIMITED" else int(text)


def _names(text: str) -> frozenset[str] | None:
    """None: all."""
    return None if text.upper() == "ALL" else frozenset(text.split(",")) - {"", "(null)"}


def reservations(text: str) -> tuple[Reservation, ...]:
    """Of `scontrol -o show reservation`, with times in Unix seconds."""
    found = []
    for line in text.splitlines():
        words = dict(WORD.findall(line))
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
        words: dict[str, str] = dict(WORD.findall(line))
        if "SwitchName" in words and words.get("Level") == "0" and words.get("Nodes"):
            found.update(dict.fromkeys(expand(words["Nodes"]), words["SwitchName"]))
    return found
