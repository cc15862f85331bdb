"""What a world's steps are held back by, as told from each rank's own measurements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.protocol import bottleneck
from slurm_elastic.protocol.bottleneck import Bottleneck, Pace, find


def world(*busy: float, step: float = 1.0, waits: dict[int, float] | None = None, comm: float = 0.05) -> list[Pace]:
    """Ranks that are busy so long in steps of `step`; who is not waits for the busiest."""
    waits = waits or {}
    longest = max(own + waits.get(rank, 0.0) for rank, own in enumerate(busy))
    return [
        Pace(rank, step, own, 8, waits.get(rank, 0.0) / step, comm + (longest - own - waits.get(rank, 0.0)) / step)
        for rank, own in enumerate(busy)
    ]


def test_nothing_is_named_where_all_is_well() -> None:
    """Ranks that differ a little, a loader that keeps up, communication that is mostly hidden."""
    assert find(world(0.90, 0.93, 0.88, 0.91)) is None
    assert find([]) is None
    assert find(world(1.0, comm=0.0)) is None


def test_a_slow_rank_is_named_with_what_it_costs() -> None:
    """The others wait for it in the all-reduce, which is then no sign of slow communication."""
    assert find(world(0.5, 0.5, 0.95, 0.5)) == Bottleneck("slow_rank", pytest.approx(0.45), 2)
    assert find(world(0.6, 0.95)) == Bottleneck("slow_rank", pytest.approx(0.35), 1)


def test_a_rank_with_more_samples_is_not_slow() -> None:
    """Slices differ: twice the samples take twice the time."""
    paces = [Pace(0, 1.0, 0.9, 2, 0, 0.05), Pace(1, 1.0, 0.45, 1, 0, 0.5)]
    assert find(paces) is None


def test_a_starved_input_is_named_where_it_is() -> None:
    """One rank waits for its loader, and all others for that rank."""
    assert find(world(0.5, 0.5, 0.5, waits={1: 0.4})) == Bottleneck("starved_input", 0.4, 1)


def test_communication_counts_only_what_nobody_is_waited_for_in() -> None:
    """Only the least share over the ranks is the network's."""
    assert find(world(0.5, 0.5, comm=0.45)) == Bottleneck("communication", pytest.approx(0.45))
    assert find([Pace(0, 1.0, 1.0, 8, 0.0, 0.9)]) is None


def test_the_costliest_is_named() -> None:
    """Slow communication and a slower rank: what saves most comes first."""
    found = find(world(0.1, 0.6, comm=0.31))
    assert found == Bottleneck("slow_rank", pytest.approx(0.5), 1)


shares = st.floats(0, 1)
paces = st.builds(Pace, st.integers(0, 63), st.floats(0, 100), st.floats(0, 100), st.floats(0, 1e6), shares, shares)


@given(st.lists(paces, max_size=8))
def test_any_measurement_gives_an_answer(given_paces: list[Pace]) -> None:
    """Whatever ranks say: no error, a known kind, a share of at most the whole step and of no less than is worth it."""
    found = find(given_paces)
    assert found is None or (found.kind in bottleneck.KINDS and bottleneck.LEAST_COST <= found.share <= 1)
