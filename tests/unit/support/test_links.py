"""Delay and loss between hosts, as the switch finds them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sandbox_of_hosts import links
from sandbox_of_hosts.links import CUT, Link, Links

from slurm_elastic.protocol.errors import SandboxError

HOSTS = ["head", "n1", "n2"]


def test_one_way_says_nothing_of_the_other() -> None:
    """Loss from n1 to n2 leaves the way back as all others are."""
    given = Links(Link(delay_s=0.02)).with_one_way("n1", "n2", CUT)
    assert given.between("n1", "n2") == CUT
    assert given.between("n2", "n1") == Link(delay_s=0.02)


def test_a_host_apart_reaches_nobody() -> None:
    """Cut off both ways; the others go on talking."""
    given = Links().apart("n1", HOSTS)
    cut = {(a, b) for a in HOSTS for b in HOSTS if a != b and given.between(a, b) == CUT}
    assert cut == {("n1", "head"), ("head", "n1"), ("n1", "n2"), ("n2", "n1")}


def test_one_network_can_be_disturbed_alone() -> None:
    """What is said of two hosts is said of all their networks, unless it names one."""
    given = Links().with_both_ways("n1", "n2", CUT, "eth0")
    assert given.between("n1", "n2", "eth0") == given.between("n2", "n1", "eth0") == CUT
    assert given.between("n1", "n2", "ib0") == Link()
    assert Links().apart("n1", HOSTS).between("n2", "n1", "ib0") == CUT


def test_a_change_keeps_what_it_does_not_name() -> None:
    """Loss set after a delay keeps the delay; from one host means to every other one."""
    given = Links(Link(delay_s=0.02)).changed(HOSTS, "n1", None, None, 0.5)
    assert given.between("n1", "head") == given.between("n1", "n2") == Link(0.02, 0.5)
    assert given.between("n2", "n1") == Link(0.02)
    everywhere = given.changed(HOSTS, None, None, 0.0, None)
    assert everywhere.between("n1", "n2") == Link(0.0, 0.5)


def test_the_file_holds_all_of_it(tmp_path: Path) -> None:
    """What is written is what the switch reads."""
    given = Links(Link(0.01, 0.1)).with_both_ways("n1", "n2", CUT)
    links.write(tmp_path / "links.json", given)
    assert links.read(tmp_path / "links.json") == given


def test_words_of_the_command_line() -> None:
    """20ms, 1s and 1% are read; what is not gets one sentence."""
    assert (links.seconds("20ms"), links.seconds("1s"), links.share("1%")) == (0.02, 1.0, 0.01)
    for read, text in ((links.seconds, "fast"), (links.seconds, "11s"), (links.share, "1"), (links.share, "101%")):
        with pytest.raises(SandboxError, match="not accepted; accepted"):
            read(text)
