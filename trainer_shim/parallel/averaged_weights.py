"""An average of a model's weights that is cut up over ranks as the model is.

Each rank averages the parts that it holds. After a resize, or from a checkpoint, it gets whole tensors, of which it
takes its parts with the next update. Limit: parameters only, as torch's AveragedModel without use_buffers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .strategy import is_part


class Average:
    """See the module. For job.keep(); `weights` holds the average by the names of the model's parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float) -> None:
        """Take in the model's weights as they are: what is left of the average is this share of it."""
        for name, parameter in model.named_parameters():
            average = self.weights[name]
            if not is_part(parameter):
                average = self.weights[name] = average.to(parameter.device)
                average.lerp_(parameter, 1.0 - decay)
                continue
            if not is_part(average):
                average = self.weights[name] = _cut_as(parameter, average)
            average._local_tensor.lerp_(parameter._local_tensor, 1.0 - decay)  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        return dict(self.weights)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over an average."""
        self.weights = {name: value.detach().clone() for name, value in state.items()}


def _cut_as(parameter: Any, whole: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole tensor, where it has that of the parameter."""
    from ..world.mesh import DTensor, cuts_of, local_of
    from ..world.resharding import box_of

    for along, (first, end) in enumerate(box_of(whole.shape, cuts_of(parameter))):
        whole = whole.narrow(along, first, end - first)
    part = torch.empty_like(local_of(parameter)).copy_(whole)
    layout = {"shape": parameter.shape, "stride": parameter.stride(), "run_check": False}
    cut: torch.Tensor = DTensor.from_local(part, parameter.device_mesh, parameter.placements, **layout)
    return cut
