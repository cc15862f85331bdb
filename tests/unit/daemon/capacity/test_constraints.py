"""Which nodes a constraint accepts, and what it means for further nodes."""

from __future__ import annotations

import pytest

from slurm_elastic.daemon.capacity.constraints import held_to, meets


@pytest.mark.parametrize(
    ("constraint", "met"),
    [("", True), ("ib", True), ("hdr", False), ("ib&nvlink", True), ("ib&hdr", False), ("hdr|ib&nvlink", True),
     ("[hdr*2&ib*1]", True), ("[hdr|edr]", True), ("(hdr&edr)|hdr", True), ("!ib", True)],
)  # fmt: skip
def test_which_nodes_meet_a_constraint(constraint: str, met: bool) -> None:
    """Names with & and | are judged; of forms not known here Slurm is left to say."""
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
