"""A global batch over ranks and micro batches, and what another batch means for the learning rate.

Pure arithmetic: no torch, no I/O. The formulas say how a tuned rate is carried to another batch; none of them knows
whether the model will like it, which is why a script states its `max_batch`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.protocol.request import LR_RULES

SHARDS = 16
"""Of a deterministic step, where join() is given no number."""
SDE_MAX_ONE_MINUS_BETA = 0.999
"""k (1 - beta) has to stay below 1: beyond it the SDE rule has no Adam to describe."""


def slice_of(total: int, ranks: int, rank: int, each: int = 1) -> range:
    """Positions 0..total-1 that `rank` of `ranks` trains on; sizes differ by one at most, earlier ranks get more. each:
    sizes are multiples of it, as `total` is, and differ by it at most."""
    share, extra = divmod(total // each, ranks)
    start = rank * share + min(rank, extra)
    return range(start * each, (start + share + (rank < extra)) * each)


def step_of(batch: int, left: int) -> int:
    """Samples of the next step where `left` of a pass are: the batch, and never so that one sample would be left over,
    which batch normalisation refuses."""
    return batch - 1 if left == batch + 1 and batch > 2 else min(batch, left)


def micros_of(positions: range, micro_batch: int, least: int = 0, each: int = 1) -> list[range]:
    """Cut a slice into the fewest micro batches of at most `micro_batch`, of sizes that differ by one at most; into
    `least` at least, some of which may then be empty. each: as in slice_of; then `micro_batch` is a multiple, too."""
    count = max(-(-len(positions) // micro_batch), least)
    parts = [slice_of(len(positions), count, index, each) for index in range(count)]
    return [range(positions.start + part.start, positions.start + part.stop) for part in parts]


def loss_scale(micro: float, ranks: int, total: int) -> float:
    """Factor for the mean loss of a micro batch, so that the mean over ranks of the summed gradients is the gradient
    of the mean over all `total` samples, whatever the shares: m W / N.
    """
    return micro * ranks / total


@dataclass(frozen=True, slots=True)
class Rate:
    """How a rate tuned at one global batch is changed at another. `lr` is a factor; `k` = batch / base."""

    rule: str
    lr: float
    k: float

    @property
    def changes_nothing(self) -> bool:
        return self.lr == 1 and (self.rule != "sde" or self.k == 1)

    def group(self, group: dict[str, Any]) -> dict[str, Any]:
        """The entries of an optimizer's parameter group that differ while a step is taken at this rate."""
        changed: dict[str, Any] = {} if self.lr == 1 else {"lr": group["lr"] * self.lr}
        if self.rule == "sde" and self.k != 1:
            if "betas" in group:
                changed["betas"] = tuple(
                    1 - min(self.k * (1 - beta), SDE_MAX_ONE_MINUS_BETA) for beta in group["betas"]
                )
            if "eps" in group:
                changed["eps"] = group["eps"] / math.sqrt(self.k)
        return changed


def resolve_rule(rule: str, optimizer_names: Iterable[str]) -> str:
    """The rule `auto` stands for: linear for SGD (Goyal et al. 2017), sqrt for everything that normalises by a second
    moment (Malladi et al. 2022 without its change of betas, which is steadier). Measured in benchmarks/RESULTS.md."""
    if rule != "auto":
        return rule
    return "linear" if all(name.endswith("SGD") for name in optimizer_names) else "sqrt"


def rate(rule: str, batch: float, base: int, noise_scale: float = 0.0) -> Rate:
    """The rate at global batch `batch` for one tuned at `base`, k = batch / base.

    none: 1. linear: k (Goyal et al. 2017, arXiv 1706.02677). sqrt: sqrt(k) (Krizhevsky 2014). sde: sqrt(k) with
    1 - beta -> k (1 - beta) and eps -> eps / sqrt(k) (Malladi et al. 2022, arXiv 2205.10287). adascale: the gain
    r = (var + sqr) / (var / k + sqr) with var = tr(Sigma) / base and sqr = |G|^2 (Johnson et al. 2020, ICML), given
    here through noise_scale = tr(Sigma) / |G|^2.
    With a known `noise_scale` (samples) the part of a batch beyond it raises nothing: k counts up to
    max(base, noise_scale) only (McCandlish et al. 2018, arXiv 1812.06162: beyond it, a larger batch has less to give).
    Raises TrainingError for adascale without a noise scale.
    """
    k = batch / base
    if noise_scale > 0 and k > 1:
        k = max(1.0, min(k, noise_scale / base))
    if rule == "none":
        return Rate(rule, 1.0, 1.0)
    if rule == "linear":
        return Rate(rule, k, k)
    if rule in ("sqrt", "sde"):
        return Rate(rule, math.sqrt(k), k)
    if rule == "adascale":
        return Rate(rule, adascale_gain(batch / base, noise_scale, base), k)
    raise TrainingError(f"lr='{rule}' is not known; accepted: {', '.join(LR_RULES)}")


def adascale_gain(k: float, noise_scale: float, base: int) -> float:
    """r = (var + sqr) / (var / k + sqr), between 1 and k for k >= 1; 1 while no noise scale has been measured."""
    if noise_scale <= 0:
        return 1.0 if k >= 1 else k
    var = noise_scale / base  # in units of |G|^2
    return (var + 1) / (var / k + 1)


@dataclass(frozen=True, slots=True)
class Ramp:
    """The batch that the rule is given moves from `start` to `end` over `over` samples from `since` on.

    A grow raises the rate; raised at once, the loss bumps. A shrink lowers it at once (`over` = 0).
    """

    start: float
    end: float
    since: int = 0
    over: int = 0

    def at(self, samples: int) -> float:
        """The effective batch after `samples` samples of training."""
        if self.over <= 0 or samples >= self.since + self.over:
            return self.end
        return self.start + (self.end - self.start) * max(0, samples - self.since) / self.over

    def towards(self, batch: int, samples: int, over: int) -> Ramp:
        """The ramp from where this one is now to another batch; without one when the batch gets smaller."""
        now = self.at(samples)
        return Ramp(now, batch, samples, over if batch > now else 0)


def check_join(batch: object, max_batch: object, micro_batch: object, lr: object) -> None:
    """Raise TrainingError naming the first argument of join() that is not accepted."""
    whole: Sequence[tuple[str, object]] = (("batch", batch), ("max_batch", max_batch), ("micro_batch", micro_batch))
    for name, value in whole:
        optional = name != "batch" and value is None
        if not optional and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise TrainingError(f"join({name}={value!r}) is not accepted; accepted: a whole number of samples, from 1")
    if isinstance(max_batch, int) and isinstance(batch, int) and max_batch < batch:
        raise TrainingError(f"join(batch={batch}) is above max_batch={max_batch}; accepted: batch <= max_batch")
    if lr not in LR_RULES:
        raise TrainingError(f"join(lr={lr!r}) is not known; accepted: {', '.join(LR_RULES)}")


def check_slice(value: object, batches: Iterable[tuple[str, int | None]], asked: str | None = None) -> int:
    """What a rank's samples in a step are a multiple of. batches: join()'s, by name; they are multiples, too. asked:
    the elastic request's, where there is one; it counts where join() says nothing.

    Raises TrainingError for what is not accepted.
    """
    given = int(asked or 1) if value is None else value
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise TrainingError(f"join(slice={given!r}) is not accepted; accepted: a whole number of samples, from 1")
    if asked and int(asked) % given:
        raise TrainingError(
            f"join(slice={given}) does not fit the elastic request's slice={asked}; accepted: slice={given} there, too"
        )
    for name, size in batches:
        if size is not None and size % given:
            raise TrainingError(f"join({name}={size}) is not a multiple of slice={given}; accepted: one that is")
    return given


def check_deterministic(value: object, lr: str) -> int:
    """Shards of a step; 0: steps need not be deterministic. Raises TrainingError for what is not accepted."""
    if isinstance(value, bool):
        shards = SHARDS if value else 0
    elif isinstance(value, int) and value >= 1:
        shards = value
    else:
        raise TrainingError(f"join(deterministic={value!r}) is not accepted; accepted: True, or a number of shards")
    if shards and lr == "adascale":
        raise TrainingError("join(lr='adascale') measures noise over ranks, which deterministic=True has none of")
    return shards


def check_batch(batch: int, max_batch: int | None) -> int:
    """The batch itself. Raises TrainingError when it is outside what join() accepts."""
    if batch < 1 or (max_batch is not None and batch > max_batch):
        upper = f"1 to {max_batch} (max_batch of join())" if max_batch is not None else "1 or more"
        raise TrainingError(f"global batch {batch} is outside the accepted range; accepted: {upper}")
    return batch
