"""What stands in front of `selastic run`, or of a script: each trains once, or is refused in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.control import copies
from slurm_elastic.trainer_shim.world.rendezvous import Membership

BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
STEP = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}
TORCH = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n1"}
FRONT = [
    ("srun", STEP),
    ("srun", {**STEP, "SLURM_STEP_NUM_NODES": "2", "PMI_RANK": "1", "PMI_SIZE": "2"}),
    ("srun", {**STEP, "PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.7.0"}),
    ("srun", {**STEP, "SLURM_PTY_PORT": "37223"}),
    ("mpirun", {**BATCH, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}),
    ("mpirun", {**STEP, "SLURM_PROCID": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}),
    ("mpirun", {"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "1"}),
    ("mpiexec", {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}),
    ("torchrun", {**BATCH, **TORCH, "TORCHELASTIC_RUN_ID": "none"}),
    ("deepspeed", {**TORCH, "CROSS_RANK": "0", "CROSS_SIZE": "1", "LOCAL_SIZE": "2"}),
    ("horovodrun", {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}),
    ("jsrun", {"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2"}),
    ("flux run", {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2"}),
]
ALONE = {
    "a batch script": BATCH,
    "a batch script that prepares for torch": {**BATCH, **TORCH, "RANK": "0", "LOCAL_RANK": "0"},
    "srun of one task": {**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
    "srun -N2 --pty bash": {**STEP, "SLURM_PROCID": "0", "SLURM_PTY_PORT": "37223"},
    "torchrun of one process": {**TORCH, "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"},
    "mpirun -np 1": {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
    "a shell": {},
}


@pytest.mark.parametrize(("launcher", "env"), FRONT, ids=[f"{n} {name}" for n, (name, _) in enumerate(FRONT)])
def test_copies_are_refused_and_one_says_so(launcher: str, env: dict[str, str]) -> None:
    """The second copy is silent, the first one names what has started both."""
    said = copies.refusal(env, "selastic run", "accepted: selastic run alone")
    assert said.startswith(f"{launcher} has started selastic run 2 times ("), said
    assert not copies.is_first(env)
    ranks = {rank for _, _, rank, _ in copies.LAUNCHERS}
    assert copies.is_first({name: "0" if name in ranks else value for name, value in env.items()})


@pytest.mark.parametrize("env", ALONE.values(), ids=ALONE.keys())
def test_who_was_started_once_trains(env: dict[str, str]) -> None:
    """Numbers of tasks that a batch script has, or exports for a loop of torch's kind, are no copies of it."""
    assert copies.refusal(env, "selastic run", "") == ""


@pytest.mark.parametrize(
    ("title", "env", "left"),
    [
        ("7.batch", {"SLURM_JOB_ID": "7"}, True),
        ("6.0", {"SLURM_JOB_ID": "7"}, True),
        ("7.0", {"SLURM_JOB_ID": "7"}, False),
        ("8.0", {"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2"}, False),
    ],
    ids=["batch script", "salloc", "step", "step of a component"],
)
def test_a_step_that_asked_for_the_job_is_not_its_own(
    tmp_path: Path, title: str, env: dict[str, str], left: bool
) -> None:
    """Of an sbatch or salloc from within a step the variables stay: whose this process is says Slurm's own above it."""
    parent = {os.getpid(): 5, 5: 4, 4: 1}
    for pid, above in parent.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) S {above} 1 1")
        (tmp_path / str(pid) / "cmdline").write_text(f"slurmstepd: [{title}]\0" if pid == 4 else "bash\0job.sh\0")
    assert copies._has_left_step(env, tmp_path) is left
    assert not copies._has_left_step(env, tmp_path / "nothing to be seen")


def test_a_script_that_was_started_twice_without_a_world_is_refused() -> None:
    """`srun -n2 python train.py`: each task would be a world of one rank, and train everything."""
    with pytest.raises(TrainingError, match=r"srun has started this script 2 times \(SLURM_STEP_NUM_TASKS\)"):
        Membership(dict(STEP))
    alone = Membership(dict(BATCH)).world
    assert alone is not None and alone.size == 1


def test_a_process_that_a_worker_has_started_is_told_so() -> None:
    """torchrun, or multiprocessing.spawn, behind `selastic run`: it has the worker's environment, and not its key."""
    with pytest.raises(TrainingError, match=r"join\(\) was called in a process that a worker .* has started"):
        Membership({"SELASTIC_CONTROL": "127.0.0.1:9", "SELASTIC_WORKER": "0.n1.0"})


def test_what_names_a_task_is_no_workers() -> None:
    """It would be led into `init_distributed_mode`'s branch for srun; what names the job, and settings, stay."""
    front = [env for _, env in FRONT]
    ours = {"SLURM_JOB_ID", "SLURM_PTY_PORT", "MPI_LOCALNRANKS", "LOCAL_SIZE", "CROSS_RANK"}
    assert all(copies.of_a_task(name) for env in front for name in set(env) - ours)
    stay = (
        "SLURM_JOB_ID",
        "SLURM_JOB_NAME",
        "SLURM_ARRAY_TASK_ID",
        "SLURM_RESTART_COUNT",
        "SLURM_TMPDIR",
        "SLURM_CONF",
    )
    assert not any(map(copies.of_a_task, (*stay, "OMPI_MCA_btl", "MV2_USE_CUDA", "HOROVOD_FUSION_THRESHOLD")))
