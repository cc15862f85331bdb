"""What join() and wrap() were given: which strategy and reduction are meant, and whether they go together."""

import sys
from typing import Any, NamedTuple

import torch
from torch import nn

from slurm_elastic.protocol.errors import TrainingError

from ..world.layout import Layout
from .ddp import Replicated
from .deterministic import Deterministic
from .reduction.adasum import Adasum
from .reduction.base import ByBucket
from .reduction.fixed_order import FixedOrder
from .reduction.mean import Mean
from .strategy import Strategy

REDUCTIONS: dict[str, type[ByBucket]] = {"mean": Mean, "adasum": Adasum}
"""What join(combine=...) may say."""
SHARES = ("equal", "speed")
"""What join(shares=...) may say."""
FIXED_ORDER = "fixed order"
"""What join(deterministic=...) stands for."""
DDP, FSDP = "job.wrap(strategy='ddp')", "job.wrap(strategy='fsdp')"
ANY = sys.maxsize
"""As many axes as a layout has."""


class Row(NamedTuple):
    reduction: str
    call: str
    """How the model is spread over the ranks."""
    axes: int = 0
    """The most along which ranks may hold a replica together, join(unit=...)."""
    shares: tuple[str, ...] = ("equal",)
    """How a step may be shared out."""


TOGETHER = (
    Row("mean", DDP, axes=ANY, shares=SHARES),
    Row("mean", FSDP, axes=1, shares=SHARES),
    Row("mean", "job.replicate()", shares=SHARES),
    Row("mean", "job.shard()", shares=SHARES),
    Row(FIXED_ORDER, DDP),
    Row("adasum", DDP),
)
"""Nothing else does."""


def check_has_values(call: str, module: nn.Module) -> None:
    """Raise TrainingError for a model on the meta device, where every rank needs the whole of it."""
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            raise TrainingError(
                f"{call} was given a model whose parameter {name} is on the meta device; accepted: strategy='fsdp', "
                "or a model whose parameters have their values, e.g. by model.to_empty(device=job.device) and its own "
                "initialization"
            )


def check_cuts(call: str, instead: str, module: nn.Module, device: torch.device) -> None:
    """Raise TrainingError where this torch's fully_shard cannot compute with the model."""
    from ..world.mesh import CUTS_ON_CPUS

    kinds = {(device if parameter.is_meta else parameter.device).type for parameter in module.parameters()}
    if kinds <= {"cpu"} and not CUTS_ON_CPUS:
        raise TrainingError(
            f"{call} of a model on the CPU needs torch 2.8, and this is {torch.__version__}, whose fully_shard is "
            f"right on GPUs only; accepted here: {instead}, or a model on a GPU"
        )


def check_choice(combine: str, shares: object, shards: int, lr: str, asked: str | None) -> str:
    """The rule for the rate. asked: how gradients are combined, by the elastic request.

    Raises TrainingError for what join() does not accept.
    """
    for option, value, accepted in (("combine", combine, tuple(REDUCTIONS)), ("shares", shares, SHARES)):
        if value not in accepted:
            raise TrainingError(f"join({option}={value!r}) is not known; accepted: {', '.join(map(repr, accepted))}")
    others = [(shards, "deterministic=..."), (lr == "adascale", "lr='adascale'")]
    for given, option in others if combine != "mean" else ():
        if given:
            raise TrainingError(f"join({option}) does not go with combine={combine!r}; accepted: combine='mean'")
    if asked not in (None, combine):
        raise TrainingError(
            f"join(combine={combine!r}) does not fit the elastic request's combine={asked}; accepted: the same in both"
        )
    if not REDUCTIONS[combine].keeps_rate:
        return lr
    if lr not in ("auto", "none"):
        raise TrainingError(
            f"join(lr={lr!r}) does not go with combine={combine!r}, which leaves the rate as it is; accepted: lr='none'"
        )
    return "none"


def check_layers(combine: str, module: nn.Module) -> None:
    """Raise TrainingError for parameters that no dot product is taken of."""
    found = [(name, "sparse gradients") for name, part in module.named_modules() if getattr(part, "sparse", False)]
    found += [(name, "complex numbers") for name, entry in module.named_parameters() if entry.is_complex()]
    for name, what in found:
        raise TrainingError(f"join(combine={combine!r}) does not go with '{name}', of {what}; accepted: combine='mean'")


def check_together(combine: str, shards: int, layout: Layout, shares: str, call: str) -> None:
    """Raise TrainingError where TOGETHER has no such row. shards: of a deterministic step, or 0."""
    name, axes = FIXED_ORDER if shards else combine, len(layout.axes)
    rows = [row for row in TOGETHER if row.reduction == name and row.axes >= axes and shares in row.shares]
    calls = [row.call for row in rows]
    if call not in calls:
        asked = {"deterministic": shards, "combine": combine != "mean", "unit": axes, "shares": shares != "equal"}
        options = ", ".join(f"{option}=..." for option, given in asked.items() if given)
        accepted = " or ".join(calls) or "one of them"
        raise TrainingError(f"join({options}) does not go with {call}; accepted: {accepted}")


def strategy_of(
    name: str,
    module: nn.Module,
    optimizers: list[Any],
    options: dict[str, Any],
    layout: Layout,
    combine: str,
    shards: int,
    shares: str,
    device: torch.device,
) -> Strategy:
    """The strategy of that name. combine, shards: how gradients are combined, from join(). device: where this worker
    computes.

    Raises TrainingError for an unknown one, and for what does not go together.
    """
    if name not in ("ddp", "fsdp"):
        raise TrainingError(f"job.wrap(strategy={name!r}) is not known; accepted: 'ddp', 'fsdp'")
    check_together(combine, shards, layout, shares, DDP if name == "ddp" else FSDP)
    if shards:
        return Deterministic(module, options, FixedOrder(shards))
    reduction = REDUCTIONS[combine]()
    if name == "ddp" and not layout.axes and "parallelize" not in options:
        check_has_values("job.wrap(strategy='ddp')", module)
        if reduction.keeps_rate:
            check_layers(combine, module)
        reduction.use(optimizers)
        return Replicated(module, options, reduction)
    from .fsdp import Sharded

    if name == "fsdp":
        check_cuts("job.wrap(strategy='fsdp')", "strategy='ddp'", module, device)
    return Sharded(module, optimizers, options, name == "fsdp", layout, device)
