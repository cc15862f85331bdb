"""An average of a model's weights that is cut up over ranks as the model is.

Each rank averages the parts that it holds. After a resize, or from a checkpoint, it gets whole tensors, of which it
takes its parts with the next update. Limit: parameters only, as torch's AveragedModel without use_buffers.
"""

from typing import Any

import torch
from torch import nn

from ..world.mesh import DTensor, cuts_of, local_of
from ..world.resharding import box_of
from .strategy import is_part


class Average:
    """See the module. For job.keep(); `weights` holds the average by the names of the model's parameters. Of a model on
    the meta device it begins with the first update."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float) -> None:
        """Take in the model's weights as they are: what is left of the average is this share of it."""
        for name, parameter in model.named_parameters():
            average = self.weights[name]
            if average.is_meta:
                self.weights[name] = parameter.detach().clone()
                continue
            if is_part(average) != is_part(parameter) or average.device != parameter.device:
                average = self.weights[name] = _laid_out_as(parameter, average)
            local_of(average).lerp_(local_of(parameter), 1.0 - decay)

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in self.weights.items() if not value.is_meta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over an average."""
        self.weights.update({name: value.detach().clone() for name, value in state.items()})


def _laid_out_as(parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """A whole tensor where the parameter is: of a sharded one, this rank's part."""
    if not isinstance(parameter, DTensor):
        return whole.to(parameter.device)
    for along, (first, end) in enumerate(box_of(whole.shape, cuts_of(parameter))):
        whole = whole.narrow(along, first, end - first)
    part = torch.empty_like(local_of(parameter)).copy_(whole)
    layout: dict[str, Any] = {"shape": parameter.shape, "stride": parameter.stride(), "run_check": False}
    cut: torch.Tensor = DTensor.from_local(part, parameter.device_mesh, parameter.placements, **layout)
    return cut
