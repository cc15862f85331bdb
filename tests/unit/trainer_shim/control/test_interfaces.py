"""Interfaces and addresses of this host, and the one that is chosen for a job."""

from __future__ import annotations

import pytest

from slurm_elastic.protocol.errors import ConfigError
from slurm_elastic.trainer_shim.allocation import start
from slurm_elastic.trainer_shim.control import interfaces


def test_the_loopback_is_found() -> None:
    """By its address; an address of another host is nobody's."""
    assert ("lo", "127.0.0.1") in interfaces.addresses()
    assert interfaces.with_address("127.0.0.1") == "lo"
    assert interfaces.with_address("192.0.2.77") == interfaces.with_address("") == ""


def test_what_means_every_host_itself() -> None:
    """127.0.1.1, which is a host's own name on Debian, is no address for others."""
    assert [interfaces.is_loopback(a) for a in ("127.0.0.1", "127.0.1.1", "::1")] == [True] * 3
    assert [interfaces.is_loopback(a) for a in ("10.0.0.1", "n1", "")] == [False] * 3


def test_a_chosen_interface_reaches_agents_gloo_and_nccl() -> None:
    """One setting; what the user has set for one of them stays. One that is not there is refused by name."""
    assert start.host_address("lo") == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"--interface ib9 has no address on .*; accepted there: .*lo"):
        start.host_address("ib9")
    assert start.interface_env("", {}) == {}
    assert start.interface_env("ib0", {"NCCL_SOCKET_IFNAME": "ib1"}) == {
        "SELASTIC_INTERFACE": "ib0",
        "GLOO_SOCKET_IFNAME": "ib0",
    }
    assert set(start.interface_env("ib0", {})) == {"SELASTIC_INTERFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
