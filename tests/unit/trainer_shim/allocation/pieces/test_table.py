"""The table of a job's nodes: which state may follow which, and what an order means."""

from __future__ import annotations

import re

import pytest

from slurm_elastic.protocol.messages import Piece
from slurm_elastic.trainer_shim.allocation.pieces import table
from slurm_elastic.trainer_shim.allocation.pieces.table import FIRST, NEXT, NodeTable, State, nodes_of

BASE = Piece(10, "base", ("n1", "n2"), 2)
COMPANION = Piece(11, "companion", ("n3",), 2)


def using(*pieces: Piece) -> NodeTable:
    found = NodeTable()
    for piece in pieces:
        for key in nodes_of([piece]):
            found.begin(key, piece, State.AWAITED)
            found.move(key, State.USED)
            found.rows[key].gpus = ("0", "1")
    return found


def test_the_table_that_people_read_is_the_one_that_counts() -> None:
    """The docstring and the code name the same states, and the same next ones."""
    rows = re.findall(r"^\| ([A-Z]+) +\|.*\| ([A-Z, ]+|\(.*\)) +\|$", table.__doc__ or "", re.MULTILINE)
    read = {State[name]: {State[word] for word in re.findall(r"[A-Z]{4,}", after)} for name, after in rows}
    read[State.GRANTED] = set()  # STARTING follows, for a row of each of its nodes
    assert read == {state: set(after) for state, after in NEXT.items()}


@pytest.mark.parametrize("before", [None, *State])
def test_no_node_goes_another_way(before: State | None) -> None:
    """A step that the table does not have raises, and changes nothing."""
    for after in State:
        found = NodeTable()
        if before is not None:
            found.rows[11, "n3"] = table.Node(COMPANION, before)
        if after in (FIRST if before is None else NEXT[before]):
            continue
        with pytest.raises(ValueError, match="n3"):
            found.begin((11, "n3"), COMPANION, after)
        if before is not None:
            with pytest.raises(ValueError, match="n3"):
                found.move((11, "n3"), after)
        assert found.state((11, "n3")) is before


def test_an_order_is_read_in_the_order_of_what_is_held() -> None:
    """Of the pieces in use a part is kept; nodes that were left, and that Slurm still holds, are taken back."""
    found = using(BASE, COMPANION)
    assert found.divide((COMPANION, BASE), again=False) == ((BASE, COMPANION), ())
    found.move((10, "n2"), State.LEAVING)
    assert found.divide((BASE,), again=True) == ((Piece(10, "base", ("n1",), 2),), (Piece(10, "base", ("n2",), 2),))
    found.leave((10, "n2"))
    assert found.state((10, "n2")) is State.LEFT
    assert found.divide((BASE,), again=True)[1] == (Piece(10, "base", ("n2",), 2),)


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ((Piece(10, "base", ("n1", "n9"), 2),), "node n9 of job 10 is not in use"),
        ((BASE, Piece(12, "companion", ("n4",), 2)), "job 12 is not in use"),
        ((Piece(10, "base", ("n1",), 1),), "job 10 uses 2 GPUs per node, not 1"),
        ((Piece(10, "base", ("n2",), 2),), "the batch host n1 cannot be given up"),
        ((COMPANION,), "the batch host n1 cannot be given up"),
    ],
)
def test_an_order_for_what_is_not_held_is_refused(keep: tuple[Piece, ...], said: str) -> None:
    """With one sentence, and nothing is changed."""
    found = using(BASE, COMPANION)
    with pytest.raises(ValueError, match=said):
        found.divide(keep, again=True)
    assert found.pieces(State.USED) == (BASE, COMPANION)


def test_a_node_is_remembered_as_long_as_its_slurm_job_is_in_use() -> None:
    """A job is resized for weeks: of a companion that was left nothing stays."""
    found = using(BASE, COMPANION)
    for key in ((10, "n2"), (11, "n3")):
        found.move(key, State.LEAVING)
        found.leave(key)
    assert set(found.rows) == {(10, "n1"), (10, "n2")}
