"""A value is what is made of the inputs that were asked with, whatever was asked before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.daemon.derived.table import Derived, one_by_one

ROUNDS = st.lists(st.dictionaries(st.integers(0, 5), st.integers(0, 3), max_size=6), max_size=12)


@given(ROUNDS, st.sampled_from([0, 3]))
def test_a_value_is_made_again_just_where_its_inputs_changed(rounds: list[dict[int, int]], room: int) -> None:
    """Over rounds of any keys with any inputs, in the order in which they were asked; each is made of what stands now.
    What was asked in the round before and has the same inputs is the same object; what nobody asks for is forgotten."""
    made = list[int]()

    def make(asked: Sequence[int]) -> list[list[int]]:
        made.extend(asked)
        return [[one] for one in asked]

    table, before = Derived[int, int, list[int]](make, room=room), dict[int, list[int]]()
    for asked in rounds:
        table.turn()
        made.clear()
        found = table.of(asked)
        assert list(found.items()) == [(key, [one]) for key, one in asked.items()]
        same = [key for key in asked if key in before and before[key] == found[key]]
        assert all(found[key] is before[key] for key in same)
        assert (not room and len(made) == len(asked) - len(same)) or (room and len(made) <= len(asked) - len(same))
        assert all(table.one(key, one) is found[key] for key, one in asked.items())
        assert len(table) <= 2 * room + len(asked) + len(before)
        before = found


def test_only_what_a_value_depends_on_is_compared() -> None:
    """What else is asked with may differ; whoever asks alike shares the value."""
    table = Derived[int, tuple[int, str], list[str]](one_by_one(lambda asked: [asked[1]]), lambda asked: asked[0])
    assert table.each([(1, "a"), (2, "b"), (1, "c")]) == [["c"], ["b"], ["c"]]
    assert table.each([(2, "d")]) == [["b"]]


def test_a_value_ends_when_it_says() -> None:
    """Until then it stays; by a clock that goes back it is made again."""
    table = Derived[str, float, list[float]](
        one_by_one(lambda asked: [asked]), lambda asked: None, until=lambda v, at: at + 10
    )
    values = [table.one("job", now, now) for now in (100.0, 109.0, 110.0, 105.0, 106.0)]
    assert values == [[100.0], [100.0], [110.0], [105.0], [105.0]]


def test_what_fails_to_be_made_is_not_known() -> None:
    """The next one that asks sees the failure, too; what was known stays."""
    table = Derived[int, int, float](one_by_one(lambda asked: 1 / asked))
    assert table.of({1: 2}) == {1: 0.5}
    for _ in range(2):
        try:
            table.of({1: 2, 2: 0})
        except ZeroDivisionError:
            continue
        raise AssertionError("nothing can be made of 0")
    assert table.of({1: 2}) == {1: 0.5} and len(table) == 1


def test_keys_are_hashed_once_to_look_and_once_to_keep() -> None:
    """Some have a hundred numbers, and after a start thousands of jobs are new."""
    hashed = Counter[int]()

    class Key(int):
        def __hash__(self) -> int:
            hashed[int(self)] += 1
            return int(self)

    table = Derived[Key, Key, int](one_by_one(lambda key: 2 * key))
    assert table.each([Key(1), Key(2)]) == [2, 4]
    assert hashed == {1: 2, 2: 2}
