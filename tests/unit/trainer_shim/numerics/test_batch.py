"""Slices, micro batches, learning-rate rules."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.numerics import batch
from slurm_elastic.trainer_shim.numerics.batch import Ramp, rate


@given(st.integers(0, 5000), st.integers(1, 70))
def test_slices_cut_a_batch_without_gap_or_overlap(total: int, ranks: int) -> None:
    """All slices together are the batch, in order, and no rank has more than one sample more than another."""
    slices = [batch.slice_of(total, ranks, rank) for rank in range(ranks)]
    assert [position for part in slices for position in part] == list(range(total))
    assert max(map(len, slices)) - min(map(len, slices)) <= 1


@given(st.integers(0, 1000), st.integers(1, 300), st.integers(1, 64))
def test_micro_batches_fit_and_cover_the_slice(start: int, size: int, limit: int) -> None:
    """Micro batches cover the slice, respect the limit, are as few as possible and nearly equal."""
    parts = batch.micros_of(range(start, start + size), limit)
    assert [position for part in parts for position in part] == list(range(start, start + size))
    assert max(map(len, parts)) <= limit
    assert len(parts) == math.ceil(size / limit)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.integers(1, 500), st.integers(1, 16), st.integers(1, 20))
def test_loss_scales_weigh_every_sample_alike(total: int, ranks: int, limit: int) -> None:
    """Under a mean over ranks, each sample's share of the gradient is 1 / N whatever slice it is in."""
    weights = []
    for rank in range(ranks):
        own = batch.slice_of(total, ranks, rank)
        for part in batch.micros_of(own, limit) if len(own) else []:
            scale = batch.loss_scale(len(part), ranks, total)
            weights += [scale / len(part) / ranks] * len(part)
    assert weights == pytest.approx([1 / total] * total)


def test_rules_follow_their_formulas() -> None:
    """k = 4: linear gives 4, sqrt 2, none 1; SDE scales 1 - beta by k and eps by 1 / sqrt(k)."""
    assert rate("linear", 1024, 256).lr == 4
    assert rate("sqrt", 1024, 256).lr == 2
    assert rate("none", 1024, 256).lr == 1
    changed = rate("sde", 1024, 256).group({"lr": 0.5, "betas": (0.9, 0.99), "eps": 1e-8})
    assert changed["lr"] == 1.0
    assert changed["betas"] == pytest.approx((0.6, 0.96))
    assert changed["eps"] == pytest.approx(5e-9)


def test_sde_stays_an_adam_at_any_batch() -> None:
    """A ratio with k (1 - beta) >= 1 would give a negative beta; it is held at a beta above 0."""
    betas = rate("sde", 256 * 64, 256).group({"lr": 1.0, "betas": (0.9, 0.999)})["betas"]
    assert all(0 < beta < 1 for beta in betas)


@given(st.sampled_from(["none", "linear", "sqrt", "sde", "adascale"]), st.floats(0, 1e6))
def test_the_base_batch_changes_nothing(rule: str, noise: float) -> None:
    """At the batch that the rate was tuned for, every rule leaves the optimizer as it is."""
    group = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8}
    changed = {**group, **rate(rule, 256, 256, noise).group(group)}
    assert changed["lr"] == pytest.approx(0.1)
    assert changed["betas"] == group["betas"]


@given(st.sampled_from(["linear", "sqrt", "sde"]), st.floats(1, 1e6), st.integers(257, 10**6))
def test_no_rate_for_the_part_beyond_the_noise_scale(rule: str, noise: float, size: int) -> None:
    """A batch above the noise scale gets the rate of the noise scale, and never less than the tuned one."""
    lr = rate(rule, size, 256, noise).lr
    assert 1 <= lr <= rate(rule, max(256.0, noise), 256).lr + 1e-9
    assert lr <= rate(rule, size, 256).lr


def test_adascale_gain_lies_between_one_and_k() -> None:
    """The gain is near k when noise dominates, near 1 when the signal does, and 1 while nothing is measured."""
    assert rate("adascale", 1024, 256, 1e9).lr == pytest.approx(4, rel=1e-3)
    assert rate("adascale", 1024, 256, 1e-3).lr == pytest.approx(1, rel=1e-3)
    assert rate("adascale", 1024, 256, 0).lr == 1


def test_auto_stands_for_the_optimizers_rule() -> None:
    """auto: linear for SGD, sqrt for optimizers that normalise; a named rule is taken at its word."""
    assert batch.resolve_rule("auto", ["SGD"]) == "linear"
    assert batch.resolve_rule("auto", ["AdamW"]) == "sqrt"
    assert batch.resolve_rule("auto", ["SGD", "Adam"]) == "sqrt"
    assert batch.resolve_rule("sde", ["AdamW"]) == "sde"


def test_a_grow_ramps_up_and_a_shrink_drops_at_once() -> None:
    """The effective batch rises over the given samples after a grow; after a shrink it is lower at once."""
    up = Ramp(256, 256).towards(1024, samples=1000, over=500)
    assert up.at(1000) == 256
    assert up.at(1250) == 640
    assert up.at(1500) == up.at(9999) == 1024
    down = up.towards(128, samples=1250, over=500)
    assert down.at(1250) == 128


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, None, None, "auto"), "batch=0"),
        ((True, None, None, "auto"), "batch=True"),
        ((2.5, None, None, "auto"), "batch=2.5"),
        ((8, -1, None, "auto"), "max_batch=-1"),
        ((8, 4, None, "auto"), "batch=8"),
        ((8, None, 0, "auto"), "micro_batch=0"),
        ((8, None, None, "cubic"), "cubic"),
    ],
)
def test_join_names_the_argument_it_refuses(arguments: tuple[object, ...], named: str) -> None:
    """A wrong argument is named with its value and with what is accepted."""
    with pytest.raises(TrainingError, match="accepted") as caught:
        batch.check_join(*arguments)
    assert named in str(caught.value)
