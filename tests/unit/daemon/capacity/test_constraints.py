"""Which nodes a constraint accepts, and what it means for further nodes."""

from __future__ import annotations

import pytest

from slurm_elastic.daemon.capacity.constraints import (
    FAILURES,
    REST_MAX_S,
    REST_S,
    apart,
    held_to,
    left_out_until,
    meets,
    out_of_reach,
)
from slurm_elastic.db.rows import HostPair


@pytest.mark.parametrize(
    ("constraint", "met"),
    [("", True), ("ib", True), ("hdr", False), ("ib&nvlink", True), ("ib&hdr", False), ("hdr|ib&nvlink", True),
     ("ib|nvlink&hdr", False), ("hdr&ib|nvlink", True), ("nvlink|hdr|x&ib", True),
     ("[hdr*2&ib*1]", True), ("[hdr|edr]", True), ("(hdr&edr)|hdr", True), ("!ib", True)],
)  # fmt: skip
def test_which_nodes_meet_a_constraint(constraint: str, met: bool) -> None:
    """Names with & and | are judged, from left to right; of forms not known here Slurm is left to say."""
    assert meets(constraint, {"ib", "nvlink"}) is met


@pytest.mark.parametrize(
    ("constraint", "nodes", "further"),
    [
        ("", ["ib"], ""),
        ("ib|b", ["ib", "b"], "ib|b"),
        ("[ib|b]", ["ib", "ib x"], "ib"),
        ("[ib|b]", ["b", "ib b"], "b"),
        ("[ib&x|b]", ["ib x"], "ib&x"),
        ("[ib|b]", ["ib", "b"], None),
        ("[ib*2&b*1]", ["ib", "b"], None),
        ("a&[ib|b]", ["a ib"], None),
        ("(a&b)|c", ["c"], None),
    ],
)
def test_further_nodes_are_like_those_that_the_job_has(constraint: str, nodes: list[str], further: str | None) -> None:
    """[ib|b] are nodes that are all of one kind: with nodes of ib, further ones have it too."""
    assert held_to(constraint, [frozenset(features.split()) for features in nodes]) == further


def pair(user: str = "ada", failures: int = FAILURES, last_at: float = 1000.0) -> HostPair:
    return HostPair(user, "n2", "n3", "n3 at 10.0.0.3", failures, last_at)


def test_a_pair_is_left_out_after_three_failures_for_a_time_that_ends() -> None:
    """Twice as long after each further one; a time that a wrong clock wrote holds nobody back."""
    both = frozenset({("n2", "n3")})
    assert apart([pair(failures=FAILURES - 1)], "ada", 1001.0) == frozenset()
    assert apart([pair()], "ada", 1000.0 + REST_S - 1) == both
    assert apart([pair()], "ada", 1000.0 + REST_S) == frozenset()
    assert left_out_until(pair(failures=FAILURES + 1)) == 1000.0 + 2 * REST_S
    assert left_out_until(pair(failures=10_000)) == 1000.0 + REST_MAX_S
    assert apart([pair(last_at=10_000.0)], "ada", 1000.0) == frozenset()


def test_one_user_closes_no_pair_to_others() -> None:
    """Three users who found it so do."""
    pairs = [pair("ada"), pair("bob")]
    assert apart(pairs, "eve", 1001.0) == frozenset()
    assert apart([*pairs, pair("cyd")], "eve", 1001.0) == {("n2", "n3")}


def test_which_nodes_a_job_does_without() -> None:
    """Those that its own do not reach; of free ones that do not reach each other as few as will do; none of pairs that
    do not concern it."""
    free = {"n3", "n4", "n5", "n6"}
    assert out_of_reach({"n1", "n2"}, free, {("n2", "n3"), ("n1", "n4")}) == {"n3", "n4"}
    assert out_of_reach({"n1"}, free, {("n3", "n4"), ("n4", "n5")}) == {"n4"}
    assert out_of_reach({"n1"}, free, {("n3", "n9"), ("n7", "n8")}) == frozenset()
    assert out_of_reach({"n1"}, free, ()) == frozenset()
