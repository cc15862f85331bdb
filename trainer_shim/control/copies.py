"""How many times a launcher in front of this process (srun, mpirun, torchrun) has started it. Pure.

Each copy would train everything, so more than one is refused. Limit: a launcher that tells its processes nothing is
not seen here; under `selastic run` the lease on the job directory (supervisor/lease.py) stops all copies but one.
"""

from __future__ import annotations

from collections.abc import Mapping

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
    for launcher, size, rank, besides in LAUNCHERS:
        if launcher == "srun" and "SLURM_PTY_PORT" in env and env.get(rank) == "0":
            continue  # of `srun --pty bash` on many nodes somebody uses the first
        count = env.get(size, "")
        if count.isdigit() and int(count) > 1 and (not besides or besides in env):
            return f"{launcher} has started {what} {count} times ({size}), and each would train everything; {instead}"
    return ""


def is_first(env: Mapping[str, str]) -> bool:
    """Whether this is the copy that speaks for all."""
    return all(env.get(rank, "0") == "0" for _, _, rank, besides in LAUNCHERS if not besides or besides in env)
