"""What a script that is as it was under torchrun is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from slurm_elastic.trainer_shim.node.worker_process import hint

HERE = Path(__file__).name


def says(run: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:
        run()
    return hint(caught.value)


def no_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize(
    ("run", "call", "instead"),
    [
        (lambda: dist.barrier(), "barrier()", "leave it out"),
        (lambda: dist.broadcast(torch.ones(1), 0), "broadcast()", "leave it out"),
        (lambda: DistributedDataParallel(torch.nn.Linear(1, 1)), "DistributedDataParallel()", "job.wrap("),
        (lambda: DistributedSampler([1, 2]), "DistributedSampler()", "job.loader(dataset)"),
        (lambda: DistributedSampler([1, 2], 0, -1), "job.rank is -1 before the loop", "job.loader(dataset)"),
        (lambda: dist.init_process_group("gloo"), "init_process_group()", "the job makes the process groups"),
        (lambda: os.environ["LOCAL_RANK"], "LOCAL_RANK, which torchrun sets", "job.device, or SELASTIC_DEVICES=node"),
        (lambda: int(os.environ["SLURM_PROCID"]), "SLURM_PROCID, which srun sets", "job.rank"),
        (lambda: no_memory(), "ran out of the GPU's memory", "join(micro_batch=...)"),
    ],
)
def test_what_a_script_has_to_write_instead_is_named(run: Callable[[], object], call: str, instead: str) -> None:
    """The call, its line, and what takes its place."""
    said = says(run)
    assert said.startswith(f"{HERE} line ") and call in said and instead in said.partition("accepted: ")[2], said


def test_other_errors_speak_for_themselves() -> None:
    """Nothing is added to them."""
    assert says(lambda: {}["rank"]) == "" and says(lambda: 1 // 0) == ""
    assert says(lambda: os.environ["MY_RANK"]) == ""
