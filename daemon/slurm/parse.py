"""From what squeue and sinfo print to Job and Node. Pure; a record of another form is an error, and never skipped.

Fields are asked for one by one, each ended by a separator that is new in every call. So a comment may hold anything,
and nobody can write a comment that reads as fields or as another job.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

from slurm_elastic.protocol.errors import SlurmUnparsable
from slurm_elastic.protocol.gres import gres_gpus
from slurm_elastic.protocol.text.times import duration_s

from .model import ACTIVE, Job, Node, Partition
from .nodelist import expand

# The last ones are the user's free text; the order is otherwise without meaning.
# fmt: off
JOB_FIELDS = (
    "JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "State", "Reason", "UserName", "UserID",
    "Account", "Partition", "QOS", "NumNodes", "NumTasks", "NumCPUs", "NodeList", "BatchFlag", "BatchHost",
    "tres-alloc", "tres-per-node", "tres-per-job", "tres-per-task", "PriorityLong", "TimeLimit", "TimeLeft",
    "SubmitTime", "StartTime", "EligibleTime", "RestartCnt", "Dependency", "ReqNodes", "Feature", "Reservation",
    "OverSubscribe", "Name", "Comment",
)
NODE_FIELDS = (
    "NodeList", "StateComplete", "PartitionName", "CPUsState", "Memory", "AllocMem", "Gres", "GresUsed", "Features",
    "PriorityTier", "PreemptMode",
)
# fmt: on
EXCLUSIVE = "Exclusive"

_BEHIND = "Nodes required for job are DOWN, DRAINED or reserved"
"""What squeue prints for Resources where a job of another partition comes first on the same nodes."""
_ABSENT = frozenset({"", "N/A", "n/a", "(null)", "None", "Unknown", "NONE"})
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)[a-z]?")
_MIB = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
CACHED = 1 << 12
"""Parsed texts that are cached: thousands of jobs share a few of them, in every round."""
T = TypeVar("T")


def format_of(fields: Sequence[str], separator: str) -> str:
    """The argument of -O: every field at its full length and ended by the separator, the last one by two of them."""
    return ",".join(f"{name}:0{separator}" for name in fields) + separator


def records(output: str, fields: Sequence[str], separator: str, what: str) -> Iterator[list[str]]:
    """The fields of what -O printed, record by record: all of them together would be most of a daemon's memory.

    SlurmUnparsable when one is cut short or has another number of fields.
    """
    *whole, rest = output.split(f"{separator}{separator}\n")
    if rest:
        raise SlurmUnparsable(f"{what} printed a record without its end: {rest[-80:]!r}.")
    for text in whole:
        values = text.split(separator)
        if len(values) != len(fields):
            raise SlurmUnparsable(f"{what} printed {len(values)} fields in place of {len(fields)}: {text[:80]!r}.")
        yield values


def job_fields(release: tuple[int, int]) -> tuple[str, ...]:
    """What squeue is asked for. From 26.05 on OverSubscribe is NO for all ordinary jobs: another field says it."""
    return (*JOB_FIELDS, EXCLUSIVE) if release >= (26, 5) else JOB_FIELDS


class JobReader:
    """Jobs from one listing after the other. A job is the same object as before as long as its record says the same,
    but for the time that it has left. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Job]] = {}
        """By the text of its id: a job, and the record that it was read from, without the time left."""

    def jobs(self, rows: Iterable[list[str]], fields: Sequence[str], at: float) -> dict[int, Job]:
        """Jobs by id, from records of these fields asked for at that time. SlurmUnparsable names the field that is not
        of its form."""
        before, found, number, clock = self._known, dict[str, tuple[str, Job]](), *map(fields.index, ("JobID", _CLOCK))
        for row in rows:
            text = _BETWEEN.join((*row[:clock], *row[clock + 1 :]))
            known, job = before.get(row[number], _UNKNOWN)
            if job is None or known != text:
                job = _job(dict(zip(fields, row, strict=True)), at)
            else:
                left = _read({"JobID": row[number], _CLOCK: row[clock]}, _CLOCK, limit_s)
                ends = ends_at(job.start_time, job.time_limit_s, left, at)
                job = job if job.ends_at == ends else replace(job, ends_at=ends)
            found[row[number]] = text, job
        self._known = found
        return {job.job_id: job for _, job in found.values()}


_CLOCK, _BETWEEN = "TimeLeft", "\0"
_UNKNOWN: tuple[str, Job | None] = "", None
ANSWER_S = 30.0
"""Between a question for the time left and the moment that the answer counts from, at most."""


def ends_at(start: float | None, limit_s: int | None, left_s: int | None, at: float) -> float | None:
    """When a job that had so much time left at `at` has used it up; None: it has not started, or has no limit. That is
    the limit after its start, the same whenever it is asked for, unless it was suspended for a while."""
    if start is None or limit_s is None or left_s is None:
        return None
    return start + limit_s if abs(start + limit_s - (at + left_s)) <= ANSWER_S else at + left_s


def end_states(output: str) -> dict[int, str]:
    """Of `squeue -o '%A|%T'`: the jobs that have ended, and how. SlurmUnparsable for a line of no known form."""
    found = {}
    for line in output.splitlines():
        number, _, state = line.partition("|")
        if not (number.isdigit() and state):
            raise SlurmUnparsable(f"squeue printed the end of a job in no known form: {line[:80]!r}.")
        if state != "PENDING" and state not in ACTIVE:
            found[int(number)] = state
    return found


def last_runs(output: str) -> dict[int, str]:
    """Of `sacct -D -o JobIDRaw,Submit,State`, times in Unix seconds: how the last runs of jobs ended that have had one.
    The rows may come in any order; a job that waits has one for that, and one that runs again has no end."""
    last: dict[int, tuple[int, str]] = {}
    for line in output.splitlines():
        number, _, rest = line.partition("|")
        submitted, _, state = rest.partition("|")
        if not (number.isdigit() and submitted.isdigit() and state):
            raise SlurmUnparsable(f"sacct printed a job in no known form: {line[:80]!r}.")
        if state != "PENDING":
            last[int(number)] = max(last.get(int(number), (0, "")), (int(submitted), state.split()[0]))
    return {job_id: state for job_id, (_, state) in last.items() if state not in ACTIVE}


def nodes(rows: list[dict[str, str]]) -> dict[str, Node]:
    """Nodes by name; a node that is in several partitions comes in several rows."""
    found: dict[str, Node] = {}
    for row in rows:
        node = _node(row)
        before = found.get(node.name)
        found[node.name] = replace(node, partitions=(before.partitions if before else ()) + node.partitions)
    return found


def partitions(rows: list[dict[str, str]]) -> dict[str, Partition]:
    """Partitions by name, from the rows of their nodes: one without nodes is not among them."""
    found: dict[str, Partition] = {}
    for row in rows:
        name = _given(row["PartitionName"])
        if name and name not in found:
            try:
                found[name] = Partition(name, _count(row["PriorityTier"]), row["PreemptMode"].upper())
            except ValueError as error:
                raise SlurmUnparsable(f"partition {name[:80]!r} from sinfo: {error} in PriorityTier.") from None
    return found


def _read(row: Mapping[str, str], name: str, reader: Callable[[str], T]) -> T:
    try:
        return reader(row[name])
    except (ValueError, SlurmUnparsable) as error:
        found = f"{name}={row[name][:80]!r} of job {row['JobID'][:20]}"
        raise SlurmUnparsable(f"{found} from squeue: {error}") from None


def _job(row: dict[str, str], at: float) -> Job:
    """The job of a record that was asked for at that time."""

    held = _read(row, "NodeList", lambda text: expand(_given(text)))
    num_nodes = len(held) or _read(row, "NumNodes", _count)
    # What is held; for a pending job what it asks for.
    tres = _read(row, "tres-alloc", _tres)
    gpus, per_node, gpu_type = _read(row, "tres-per-node", lambda _: _gpus(row, tres, held, num_nodes))
    array_task = _given(row["ArrayTaskID"])
    started = None if row["State"] == "PENDING" else _read(row, "StartTime", _moment)
    limit = _read(row, "TimeLimit", limit_s)
    return Job(
        job_id=_read(row, "JobID", _whole),
        state=_same(row["State"]),
        user=_same(row["UserName"]),
        uid=_read(row, "UserID", _whole),
        name=_same(row["Name"]),
        comment="" if row["Comment"] == "(null)" else _same(row["Comment"]),
        account=_same(_given(row["Account"])),
        partition=_same(_given(row["Partition"])),
        qos=_same(_given(row["QOS"])),
        reason="Resources" if row["Reason"].startswith(_BEHIND) else _same(_given(row["Reason"])),
        nodes=held,
        batch_host=row["BatchHost"] if row["BatchFlag"] == "1" and row["BatchHost"] in held else "",
        num_nodes=num_nodes,
        gpus=gpus,
        gpus_per_node=per_node,
        asked_per_node=_read(row, "tres-per-node", lambda text: sum(_asked(text).values())),
        gpu_type=gpu_type,
        cpus=_read(row, "NumCPUs", _count),
        mem_mb=_read(row, "tres-alloc", lambda text: int(mib(tres.get("mem", "0")) / max(1, num_nodes))),
        het_job_id=_read(row, "HetJobID", _count),
        het_offset=_read(row, "HetJobOffset", _count),
        array_job_id=_read(row, "ArrayJobID", _count) if array_task else 0,
        array_task=array_task,
        priority=_read(row, "PriorityLong", _count),
        dependency=_same(_given(row["Dependency"])),
        features=_same(_given(row["Feature"])),
        required_nodes=_read(row, "ReqNodes", lambda text: expand(_given(text))),
        reservation=_same(_given(row["Reservation"])),
        exclusive=_exclusive(row),
        for_its_user="USER" in (row["OverSubscribe"], row.get(EXCLUSIVE)),
        time_limit_s=limit,
        submit_time=_read(row, "SubmitTime", _moment) or 0.0,
        start_time=started,
        ends_at=ends_at(started, limit, _read(row, _CLOCK, limit_s), at),
        eligible_time=_read(row, "EligibleTime", _moment) or 0.0,
        restarts=_read(row, "RestartCnt", _count),
    )


def _exclusive(row: dict[str, str]) -> bool:
    if EXCLUSIVE in row:
        return row[EXCLUSIVE] in ("NODE", "TOPO")
    return row["OverSubscribe"] in ("NO", "EXCLUSIVE")


def _node(row: dict[str, str]) -> Node:
    try:
        allocated, _, _, total = (_whole(part) for part in row["CPUsState"].split("/"))
        present, used = gres_gpus(row["Gres"]), gres_gpus(row["GresUsed"])
        return Node(
            name=row["NodeList"],
            flags=state_flags(row["StateComplete"]),
            partitions=(row["PartitionName"],) if _given(row["PartitionName"]) else (),
            gpus=sum(present.values()),
            gpus_used=sum(used.values()),
            gpu_type=next(iter(present)) if len(present) == 1 else "",
            cpus=total,
            cpus_used=allocated,
            mem_mb=_count(row["Memory"]),
            mem_alloc_mb=_count(row["AllocMem"]),
            features=frozenset(_given(row["Features"]).split(",")) - {""},
        )
    except ValueError as error:
        raise SlurmUnparsable(f"node {row['NodeList'][:80]!r} from sinfo: {error} in {row!r}.") from None


def _gpus(row: dict[str, str], tres: Mapping[str, str], held: tuple[str, ...], num_nodes: int) -> tuple[int, int, str]:
    """(total, per node, type) of a job, from what is allocated, else from what was asked for.

    Where only the requested total is known, GPUs per node are 0: a job that was shrunk keeps the requested total. Where
    only the allocated one is, it is taken for equal shares until the nodes are looked at (held_gpus).
    """
    asked = {name: _asked(row[name]) for name in ("tres-per-node", "tres-per-job", "tres-per-task")}
    each = sum(asked["tres-per-node"].values())
    typed = {name.partition(":")[2]: _whole(count) for name, count in tres.items() if name.startswith("gres/gpu:")}
    counted = "gres/gpu" in tres or bool(typed)
    if counted:
        total = _whole(tres["gres/gpu"]) if "gres/gpu" in tres else sum(typed.values())
    else:  # the site's AccountingStorageTRES does not name gres/gpu
        per_task = sum(asked["tres-per-task"].values())
        total = each * num_nodes or sum(asked["tres-per-job"].values()) or per_task * _count(row["NumTasks"])
    if held and (counted or (not each and len(held) == 1)):
        each = 0 if total % len(held) else total // len(held)
    types = set(typed) or {type for one in asked.values() for type in one if type}
    return total, each, types.pop() if len(types) == 1 and total else ""


def _asked(text: str) -> Mapping[str, int]:
    """`gres_gpus` of what a user wrote, which Slurm does not check: text that is no number of GPUs counts as none,
    so that one job cannot break the whole listing."""
    try:
        return gres_gpus(text)
    except ValueError:
        return {}


def limit_s(text: str) -> int | None:
    """Seconds of a time limit; None for UNLIMITED and for what is not set."""
    if text in _ABSENT or text in ("UNLIMITED", "NOT_SET", "Partition_Limit"):
        return None
    if text == "INVALID":  # squeue's word for a job that is over its limit
        return 0
    return duration_s(text)


@lru_cache(maxsize=CACHED)
def _tres(text: str) -> Mapping[str, str]:
    return MappingProxyType(dict(part.split("=", 1) for part in _given(text).split(",") if part))


_MARKS = {
    **{"~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWER_DOWN", "%": "POWERING_DOWN", "$": "MAINT", "-": "PLANNED"},
    **{"@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "*": "NOT_RESPONDING"},
}
"""What sinfo puts behind a state where it prints no flag for it."""


def state_flags(text: str) -> frozenset[str]:
    """{"MIXED", "DRAIN", "NOT_RESPONDING"} for "mixed+drain*"."""
    state = text.rstrip("".join(_MARKS))
    return frozenset(state.upper().split("+")).union(_MARKS[mark] for mark in text[len(state) :])


def mib(text: str) -> float:
    """16384.0 for "16G"; a number alone is MiB. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory such as 16G")
    return float(match[1]) * _MIB[match[2]]


@lru_cache(maxsize=1 << 14)
def _same(text: str) -> str:
    """The same object for equal texts, so that what thousands of jobs share is in memory once."""
    return text


def _given(text: str) -> str:
    """The text; "" where Slurm says that there is none."""
    return "" if text in _ABSENT else text


def _count(text: str) -> int:
    return _whole(_given(text).split("-")[0] or "0")


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):  # int() would take 1_2 for 12
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _moment(text: str) -> float | None:
    return float(_whole(text)) if _given(text) else None


def with_nodes(jobs: Mapping[int, Job], nodes: Mapping[str, Node]) -> dict[int, Job]:
    """The jobs, completed by what their nodes say of their GPUs: how many on each, and of which type. An exclusive job
    holds all GPUs of its nodes, and --gpus=6 on two nodes may be 4 and 2; squeue has the total only. Limit: of two such
    jobs on the same nodes nothing is known but their totals."""
    unclear = [job for job in jobs.values() if _unclear(job)]
    found = {**jobs, **_cleared(jobs, nodes, unclear)} if unclear else jobs
    return {job_id: _with_type(job, nodes) for job_id, job in found.items()}


def _unclear(job: Job) -> bool:
    asked = job.asked_per_node * len(job.nodes)
    return bool(job.nodes) and (job.exclusive or (len(job.nodes) > 1 and job.gpus != asked))


def _cleared(jobs: Mapping[int, Job], nodes: Mapping[str, Node], unclear: list[Job]) -> dict[int, Job]:
    used = {name: node.gpus_used for name, node in nodes.items()}
    ids = {job.job_id for job in unclear}
    for job in jobs.values():
        if job.job_id not in ids:
            for name in job.nodes:
                used[name] = used.get(name, 0) - job.gpus_per_node
    found = {}
    for job in unclear:
        shares = [used.get(name, 0) for name in job.nodes]
        whole = all(name in nodes and used[name] == nodes[name].gpus for name in job.nodes)
        if sum(shares) == job.gpus or (job.exclusive and whole):
            each = shares[0] if len(set(shares)) == 1 else 0
            found[job.job_id] = replace(job, gpus=sum(shares), gpus_per_node=each)
            used.update(dict.fromkeys(job.nodes, 0))
    return found


def _with_type(job: Job, nodes: Mapping[str, Node]) -> Job:
    """The type is not in Slurm's accounting at every site."""
    if job.gpu_type or not job.gpus or not job.nodes:
        return job
    types = {nodes[name].gpu_type if name in nodes else "" for name in job.nodes}
    return replace(job, gpu_type=types.pop()) if len(types) == 1 else job
