"""Cells: node lists as Slurm writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.daemon.slurm.nodelist import expand
from slurm_elastic.protocol.text.tables import folded


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ("n1,n2,n3,n7", "n[1-3,7]"),
        ("n9,n10,n11", "n[9-11]"),
        ("n09,n10,n11", "n[09-11]"),
        ("n1", "n1"),
        ("login", "login"),
        ("gpu-a1,gpu-b1,gpu-a2", "gpu-a[1-2],gpu-b1"),
        ("r1n1-ib,r1n2-ib,r2n1-ib", "r1n[1-2]-ib,r2n1-ib"),
        ("", ""),
    ],
)
def test_node_lists_are_in_brackets(names: str, shown: str) -> None:
    """Numbers with leading zeros keep them."""
    assert folded(names) == shown


@given(st.lists(st.from_regex(r"(n|gpu-|r1n)(0{0,2}[1-9][0-9]?)(-ib)?", fullmatch=True), min_size=1, unique=True))
def test_slurms_own_reading_gives_the_names_back(names: list[str]) -> None:
    """The daemon's reader of node lists."""
    assert sorted(expand(folded(",".join(names)))) == sorted(names)
