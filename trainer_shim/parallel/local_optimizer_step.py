"""Optimizer steps on the memory that this rank holds, for parameters that are cut up and rules that work by element.

Given parts of tensors, torch works out for each operation of a rule how its result is laid out: 1 to 2 ms each in the
first step of a world, and much of a small model's step in every later one. A rule that works element by element gives
the same bits on the parts alone. After the step the optimizer's parameters and state are parts of tensors again.
"""

from collections import defaultdict
from typing import Any

import torch

from ..world.mesh import DTensor, local_of

RULES = frozenset(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "ASGD", "Rprop")
)
"""These classes themselves: what is derived from one may look at whole tensors."""


def step(optimizer: torch.optim.Optimizer) -> None:
    """optimizer.step(), on this rank's parts where that gives the same."""
    groups, state = optimizer.param_groups, optimizer.state
    if not _alike(optimizer):
        optimizer.step()
        return
    whole = [group["params"] for group in groups]
    parts = [[_part(parameter) for parameter in params] for params in whole]
    pairs = [pair for ours, theirs in zip(whole, parts, strict=True) for pair in zip(ours, theirs, strict=True)]
    local: defaultdict[torch.Tensor, Any] = defaultdict(dict)
    for parameter, part in pairs:
        if parameter in state:
            local[part] = {key: local_of(value) for key, value in state[parameter].items()}
    try:
        optimizer.state = local
        for group, params in zip(groups, parts, strict=True):
            group["params"] = params
        optimizer.step()
    finally:
        optimizer.state = state
        for group, params in zip(groups, whole, strict=True):
            group["params"] = params
        for parameter, part in pairs:
            if part in local:
                _take_back(parameter, local[part], state[parameter])


def _alike(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the rule is one by element, no hook looks at its parameters, and all that goes with one is cut alike."""
    hooks = [getattr(optimizer, f"_optimizer_step_{when}_hooks", None) for when in ("pre", "post")]
    if type(optimizer) not in RULES or any(hooks):
        return False
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(parameter, DTensor) and not _cut_alike(parameter, optimizer.state.get(parameter, {})):
                return False
    return True


def _cut_alike(parameter: DTensor, state: dict[str, Any]) -> bool:
    if parameter.dim() == 0:
        return False  # only the shape distinguishes its state from a counter
    cuts, mesh = parameter.placements, parameter.device_mesh
    others = [parameter.grad, *state.values()]
    return all(
        not isinstance(other, torch.Tensor) or other.dim() == 0
        if not isinstance(other, DTensor)
        else other.placements == cuts and other.device_mesh is mesh
        for other in others
    )


def _part(parameter: torch.Tensor) -> torch.Tensor:
    """What stands in for a parameter in a step: the memory of its part, with its gradient's."""
    if not isinstance(parameter, DTensor):
        return parameter
    part = local_of(parameter).detach()
    if parameter.grad is not None:
        part.grad = local_of(parameter.grad)
    return part


def _take_back(parameter: torch.Tensor, local: dict[str, Any], state: dict[str, Any]) -> None:
    """What the step has left in the state of a parameter's part, into the parameter's own."""
    for key, value in local.items():
        before = state.get(key)
        if value is before or (isinstance(before, DTensor) and local_of(before) is value):
            continue
        if isinstance(parameter, DTensor) and isinstance(value, torch.Tensor) and value.dim() > 0:
            value = DTensor.from_local(
                value,
                parameter.device_mesh,
                parameter.placements,
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
        state[key] = value
