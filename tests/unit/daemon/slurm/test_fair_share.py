"""Slurm's tree of shares as sshare prints it."""

from __future__ import annotations

from pathlib import Path

import pytest
from record_slurm import RECORDED

from slurm_elastic.daemon.slurm.fair_share import ShareTree, tree
from slurm_elastic.daemon.slurm.site import counts_shares
from slurm_elastic.protocol.errors import SlurmUnparsable

PRINTED = """root||
 root|root|1
 chem||parent
  chem|daemon|2
  chem|daemon|7
 physics||30
  optics||2
   optics|daemon|parent
   optics|games|5
  physics|games|4
 idle||0
  idle|games|1
"""
"""Of Slurm 22.05, and an account of no shares."""


def test_shares_come_down_a_tree() -> None:
    """Each user's way from the top: an account that has its parent's shares is passed over, users that have their
    account's are one, and no shares still leave some weight."""
    found = tree(PRINTED)
    physics, optics = ("account physics", 30.0), ("account optics", 2.0)
    assert found.path("optics", "games") == (physics, optics, ("user games", 5.0))
    assert found.path("physics", "games") == (physics, ("user games", 4.0))
    assert found.path("optics", "daemon") == found.path("optics", "unheard") == (
        physics, optics, ("its users together", 1.0),
    )  # fmt: skip
    assert found.path("chem", "daemon") == (("user daemon", 2.0),)
    assert found.path("idle", "games")[0] == ("account idle", 0.001)
    assert found.path("new", "games") == (("account new", 1.0), ("its users together", 1.0))
    assert found.path("optics", "games") is found.path("optics", "games")


@pytest.mark.parametrize("printed", sorted(RECORDED.glob("sshare-*.txt")), ids=lambda path: path.stem)
def test_every_release_prints_the_same_tree(printed: Path) -> None:
    """Of record_slurm.SHARES, as each supported Slurm printed it."""
    found = tree(printed.read_text())
    physics, optics = ("account physics", 30.0), ("account optics", 2.0)
    assert found.path("optics", "man") == (physics, optics, ("user man", 5.0))
    assert found.path("optics", "daemon") == (physics, optics, ("its users together", 1.0))
    assert found.path("physics", "games") == (physics, ("user games", 4.0))
    assert found.path("chem", "man") == (("user man", 2.0),)
    assert found.path("idle", "games")[0] == ("account idle", 0.001)


def test_there_are_trees_of_every_supported_release() -> None:
    """Those that `make test` and `make test-matrix` run on."""
    assert {"sshare-22.05", "sshare-24.11", "sshare-26.05"} <= {path.stem for path in RECORDED.glob("sshare-*.txt")}


def test_nothing_listed_is_an_empty_tree_and_another_form_is_refused() -> None:
    """A tree of which nothing is known is never made of lines that could not be read."""
    assert tree("") == ShareTree()
    for text in ("root|", " deep||1", "root||1.5", "sshare: error"):
        with pytest.raises(SlurmUnparsable, match="shares of no known form"):
            tree(text)


def test_priorities_count_shares_where_their_weight_is_set() -> None:
    """As `scontrol show config` prints it, whatever the case of its letters."""
    said = "PriorityType            = priority/{}\nPriorityWeightFair{}  = {}\n"
    assert counts_shares(said.format("multifactor", "Share", 1000))
    assert not counts_shares(said.format("multifactor", "share", 0)) and not counts_shares("")
    assert not counts_shares(said.format("basic", "Share", 1000))
