"""What ranks say with a step: a switch is agreed on exactly when all of them hold the same coming world."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.trainer_shim.words import Said, Sums

RANKS = st.lists(st.integers(0, 40), min_size=1, max_size=64)


def heard(said: list[Said], dtype: torch.dtype) -> Sums:
    """As the all-reduce does it: each rank's words divided by the number of ranks, then added up in that type."""
    words = torch.tensor([entry.words() for entry in said], dtype=dtype) / len(said)
    return Sums.of_mean(len(said), words.sum(0).tolist())


@given(RANKS, st.sampled_from([torch.float32, torch.float64]))
def test_a_switch_needs_everyone_and_one_generation(ahead: list[int], dtype: torch.dtype) -> None:
    """Some holding nothing, or holding different generations after one was called off: no switch, in any type."""
    sums = heard([Said(ahead=number) for number in ahead], dtype)
    assert sums.switch == (min(ahead) > 0 and len(set(ahead)) == 1)


@given(RANKS)
def test_everyone_holding_the_same_always_switches(ranks: list[int]) -> None:
    """No rounding stands in the way of an agreement."""
    for number in (1, 2, 7, 1000):
        assert heard([Said(ahead=number)] * len(ranks), torch.float32).switch


@given(st.lists(st.booleans(), min_size=1, max_size=64))
def test_one_rank_is_enough_for_a_checkpoint(wants: list[bool]) -> None:
    """A checkpoint, or an end, that one rank asks for is heard by all."""
    sums = heard([Said(save=want, stop=want, square=2.0) for want in wants], torch.float32)
    assert (sums.save > 0) == (sums.stop > 0) == any(wants)
    assert abs(sums.square - 2.0 * len(wants)) < 1e-3
