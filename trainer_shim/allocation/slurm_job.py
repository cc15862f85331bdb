"""What a Slurm job holds, read from `scontrol -d -o show job`. Pure: text in, values out.

The environment of a batch script is not believed: after a resize it is stale, Slurm's own record is not.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from slurm_elastic.protocol.errors import SlurmUnparsable
from slurm_elastic.protocol.gres import gres_gpus
from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.text.times import duration_s

_HOLDING = re.compile(r"(?<!\S)Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+)\S* GRES=(\S*)")

Expand = Callable[[str], tuple[str, ...]]
"""Slurm's host list expression -> host names."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """The part of a job's record that launching needs. `nodes` has the batch host first."""

    job_id: int
    state: str
    nodes: tuple[str, ...]
    gpus: tuple[int, ...]
    """GPUs on each of `nodes`."""
    gpu_type: str
    cpus_per_node: int
    one_thread_per_core: bool
    """It was submitted with --hint=nomultithread or --threads-per-core=1."""
    partition: str
    account: str
    work_dir: str
    component: tuple[int, int] | None
    """The place of this job in a heterogeneous one: (leader's job id, number of this component)."""
    wckey: str
    exclusive: bool
    """The job has its nodes for itself."""
    for_its_user: bool
    """It shares them with jobs of its user alone."""
    end_time: str
    """As Slurm writes it; "Unknown" without a limit."""
    comment: str = ""
    name: str = ""
    submitted: str = ""
    """When it was submitted, or last put back into the queue, as Slurm writes it."""
    restarts: int = 0
    """How often it was put back."""
    features: str = ""
    """The features that --constraint asked for."""
    excluded: str = ""
    """The nodes that --exclude named."""
    minutes: int | None = None
    """Its time limit; None: it has none."""

    def piece(self, kind: str, workers: int = 0) -> Piece:
        """As a piece; `workers` per node takes the place of GPUs where the job has none.

        Raises ValueError with one sentence when its nodes do not all have the same number of GPUs.
        """
        if len(set(self.gpus)) > 1:
            shares = ", ".join(f"{node}: {count}" for node, count in zip(self.nodes, self.gpus, strict=True))
            raise ValueError(f"job {self.job_id} has unequal GPUs per node ({shares}); accepted: --gpus-per-node")
        return Piece(self.job_id, kind, self.nodes, self.gpus[0] or max(workers, 1), self.gpu_type)


_COMMENT = re.compile(r"(?<!\S)Comment=(.*?)(?=\s+[A-Z][A-Za-z/:]*=|\s*$)")
"""A comment may hold spaces, and so may a directory; the next KEY= ends it."""
_WORK_DIR = re.compile(_COMMENT.pattern.replace("Comment", "WorkDir"))


def parse_job(text: str, job_id: int, expand: Expand) -> SlurmJob:
    """Read this job's line; for the leader of a heterogeneous job Slurm shows one for each component.

    Raises SlurmUnparsable when it shows no nodes for the job.
    """
    text = next((line for line in text.splitlines() if line.startswith(f"JobId={job_id} ")), "")
    fields = dict(re.findall(r"(?<!\S)([A-Za-z][A-Za-z/:]*)=(\S*)", text))
    holdings = _HOLDING.findall(text)
    if not holdings:
        raise SlurmUnparsable(f"scontrol shows no nodes of job {job_id} ({text.strip()[:200] or 'no such job'})")
    gpus: dict[str, int] = {}
    cpus: list[int] = []
    kind = ""
    for names, cpu_ids, _, gres in holdings:
        try:
            found = gres_gpus(gres)
        except ValueError as error:
            raise SlurmUnparsable(f"GRES of job {job_id}: {error}") from None
        kind = kind or next((name for name in found if name), "")
        cpus.append(_count(cpu_ids))
        for node in expand(names):
            gpus[node] = gpus.get(node, 0) + sum(found.values())
    first = fields.get("BatchHost", "")
    nodes = tuple(sorted(gpus, key=lambda node: node != first))
    limit = fields.get("TimeLimit", "")
    return SlurmJob(
        job_id=job_id,
        state=fields.get("JobState", ""),
        nodes=nodes,
        gpus=tuple(gpus[node] for node in nodes),
        gpu_type=kind,
        cpus_per_node=min(cpus),
        one_thread_per_core=fields.get("ReqB:S:C:T", "").endswith(":1"),
        partition=_known(fields.get("Partition", "")),
        account=_known(fields.get("Account", "")),
        component=(int(fields["HetJobId"]), int(fields["HetJobOffset"])) if "HetJobId" in fields else None,
        work_dir=work_dir.group(1) if (work_dir := _WORK_DIR.search(text)) else "",
        wckey=_known(fields.get("WCKey", "").removeprefix("*")),
        # From 26.05 on OverSubscribe is NO for jobs that share nodes as well.
        exclusive=fields["Exclusive"] == "NODE" if "Exclusive" in fields else fields.get("OverSubscribe") == "NO",
        for_its_user="USER" in (fields.get("OverSubscribe"), fields.get("Exclusive")),
        end_time=fields.get("EndTime", "Unknown"),
        name=fields.get("JobName", ""),
        submitted=fields.get("SubmitTime", ""),
        restarts=int(fields.get("Restarts") or 0),
        features=_known(fields.get("Features", "")),
        minutes=duration_s(limit) // 60 if limit[:1].isdigit() else None,
        excluded=_known(fields.get("ExcNodeList", "")),
        comment=comment.group(1) if (comment := _COMMENT.search(text)) else "",
    )


def component_ids(env: dict[str, str]) -> tuple[int, ...]:
    """Slurm job ids of the batch job, its heterogeneous components included; the leader first."""
    leader = int(env["SLURM_JOB_ID"])
    size = int(env.get("SLURM_HET_SIZE", "0") or 0)
    ids = [int(env.get(f"SLURM_JOB_ID_HET_GROUP_{index}", leader + index)) for index in range(size)]
    return tuple(ids) if ids and ids[0] == leader else (leader,)  # not those of a job in which this one was asked for


def _count(ids: str) -> int:
    """How many numbers "0-3,8" stands for."""
    total = 0
    for part in ids.split(","):
        low, _, high = part.partition("-")
        total += int(high or low) - int(low) + 1
    return total


def _known(value: str) -> str:
    return "" if value in ("(null)", "N/A", "None") else value
