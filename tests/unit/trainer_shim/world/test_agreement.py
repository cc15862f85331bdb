"""What ranks say with a step: a switch is agreed on exactly when all of them hold the same coming world."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.trainer_shim.world.agreement import Tally, Vote

DTYPES = st.sampled_from([torch.float32, torch.float64])


def heard(said: list[Vote], dtype: torch.dtype) -> Tally:
    """As the all-reduce does it: each rank's words divided by the number of ranks, then added up one by one."""
    words = torch.tensor([entry.encoded() for entry in said], dtype=dtype) / len(said)
    return Tally.of_mean(len(said), words.cumsum(0)[-1].tolist())


@given(st.lists(st.integers(100, 131).map(lambda number: number if number % 7 else 0), min_size=1, max_size=64), DTYPES)
def test_a_switch_needs_everyone_and_one_generation(holds: list[int], dtype: torch.dtype) -> None:
    """Some holding nothing, or holding different generations after one was called off: no switch, in any type."""
    assert heard([Vote(holds=number) for number in holds], dtype).switch == (min(holds) > 0 and len(set(holds)) == 1)


@given(st.integers(1, 4000), st.integers(1, 10**9), st.integers(1, 31), st.booleans(), DTYPES)
def test_agreement_and_dissent_survive_rounding(
    ranks: int, generation: int, off: int, holds: bool, dtype: torch.dtype
) -> None:
    """Thousands of ranks that agree switch; one among them with another world, or none, holds all of them back."""
    all_agree = [Vote(holds=generation)] * ranks
    assert heard(all_agree, dtype).switch
    assert not heard([*all_agree, Vote(holds=generation + off if holds else 0)], dtype).switch


@given(st.integers(1, 4000), DTYPES)
def test_one_rank_is_enough_for_a_checkpoint(ranks: int, dtype: torch.dtype) -> None:
    """A checkpoint, or an end, that one rank asks for is heard by all; nobody hears one that nobody asked for."""
    silent = [Vote()] * ranks
    assert heard([*silent, Vote(save=True)], dtype).save and heard([*silent, Vote(stop=True)], dtype).stop
    sums = heard(silent, dtype)
    assert not (sums.save or sums.stop or sums.switch)
    assert abs(heard([Vote(square=2.0)] * ranks, dtype).square - 2.0 * ranks) < 1e-3 * ranks
