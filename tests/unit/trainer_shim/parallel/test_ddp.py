"""A replica that goes on where its step has no room."""

from __future__ import annotations

import torch
from torch import nn

from slurm_elastic.trainer_shim.parallel.ddp import Replicated


class Full(nn.Module):
    """Takes no memory for its results, or else fails as a full GPU does."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if not x.is_meta:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return {"out": self.out(x)}


def test_the_rest_of_a_step_that_did_not_fit_takes_no_memory() -> None:
    """The model may be called again in it, with as many samples: that would not fit either."""
    model = Replicated(Full(), {})
    model.void = model.full = True
    found = model(torch.ones(5, 3))["out"]
    assert found.shape == (5, 2) and found.requires_grad and not found.any()
