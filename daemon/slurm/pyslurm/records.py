"""From the objects of pyslurm 25.11 to Job, Node and Partition. Pure: attributes are read, nothing is asked of Slurm.

Promise: what CommandClient tells of a job or a node, from the same fields of slurmctld's answer.
Limit: GPUs are read from TRES, so the site's AccountingStorageTRES must name gres/gpu (`tracks_gpus` says whether); the
text of a dependency, by which nothing is decided, is left out.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from slurm_elastic.protocol.errors import SlurmUnparsable

from ..model import ACTIVE, Job, Node, Partition
from ..nodelist import expand
from ..parse import ends_at, state_flags

_NOTHING = frozenset({"", "None", "(null)", "N/A"})


def tracks_gpus(tres: Iterable[str]) -> bool:
    """Whether GPUs are among the site's AccountingStorageTRES: else no TRES says what a job holds of them."""
    return any(name.partition(":")[0] == "gres/gpu" for name in tres)


def job(source: Any, at: float) -> Job | None:
    """A pyslurm.Job, asked for at that time, as a Job; None for one that has ended: slurmctld tells of it for a while
    (MinJobAge)."""
    try:
        return _job(source, at) if source.state in ACTIVE or source.state == "PENDING" else None
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise SlurmUnparsable(f"job {source.id} from pyslurm: {error}.") from None


def _job(source: Any, at: float) -> Job:
    pending = source.state == "PENDING"
    held = () if pending else expand(source.allocated_nodes or "")
    num_nodes = len(held) or source.num_nodes or 0
    tres = source.requested_tres if pending else source.allocated_tres
    gpus, gpu_type = _gpus({name: found.count for name, found in tres.gres.items()} if tres else {})
    # pyslurm 25.11 cannot read its own tres_per_node ("gres/gpu:4" has no "="), but reads the older gres_per_node.
    asked = {name.removeprefix("gres/").removeprefix("gres:"): n for name, n in (source.gres_per_node or {}).items()}
    each, asked_type = _gpus(asked)
    start = None if pending or not source.start_time else float(source.start_time)
    limit = None if source.time_limit is None else source.time_limit * 60
    return Job(
        job_id=source.id,
        state=source.state,
        user=user_name(source.user_id),
        uid=source.user_id,
        name=source.name or "",
        comment=source.comment or "",
        account=source.account or "",
        partition=source.partition or "",
        qos=source.qos or "",
        reason=_text(source.state_reason),
        nodes=held,
        batch_host=source.batch_host if source.is_batch_job and source.batch_host in held else "",
        num_nodes=num_nodes,
        gpus=gpus,
        gpus_per_node=(0 if gpus % len(held) else gpus // len(held)) if held else each,
        asked_per_node=each,
        gpu_type=(gpu_type or asked_type) if gpus else "",
        cpus=source.cpus or 0,
        mem_mb=int(tres.mem.count / max(1, num_nodes)) if tres and tres.mem else 0,
        het_job_id=source.heterogeneous_id or 0,
        het_offset=source.heterogeneous_offset or 0,
        array_job_id=source.array_id or 0,
        array_task=_array_task(source),
        priority=source.priority or 0,
        features=",".join(source.constraints),
        required_nodes=expand(source.required_nodes or ""),
        reservation=source.reservation or "",
        exclusive=source.resource_sharing in ("NO", "EXCLUSIVE"),
        time_limit_s=limit,
        ends_at=ends_at(start, limit, None if limit is None else max(0, limit - (source.run_time or 0)), at),
        submit_time=float(source.submit_time or 0),
        start_time=start,
        eligible_time=float(source.eligible_time or 0),
        restarts=source.requeue_count or 0,
    )


def _array_task(source: Any) -> str:
    """ "3" for a task, "5-99%4" for those that wait. pyslurm takes task 0 for none: what tells an array is its id."""
    if not source.array_id:
        return ""
    waiting = source.array_tasks_waiting
    if waiting:
        return f"{waiting}%{source.array_tasks_parallel}" if source.array_tasks_parallel else str(waiting)
    return str(source.array_task_id or 0)


def node(source: Any) -> Node:
    """A pyslurm.Node as a Node."""
    try:
        present, gpu_type = _gpus(source.configured_gres)
        used, _ = _gpus(
            {n.removeprefix("gres/"): count for n, count in source.allocated_tres.items() if n.startswith("gres/")}
        )
        return Node(
            name=source.name,
            flags=state_flags(source.state),
            partitions=tuple(source.partitions),
            gpus=present,
            gpus_used=used,
            gpu_type=gpu_type,
            cpus=source.total_cpus,
            cpus_used=source.allocated_cpus,
            mem_mb=source.real_memory or 0,
            mem_alloc_mb=source.allocated_memory or 0,
            features=frozenset(source.available_features),
        )
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise SlurmUnparsable(f"node {source.name} from pyslurm: {error}.") from None


def partition(source: Any) -> Partition:
    """A pyslurm.Partition as a Partition."""
    return Partition(source.name, source.priority_tier or 0, (source.preempt_mode or "OFF").upper())


def _gpus(gres: Mapping[str, int]) -> tuple[int, str]:
    """(count, type) of {"gpu": 4, "gpu:a100": 4}: typed ones are counted under both names, or under the typed alone."""
    typed = {name.partition(":")[2]: count for name, count in gres.items() if name.startswith("gpu:")}
    total = gres.get("gpu", 0) or sum(typed.values())
    return total, next(iter(typed)) if len(typed) == 1 else ""


def user_name(uid: int) -> str:
    """The user's name, or the number where it has none here: looked for again each time, as a directory may be away."""
    try:
        return _known_name(uid)
    except KeyError:
        return str(uid)


@lru_cache(maxsize=10_000)
def _known_name(uid: int) -> str:
    return pwd.getpwuid(uid).pw_name


def _text(text: str | None) -> str:
    return "" if text is None or text in _NOTHING else text
