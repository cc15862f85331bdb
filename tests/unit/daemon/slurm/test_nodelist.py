"""Node lists as Slurm writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.daemon.slurm.nodelist import expand, fold, is_node_name
from slurm_elastic.protocol.errors import SlurmUnparsable


@pytest.mark.parametrize(
    "text, names",
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3,7]", ("n1", "n2", "n3", "n7")),
        ("gpu-[08-10]", ("gpu-08", "gpu-09", "gpu-10")),
        ("a1,b[2-3]", ("a1", "b2", "b3")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("login.site.org", ("login.site.org",)),
    ],
)
def test_expand(text: str, names: tuple[str, ...]) -> None:
    """Ranges, zero-padded numbers, several prefixes and dimensions."""
    assert expand(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[1-3", "@all", "n1!n2", "n*", "n1 n2", "n[a-b]", "n1;reboot"])
def test_what_is_no_node_list_is_refused(text: str) -> None:
    """ClusterShell's groups, operators and wildcards are not Slurm's, and are not read as such."""
    with pytest.raises(SlurmUnparsable, match="not a node list"):
        expand(text)


@given(st.lists(st.integers(0, 3000), unique=True, max_size=60), st.sampled_from(["n{}", "gpu-{:04}", "r1n{:02}x"]))
def test_fold_and_expand_are_inverse(numbers: list[int], form: str) -> None:
    """Any set of nodes survives being folded, in whatever order it came."""
    names = [form.format(number) for number in numbers]
    assert sorted(expand(fold(names))) == sorted(names)


@pytest.mark.parametrize("name", ["n1", "gpu-08", "a.b.c", "X"])
def test_names_of_nodes(name: str) -> None:
    """Letters, digits, and dots and hyphens inside."""
    assert is_node_name(name)


@pytest.mark.parametrize("name", ["", "-n1", "n1,n2", "n[1-2]", "n1 x", "n1\n", "ALL=1", "n1;x", ".n", "n" * 300])
def test_what_is_not_the_name_of_one_node(name: str) -> None:
    """Nothing that Slurm would read as an option, a list, or another word."""
    assert not is_node_name(name)


def test_lists_share_their_names() -> None:
    """What is remembered of thousands of lists takes a sixth of the memory: a node's name is kept once."""
    assert expand("n[101-103]")[1] is expand("n[102,104]")[0]
