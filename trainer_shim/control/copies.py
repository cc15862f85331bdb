"""How many times a launcher in front of this process (srun, mpirun, torchrun) has started it.

Each copy would train everything, so more than one is refused. Limit: a launcher that tells its processes nothing is
not seen here; under `selastic run` the lease on the job directory (supervisor/lease.py) stops all copies but one.
"""

import os
from collections.abc import Mapping
from pathlib import Path

LAUNCHERS = (
    # its name, how many copies it has started, which of them this is, what else it sets
    ("torchrun", "WORLD_SIZE", "RANK", "TORCHELASTIC_RUN_ID"),
    ("deepspeed", "WORLD_SIZE", "RANK", "CROSS_SIZE"),
    ("horovodrun", "HOROVOD_SIZE", "HOROVOD_RANK", ""),
    ("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", ""),
    ("mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", ""),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", ""),
    ("mpiexec", "PMI_SIZE", "PMI_RANK", ""),
    ("jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", ""),
    ("flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", ""),
)
"""The innermost first: mpirun starts its own processes by srun. A batch script has none of this: Slurm counts the tasks
of a step in SLURM_STEP_NUM_TASKS, and scripts of torch's kind export WORLD_SIZE themselves."""

_WORLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASK")
_STEP = ("SLURM_STEP", "SLURM_SRUN_", "PMI_", "PMIX_", "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "TORCHELASTIC_")
_NAMES = {*_WORLD, *(name for _, size, rank, besides in LAUNCHERS for name in (size, rank, besides))}


def of_a_task(variable: str) -> bool:
    """Whether a launcher tells its processes by it which one of them they are: a worker is none of these, and a script
    that finds it makes a process group by it. What belongs to the whole job (SLURM_JOB_ID, _ARRAY_TASK_ID) is not."""
    return variable in _NAMES or variable.startswith(_TASK + _STEP)


def refusal(env: Mapping[str, str], what: str, instead: str) -> str:
    """Why this process is not to run, with what is accepted; "" if it is the only one. what: was started."""
    first_of_pty = "SLURM_PTY_PORT" in env and env.get("SLURM_PROCID") == "0"  # which somebody uses, on many nodes
    others = {env.get("SLURM_STEP_NUM_TASKS")} if first_of_pty or _has_left_step(env) else set()
    for launcher, size, _, besides in LAUNCHERS:
        count = env.get(size, "")
        if launcher in ("srun", "mpiexec") and count in others:
            continue
        if count.isdigit() and int(count) > 1 and (not besides or besides in env):
            return f"{launcher} has started {what} {count} times ({size}), and each would train everything; {instead}"
    return ""


def _has_left_step(env: Mapping[str, str], proc: Path = Path("/proc")) -> bool:
    """Whether this is a batch script, or the shell of an salloc, that was asked for within a step: it has that step's
    variables, and is none of its tasks. The next slurmstepd above says whose they are; unseen: theirs."""
    pid = os.getpid()
    try:
        while pid > 1:
            title = (proc / str(pid) / "cmdline").read_text(errors="replace").partition("\0")[0]
            if title.startswith("slurmstepd: ["):
                job, _, step = title.partition("[")[2].partition("]")[0].partition(".")
                return step == "batch" or ("SLURM_HET_SIZE" not in env and job != env.get("SLURM_JOB_ID", job))
            pid = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        pass
    return False


def is_first(env: Mapping[str, str]) -> bool:
    """Whether this is the copy that speaks for all."""
    return all(env.get(rank, "0") == "0" for _, _, rank, besides in LAUNCHERS if not besides or besides in env)
