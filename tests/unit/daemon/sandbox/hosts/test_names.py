"""/etc/hosts of each kind of site."""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.daemon.sandbox.config import Layout, SandboxSpec, slurm_conf
from slurm_elastic.daemon.sandbox.hosts import names


def known(kind: str) -> dict[str, str]:
    lines = names.hosts_file("n1", ["head", "n1", "n2"], kind).splitlines()
    return {name: address for address, name in map(str.split, lines)}


def test_what_a_host_knows() -> None:
    """Of its own name, and of the others'."""
    assert known("full") == {"localhost": "127.0.0.1", "head": "10.77.0.254", "n1": "10.77.0.1", "n2": "10.77.0.2"}
    assert known("loopback") == known("full") | {"n1": "127.0.1.1"}
    assert known("private") == {"localhost": "127.0.0.1", "n1": "10.77.0.1"}


def test_slurm_is_told_addresses() -> None:
    """Slurm finds hosts by name, or by address where they know no names; a slurmd finds its node by its host's name."""
    spec = SandboxSpec(nodes=3, hosts="private")
    text = slurm_conf(spec, Layout(Path("/tmp/s"), "head", 21000, (), names.address("head")))
    assert "SlurmctldHost=head(10.77.0.254)" in text
    assert "NodeName=n[1-3] Port=" in slurm_conf(
        SandboxSpec(nodes=3, hosts="loopback"), Layout(Path("/tmp/s"), "head", 21000, ())
    )
    assert "NodeName=n[1-3] NodeAddr=10.77.0.[1-3] Port=" in text
    assert "NodeHostname" not in text
