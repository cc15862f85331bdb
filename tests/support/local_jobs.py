"""Jobs of one process, as a script makes them: what the tests of the shim's API share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.protocol.errors import TrainingError

_GENERATOR = torch.Generator().manual_seed(1)
DATA = TensorDataset(torch.randn(20, 3, generator=_GENERATOR), torch.randn(20, 1, generator=_GENERATOR))


def wrapped(made: list[elastic.Job], scheduler: bool = False, **options: Any) -> tuple[elastic.Job, Any, Any]:
    job = elastic.join(**{"batch": 8, **options})
    made.append(job)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, job.steps(2, 20)) if scheduler else None
    return job, job.wrap(model, optimizer, schedule), optimizer


def loss_of(net: Any, batch: Any) -> torch.Tensor:
    x, y = batch
    loss: torch.Tensor = ((net(x) - y) ** 2).mean()
    return loss


def refused(named: str) -> Any:
    return pytest.raises(TrainingError, match=named)
