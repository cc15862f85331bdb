"""The commands that a supervisor runs: agents by srun, companions by salloc or sbatch, and what Slurm is asked. Pure.

Every command runs in an environment without the batch job's SLURM_ variables: srun and salloc would otherwise take
their defaults from a job that has changed since, or is not the one meant.
"""

import re
import site
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_elastic.protocol.messages import Piece, Shape

from ..control import copies
from .slurm_job import Expand, SlurmJob

_SLURM = ("SLURM", "SBATCH", "SALLOC", "SRUN", "SQUEUE", "SCANCEL", "SCONTROL", "SPANK", "PMI", "PMIX")
_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
)
TAG = "selastic:companion-of="
"""Begins the comment of a companion."""
TIME_MIN = 5
"""Minutes for which a companion is worth having, unless its base has fewer left: it costs two resizes."""
Form = tuple[str, bool]
"""A way to ask for a companion: by salloc or sbatch, and whether its nodes are named."""
_SBATCH = ("sbatch", "--parsable", "--no-requeue", "--output=/dev/null", "--chdir=/")
_SLURMS_OWN = ("violates accounting", "node configuration", "odes required for job", "odes are busy", "node not avail")
STEP_S = 5
"""Seconds that srun waits for Slurm to create a step. Left to itself it waits for slurmctld's word, which a slurmctld
that was started again meanwhile does not owe it, and asks again only after SlurmctldTimeout."""
_LAUNCH = re.compile(r"Task launch for \S+ failed on node ([^\s:]+): (.+?)\s*$")
_NO_STEP = ("Unable to create step", "Unable to confirm allocation")
_FOR_NOW = ("busy", "prolog", "temporarily", "contact slurm controller", "timed out", "Zero Bytes")


def scrubbed(env: Mapping[str, str], in_slurm: bool = True) -> dict[str, str]:
    """The user's environment without what belongs to one Slurm job or one process group. SLURM_CONF stays."""
    drop = _DEVICES if in_slurm else ()
    prefixes = ("SELASTIC_", *(f"{word}_" for word in _SLURM))
    return {
        key: value
        for key, value in env.items()
        if key == "SLURM_CONF" or not (copies.of_a_task(key) or key in drop or key.startswith(prefixes))
    }


def python_path(env: Mapping[str, str]) -> str:
    """PYTHONPATH with which the agents find this very installation: unchanged when it is a normal one."""
    root = str(Path(__file__).parents[3])
    paths = [path for path in env.get("PYTHONPATH", "").split(":") if path]
    if root in {*paths, *site.getsitepackages(), site.getusersitepackages()}:
        return ":".join(paths)
    return ":".join([*paths, root])


def agent_command(arguments: Sequence[str], python: Sequence[str] = ()) -> list[str]:
    """An agent for `script args...`, by this python, with what stands before it; else by the one that runs now."""
    return [*(python or (sys.executable,)), "-m", "slurm_elastic.trainer_shim.node.agent", *arguments]


def srun(piece: Piece, job: SlurmJob, command: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """One agent per node of a piece. A task that ends, or is killed with its node, leaves the others running.

    options: the user's own; those below come after them, and count."""
    count = len(piece.nodes)
    target = [f"--jobid={piece.slurm_job_id}"]
    if job.component is not None:  # of a heterogeneous job, which is reached through its leader only
        leader, number = job.component
        target = [f"--jobid={leader}", f"--het-group={number}"]
    words = [
        "srun",
        *options,
        *target,
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--no-kill",
        "--overlap",
        f"--immediate={STEP_S}",
        "--mem=0",
        "--mpi=none",
        "--cpu-bind=none",
        "--input=none",
        "--unbuffered",
        "--job-name=selastic",
    ]
    if not job.one_thread_per_core:
        # Else Slurm counts all threads as held, and lets a step ask for one of each core; not asked, it gives all.
        words.append(f"--cpus-per-task={job.cpus_per_node}")
    if any(job.gpus):
        # Without the type: a step may only name one where the job itself was submitted with one.
        words.append(f"--gres=gpu:{piece.gpus_per_node}")
    if set(piece.nodes) != set(job.nodes):
        words.append(f"--nodelist={','.join(piece.nodes)}")
    return [*words, *command]


def worth_again(tail: Sequence[str]) -> bool:
    """Whether srun, by its last lines, ended because Slurm could not create the step just then."""
    return any(any(word in line for word in _NO_STEP) and any(word in line for word in _FOR_NOW) for line in tail[-2:])


def launch_failures(tail: Sequence[str]) -> list[tuple[str, str]]:
    """The nodes on which srun, by its last lines, could start nothing, each with the reason."""
    return [(found[1], found[2]) for line in tail if (found := _LAUNCH.search(line))]


def no_network(reason: str) -> bool:
    """Whether such a reason is that the node was not reached."""
    return any(word in reason.lower() for word in ("communication", "connect", "timed out", "no route"))


def unanswered(said: str) -> bool:
    """Whether a command, by what it said, had no answer of slurmctld."""
    return any(word in said for word in ("contact slurm controller", "timed out", "ero bytes"))


def forms(by: str, node_list: Sequence[str]) -> list[Form]:
    """Every way to ask for a companion, the best first: some sites refuse jobs without a script, or node lists."""
    ways = [by] if by else ["salloc", "sbatch"]
    return [(way, named) for named in ((True, False) if node_list else (False,)) for way in ways]


def of_the_site(refusal: str) -> bool:
    """Whether a rule of the site may have refused a companion, so that it may be had in another form: not one of
    Slurm's own limits, or nodes that are taken."""
    return not unanswered(refusal) and not any(words in refusal for words in _SLURMS_OWN)


def not_as_asked(
    job: SlurmJob, base_id: int, resize_id: int, shape: Shape, whole_nodes: bool, minutes: int | None
) -> str:
    """What a rule of the site has made of a companion of this shape and time, so that selasticd would not know it for
    one of that resize, or training would be larger than planned, or grow for less than it costs. Empty: nothing of the
    kind."""
    least = TIME_MIN if minutes is None else min(TIME_MIN, minutes)
    if job.minutes is not None and job.minutes < least:
        asked = f"{minutes or 'unlimited'} asked for; accepted: at least {least}, for less is not worth two resizes"
        return f"companion {job.job_id} was given {job.minutes} minutes of the {asked}"
    if not whole_nodes and (len(job.nodes) > shape.nodes or max(job.gpus) > shape.gpus_per_node > 0):
        held = f"companion {job.job_id} holds {sum(job.gpus)} GPUs on {','.join(job.nodes)}"
        return f"{held}; asked for: {shape.gpus_per_node} on each of {shape.nodes}"
    tag = f"{TAG}{base_id};resize={resize_id}"
    if job.name == f"selastic-{base_id}" and tag in job.comment:
        return ""
    found = f"has the name {job.name!r} and the comment {job.comment!r}"
    return f"companion {job.job_id} {found}; accepted: rules of the site that leave it selastic-{base_id} and {tag}"


def companion(shape: Shape, base: SlurmJob, resize_id: int, minutes: int | None, form: Form) -> list[str]:
    """Ask for a companion: an allocation that no process holds, or one that a script holds which does nothing.
    `minutes`: rest of the base's time; None: no limit."""
    words = [*(["salloc", "--no-shell"] if form[0] == "salloc" else _SBATCH)]
    words += [
        "--no-kill",  # a node that fails takes only itself
        f"--nodes={shape.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={max(1, shape.cpus_per_node)}",
        f"--job-name=selastic-{base.job_id}",
        f"--comment={TAG}{base.job_id};resize={resize_id}",
        "--nice=1000",
        f"--time={'UNLIMITED' if minutes is None else minutes}",
    ]
    if shape.gpus_per_node:
        kind = f"{shape.gpu_type}:" if shape.gpu_type else ""
        words.append(f"--gres=gpu:{kind}{shape.gpus_per_node}")
    if base.exclusive or base.for_its_user:
        words.append("--exclusive" if base.exclusive else "--exclusive=user")
    optional = {
        "partition": shape.partition or base.partition,
        "account": shape.account or base.account,
        "qos": shape.qos,
        "nodelist": ",".join(shape.node_list) if form[1] else "",
        "constraint": "" if form[1] else base.features,
        "exclude": "" if form[1] else base.excluded,
        "wckey": base.wckey,
        "mem": f"{shape.mem_mb_per_node}M" if shape.mem_mb_per_node else "",
    }
    words += [f"--{key}={value}" for key, value in optional.items() if value]
    return words if form[0] == "salloc" else [*words, "--wrap=exec sleep infinity"]


def list_waiting() -> list[str]:
    """Every job that waits: its id, the start and the nodes that Slurm plans for it, those it must get, its comment."""
    return ["squeue", "--noheader", "--all", "--states=PD", "--format=%i|%S|%Y|%n|%k"]


def shorter(listing: str, base: int, resize_id: int, expand: Expand) -> dict[int, str]:
    """Of such a listing: the companions of this resize that wait for nodes where another job is to start, and when the
    first of these does, as Slurm writes it."""
    rows = [line.split("|", 4) for line in listing.splitlines() if line.count("|") >= 4]
    ours = f"{TAG}{base};"
    others = sorted(
        (start, planned)
        for _, start, planned, _, comment in rows
        if start[:1].isdigit() and planned != "(null)" and not comment.startswith(ours)
    )
    found: dict[int, str] = {}
    for number, _, _, asked, comment in rows:
        if number.isdigit() and f"{comment};".startswith(f"{ours}resize={resize_id};"):
            nodes = set(expand(asked))
            first = next((start for start, planned in others if not nodes.isdisjoint(expand(planned))), "")
            found |= {int(number): first} if first else {}
    return found


def limit_time(job_id: int, minutes: int) -> list[str]:
    return ["scontrol", "update", f"JobId={job_id}", f"TimeLimit={minutes}"]


def show_job(job_id: int) -> list[str]:
    return ["scontrol", "--details", "--oneliner", "show", "job", str(job_id)]


def show_slurms_time() -> list[str]:
    """slurmctld's own time stands in its first lines. All else that tells a time left reckons by this host's clock."""
    return ["sdiag"]


def show_hostnames(expression: str) -> list[str]:
    return ["scontrol", "show", "hostnames", expression]


def scancel(job_ids: Sequence[int]) -> list[str]:
    return ["scancel", *map(str, job_ids)]


def list_own_jobs(user: str) -> list[str]:
    """Every job of this user that has not ended, with its comment: `id|comment` a line."""
    return ["squeue", "--noheader", f"--user={user}", "--states=PD,CF,R,S", "--format=%i|%k"]


def tagged(listing: str, base: int) -> list[int]:
    """Ids of the companions of `base` in such a listing."""
    found = []
    for line in listing.splitlines():
        job_id, _, text = line.strip().partition("|")
        if job_id.isdigit() and f"{TAG}{base};" in f"{text};":
            found.append(int(job_id))
    return found
