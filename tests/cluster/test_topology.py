"""A private Slurm with leaf switches: what selasticd reads of them."""

from __future__ import annotations

from record_slurm import TREE

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.daemon.slurm import CommandClient


def test_leaf_switches_are_read_with_the_site(can_run_slurm: None) -> None:
    """TopologyPlugin=topology/tree: the leaf switch over each node, and none over one that topology.conf leaves out."""
    files, lines = {"topology.conf": TREE}, ("TopologyPlugin=topology/tree",)
    spec = SandboxSpec(nodes=5, with_accounting=False, extra_slurm_conf=lines, extra_files=files)
    with Sandbox.up(spec) as sandbox:
        site = CommandClient(sandbox.env["SLURM_CONF"]).site()
    assert site.switches == {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2", "n4": "leaf2"}
