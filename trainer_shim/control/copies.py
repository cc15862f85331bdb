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


def refusal(env: Mapping[str, str], what: str, instead: str) -> str:
    """Why this process is not to run, with what is accepted; "" if it is the only one. what: was started."""
    for launcher, size, _, besides in LAUNCHERS:
        count = env.get(size, "")
        if count.isdigit() and int(count) > 1 and (not besides or besides in env):
            return f"{launcher} has started {what} {count} times ({size}), and each would train everything; {instead}"
    return ""


def is_first(env: Mapping[str, str]) -> bool:
    """Whether this is the copy that speaks for all."""
    return all(env.get(rank, "0") == "0" for _, _, rank, besides in LAUNCHERS if not besides or besides in env)
