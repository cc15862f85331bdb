"""A private Slurm with leaf switches: what selasticd reads of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_daemon import live_daemon
from own_sandbox import OwnSandbox
from record_slurm import TREE

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.daemon.slurm import CommandClient


@pytest.fixture(scope="module")
def tree(can_run_slurm: None) -> Iterator[Sandbox]:
    """n1 and n2 under leaf1, n3 and n4 under leaf2, n5 under no switch."""
    files, lines = {"topology.conf": TREE}, ("TopologyPlugin=topology/tree",)
    with OwnSandbox.up(SandboxSpec(nodes=5, extra_slurm_conf=lines, extra_files=files)) as sandbox:
        yield sandbox


def test_leaf_switches_are_read_with_the_site(tree: Sandbox) -> None:
    """TopologyPlugin=topology/tree: the leaf switch over each node."""
    site = CommandClient(tree.env["SLURM_CONF"]).site()
    assert site.switches == {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2", "n4": "leaf2"}


def test_a_node_under_no_switch_counts_only_where_slurm_starts_something_on_it(
    tree: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older releases refuse every job for such a node: it is none of the GPUs that elastic jobs may have."""
    asked = tree.run(["sbatch", "--parsable", "-o", "/dev/null", "-wn5", "--gres=gpu:4", "--wrap", "true"])
    gpus = 20 if asked.returncode == 0 else 16
    with live_daemon(tree, monkeypatch) as daemon:
        job = daemon.submit("-N1", "-wn1", "--gres=gpu:a100:4", comment="elastic:gpus=4-64,step=4,batch=240-3840")
        daemon.settles_at(job, gpus, 90)
        explained = daemon.client().get(f"/v1/jobs/{job}/explain") or {}
        assert explained["decision"]["evidence"]["capacity_gpus"] == gpus, explained
        daemon.slurm.cancel(job)
