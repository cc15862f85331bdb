"""Initial values of a model on the meta device: drawn module by module, of which a rank keeps what it holds.

Every rank draws each module's tensors whole, from a seed of that module's own, so the values are the same on any number
of ranks, and no rank ever has more than one module beside its parts. Limits: a module sets its own tensors only; what
its reset_parameters() does to those of its submodules is not seen.
"""

import copy
import inspect
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from slurm_elastic.protocol.errors import TrainingError

from ..data.sampling import mix
from ..world.mesh import cuts_of, local_of
from ..world.resharding import box_of

Init = Callable[[nn.Module], Any]
OF_VALUES = 7
"""What a seed is for, as its last counter."""


def check_init(given: Any) -> Init | None:
    """The script's own function that initialises one module. Raises TrainingError where it takes none."""
    if given is None:
        return None
    try:
        inspect.signature(given).bind(None)
    except (TypeError, ValueError):
        raise TrainingError(
            f"init={getattr(given, '__name__', given)} is not accepted; accepted: function(module), which sets the "
            "tensors of one module as model.apply(function) would"
        ) from None
    return given  # type: ignore[no-any-return]


def names_on_meta(module: nn.Module) -> set[str]:
    """Parameters and buffers without values, by their first names.

    Raises TrainingError for a tensor on the meta device that nobody can give values to.
    """
    found = {name for name, tensor in [*module.named_parameters(), *module.named_buffers()] if tensor.is_meta}
    for name, part in module.named_modules() if found else ():
        for attribute, value in vars(part).items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                raise TrainingError(
                    f"{'.'.join(filter(None, (name, attribute)))} is on the meta device and neither a parameter nor a "
                    "buffer, so that nothing gives it values; accepted: register_buffer(...)"
                )
    return found


def draw(
    blank: nn.Module, module: nn.Module, names: Collection[str], device: torch.device, seed: int, init: Init | None
) -> None:
    """Give these parameters and buffers of a module, of which this rank may hold parts, their initial values.

    blank: the whole module on the meta device. Raises TrainingError naming one that nothing has set.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
        # Wrappers, which have none of their own, do not count.
        parts = [(path, part) for path, part in blank.named_modules() if part._parameters or part._buffers]
        for number, (path, part) in enumerate(parts):
            prefix = f"{path}." if path else ""
            own = [key for key in [*part._parameters, *part._buffers] if prefix + key in names]
            if own:
                torch.manual_seed(mix(seed, number, OF_VALUES))
                _draw_one(part, module.get_submodule(path), own, prefix, device, init)


def _draw_one(
    part: nn.Module, target: nn.Module, own: list[str], prefix: str, device: torch.device, init: Init | None
) -> None:
    whole = _with_memory(part, device)
    before = {key: (value, value._version) for key in own for value in [getattr(whole, key)]}
    reset = getattr(whole, "reset_parameters", None) or getattr(whole, "_reset_parameters", None)
    if reset is not None:
        reset()
    if init is not None:
        init(whole)
    for key in own:
        value: torch.Tensor = getattr(whole, key).detach()
        if not _was_set(value, *before[key]):
            raise TrainingError(
                f"nothing sets {prefix}{key}, which was made on the meta device: {type(part).__name__} has no "
                "reset_parameters() that does; accepted: init=function(module), which is called for each module"
            )
        held = target._parameters.get(key, target._buffers.get(key))
        if held is None:
            raise AssertionError(f"{prefix}{key} is gone")
        for along, (first, end) in enumerate(box_of(value.shape, cuts_of(held))):
            value = value.narrow(along, first, end - first)
        local_of(held.detach()).copy_(value)


def _with_memory(part: nn.Module, device: torch.device) -> nn.Module:
    """The module with tensors of its own, marked as not set, and with its submodules as they are."""
    whole = copy.copy(part)

    def marked(tensor: torch.Tensor) -> torch.Tensor:
        return torch.full_like(tensor, torch.nan if _has_nan(tensor) else 0, device=device, requires_grad=False)

    whole._parameters = {
        key: value if value is None else nn.Parameter(marked(value), value.requires_grad)
        for key, value in part._parameters.items()
    }
    whole._buffers = {key: value if value is None else marked(value) for key, value in part._buffers.items()}
    return whole


def _was_set(value: torch.Tensor, marked: torch.Tensor, version: int) -> bool:
    if _has_nan(value):
        return not bool(value.isnan().any())
    return value is not marked or marked._version != version or bool(value.any())


def _has_nan(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
