"""The plan by which ranks exchange parts of tensors: pure, so all of it can be tried."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.trainer_shim.world.resharding import Box, Cut, box_of, overlap, plan, rescue, size_of, waves

Layout = list[Box]
SHAPES = st.lists(st.integers(0, 7), min_size=0, max_size=2)


def layout(shape: list[int], replicas: int, unit: int, along: list[int]) -> Layout:
    """Boxes of a (dp, tp) mesh that cuts along these dimensions, tp first; -1: not at all."""
    boxes = []
    for rank in range(replicas * unit):
        places = [Cut(along[1], "tp", unit, rank % unit), Cut(along[0], "dp", replicas, rank // unit)]
        boxes.append(box_of(shape, [cut for cut in places if 0 <= cut.along < len(shape)]))
    return boxes


def carried(source: torch.Tensor, held: list[list[Box]], wanted: list[Box | None], turn: int) -> list[torch.Tensor]:
    """What ranks have after a plan, as tensors of the whole shape with -1 where nothing is known."""
    result = [torch.full_like(source, -1) for _ in wanted]
    for piece in plan(held, wanted, turn):
        assert any(overlap(box, piece.box) == piece.box for box in held[piece.source])
        place = tuple(slice(first, end) for first, end in piece.box)
        assert bool((result[piece.target][place] == -1).all()), "an element came twice"
        result[piece.target][place] = source[place]
    return result


@given(
    SHAPES, st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 2]), st.lists(st.integers(-1, 1), min_size=2,
    max_size=2), st.data(),
)  # fmt: skip
def test_every_rank_gets_exactly_what_it_wants(
    shape: list[int], before: int, after: int, unit: int, along: list[int], data: st.DataObject
) -> None:
    """Any layout to any other, with any ranks leaving and coming: first what leavers alone hold is rescued, then each
    new rank has each element of its part once, and what a rank has itself is not sent."""
    source = torch.arange(1, 1 + max(1, torch.Size(shape).numel())).view(shape) if 0 not in shape else torch.ones(shape)
    old, new = layout(shape, before, unit, along), layout(shape, after, unit, along)
    stay = data.draw(st.lists(st.integers(0, len(old) - 1), unique=True, min_size=1, max_size=len(new)))
    new_ranks = [-1] * len(old)
    for rank, place in zip(stay, data.draw(st.permutations(range(len(new)))), strict=False):
        new_ranks[rank] = place
    turn = data.draw(st.integers(0, 5))
    held_by_new: list[list[Box]] = [[] for _ in new]
    for rank, place in enumerate(new_ranks):
        if place >= 0:
            held_by_new[place].append(old[rank])
    moved = rescue([[box] for box in old], new_ranks, data.draw(st.sampled_from([new, []])), turn)
    for piece in moved:
        assert new_ranks[piece.source] < 0 <= new_ranks[piece.target]
        held_by_new[new_ranks[piece.target]].append(piece.box)
    for rank, has in enumerate(carried(source, held_by_new, list(new), turn)):
        place = tuple(slice(first, end) for first, end in new[rank])
        assert torch.equal(has[place], source[place])
    for piece in plan(held_by_new, list(new), turn):
        if piece.source != piece.target:
            assert piece.box not in held_by_new[piece.target]


def test_a_shrink_moves_the_leavers_parts_where_they_are_wanted() -> None:
    """8 rows on 4 ranks, the last two leave: both of their parts go to the survivor that is to hold them, and then
    one part goes from it to the other. 4 of 8 rows leave the leavers, 2 move between survivors, none twice."""
    old, new = layout([8], 4, 1, [0, -1]), layout([8], 2, 1, [0, -1])
    moved = rescue([[box] for box in old], [0, 1, -1, -1], new)
    assert [(piece.source, piece.target, piece.box) for piece in moved] == [(2, 1, ((4, 6),)), (3, 1, ((6, 8),))]
    held = [[old[0]], [old[1], *(piece.box for piece in moved)]]
    sent = [(p.source, p.target, p.box) for p in plan(held, list(new)) if p.source != p.target]
    assert sent == [(1, 0, ((2, 4),))]


def test_replicas_share_the_sending() -> None:
    """Of two that hold all of it, tensors with different turns come from different ones."""
    box = box_of([4], [])
    sources = {turn: plan([[box], [box], []], [None, None, box], turn)[0].source for turn in range(4)}
    assert set(sources.values()) == {0, 1}


def test_a_part_that_nobody_holds_is_an_error() -> None:
    """Rather that than a model with holes."""
    with pytest.raises(ValueError, match=r"2 elements of .* are held by no rank"):
        plan([[((0, 2),)]], [((0, 4),)])
    assert size_of(()) == 1


@given(st.integers(1, 5), st.integers(0, 40))
def test_copies_spread_in_rounds(holders: int, joiners: int) -> None:
    """Every joiner is served once, by ranks that have a copy by then, in a number of rounds that grows slowly."""
    have = set(range(holders))
    rounds = waves(list(have), list(range(holders, holders + joiners)))
    for sources, targets in rounds:
        assert set(sources) <= have and not have.intersection(targets)
        have.update(targets)
    assert have == set(range(holders + joiners))
    assert 3 ** len(rounds) <= 3 * 3 * (joiners + 1)
