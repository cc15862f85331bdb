"""Arguments of calls to Slurm: checked before Slurm sees them, and those of `scontrol update` that give a waiting job
another size, computed from the job's record. Pure.

Slurm holds a job whose nodes, tasks, CPUs and GPUs contradict each other for ever (BadConstraints). So all of them are
set together.
"""

import re
from collections.abc import Sequence

from slurm_elastic.protocol.errors import SlurmRefused, SlurmUnparsable
from slurm_elastic.protocol.gres import gres_gpus

from .model import Size
from .nodelist import is_node_name
from .parse import mib

_FIELD = re.compile(r"(?<!\S)([A-Za-z][A-Za-z/:]*)=(\S*)")
_RECORD = re.compile(r"(?m)^(?=JobId=\d+ )")


def record(text: str, job_id: int) -> dict[str, str]:
    """The fields of one job in what `scontrol -o show job` prints. SlurmUnparsable when the job is not in it."""
    # A record is one line, but for line breaks in the comment, which stands before what was asked for.
    whole = next((part for part in _RECORD.split(text) if part.startswith(f"JobId={job_id} ")), "")
    found: dict[str, str] = {}
    for key, value in _FIELD.findall(whole):
        found.setdefault(key, value)  # what the user wrote comes after most of Slurm's fields
    if not found:
        raise SlurmUnparsable(f"scontrol shows no job {job_id}: {text.strip()[:80]!r}.")
    return found


def size_words(fields: dict[str, str], size: Size, *, keep_tasks: bool = False) -> list[str]:
    """NumNodes=, NumTasks=, … for this size. A node's CPUs and memory stay in proportion to its GPUs, where the size
    does not say them.

    keep_tasks: leave the tasks per node as they were submitted, which only Slurm's operators may change (TasksPerNode);
    a node may then hold more CPUs than its share.
    SlurmRefused: the job asked for its GPUs otherwise than per node, or for generic resources beside them.
    """
    kind, before = _asked(fields)
    tasks, cpus = _tasks_per_node(fields), _first(fields, "CPUs/Task")
    each, share = tasks, size.gpus_per_node / before
    if size.tasks_per_node:
        each, cpus = tasks if keep_tasks else size.tasks_per_node, size.cpus_per_task
    elif tasks == before and tasks > 1 and not keep_tasks:
        each = size.gpus_per_node  # a task for each GPU
    else:
        cpus = max(1, round(cpus * share))
    words = [f"TasksPerNode={each}"] if _tasks_given(fields) and each != tasks else []
    words += [
        f"NumNodes={size.nodes}-{size.nodes}",
        f"NumTasks={size.nodes * each}",
        f"NumCPUs={size.nodes * each * cpus}",
        f"CpusPerTask={cpus}",
        f"MinCPUsNode={each * cpus}",
        f"Gres=gpu:{kind}{size.gpus_per_node}",
    ]
    if size.anywhere:
        words.append("ReqNodeList=")
    memory = _memory(fields)
    if memory and (share != 1 or size.mem_mb):
        words.append(f"MinMemoryNode={size.mem_mb or max(1, round(memory * share))}")
    return words


def asked_size(fields: dict[str, str]) -> Size:
    """What the job asks for, whole. SlurmRefused as in `size_words`."""
    _, gpus = _asked(fields)
    tasks, cpus = _tasks_per_node(fields), _first(fields, "CPUs/Task")
    return Size(
        _first(fields, "NumNodes"), gpus, tasks_per_node=tasks, cpus_per_task=cpus, mem_mb=round(_memory(fields))
    )


def _tasks_per_node(fields: dict[str, str]) -> int:
    return max(1, -(-_first(fields, "NumTasks") // _first(fields, "NumNodes")))


def _memory(fields: dict[str, str]) -> float:
    """MiB on each node; 0: not asked for so."""
    memory = fields.get("MinMemoryNode", "0")
    try:
        return mib(memory) if memory not in ("", "0") else 0.0
    except ValueError as error:
        raise SlurmUnparsable(f"MinMemoryNode of job {fields.get('JobId')}: {error}.") from None


def _asked(fields: dict[str, str]) -> tuple[str, int]:
    """(type with its colon, GPUs per node) as submitted: Slurm refuses a type where there was none, and the reverse."""
    asked = fields.get("TresPerNode", "")
    try:
        gpus = {} if "," in asked else gres_gpus(asked)  # one kind, and nothing beside it
    except ValueError:
        gpus = {}
    # Newer Slurm shows --cpus-per-task as TresPerTask=cpu=N too.
    others = [fields.get(name, "") for name in ("TresPerJob", "TresPerTask", "TresPerSocket")]
    elsewhere = [given for given in others if "gres" in given]
    if not gpus or elsewhere:
        given = asked or (elsewhere or ["no GPUs"])[0]
        raise SlurmRefused(
            f"job {fields.get('JobId')} asks for {given}: its size can be changed in the queue only when it was "
            "submitted with --gpus-per-node=N or --gres=gpu:N."
        )
    [(kind, count)] = gpus.items()
    return (f"{kind}:" if kind else ""), count


def _tasks_given(fields: dict[str, str]) -> bool:
    return fields.get("NtasksPerN:B:S:C", "0").split(":")[0] not in ("", "0")


def _first(fields: dict[str, str], name: str) -> int:
    """The whole number at the beginning: 4 for 4-4, 1 for N/A."""
    match = re.match(r"\d+", fields.get(name, ""))
    return max(1, int(match.group())) if match else 1


_NAME = re.compile(r"[\w.@+-]*", re.ASCII)


def job_number(job_id: int) -> int:
    """A possible job id."""
    if isinstance(job_id, bool) or not isinstance(job_id, int) or not 0 < job_id < 2**32:
        raise SlurmRefused(f"job_id={job_id!r}: accepted are whole numbers from 1.")
    return job_id


def node_names(nodes: Sequence[str], what: str) -> list[str]:
    """Names of one or more single nodes."""
    strange = next((name for name in nodes if not is_node_name(name)), None)
    if not nodes or strange is not None:
        raise SlurmRefused(f"nodes={strange!r} of {what}: accepted are the names of one or more single nodes.")
    return list(nodes)


def plain_name(text: str) -> str:
    """A user's or a reservation's name; "" too."""
    if _NAME.fullmatch(text) is None:
        raise SlurmRefused(f"name={text[:60]!r}: accepted are letters, digits and . _ @ + -")
    return text
