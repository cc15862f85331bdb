"""What a probe asks of the nodes before it submits anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slurm_elastic.daemon.probe.checks import Bench
from slurm_elastic.daemon.probe.trial import NotTried
from slurm_elastic.daemon.slurm.model import Node


def bench(partition: str, *nodes: Node) -> Bench:
    """A trial of one GPU in `partition`, where Slurm shows these nodes."""
    trial: Any = SimpleNamespace(partition=partition, gpus=1, gres="gpu:1")
    client: Any = SimpleNamespace(snapshot=lambda: SimpleNamespace(nodes={node.name: node for node in nodes}))
    return Bench(trial, client)


FREE = Node("n1", frozenset({"IDLE"}), ("main",), gpus=4)
FULL = Node("n2", frozenset({"ALLOCATED"}), ("gpu", "main"), gpus=4, gpus_used=4)


@pytest.mark.parametrize(
    ("partition", "nodes", "said"),
    [
        ("nosuch", (FREE, FULL), "no node is in a partition nosuch; accepted: gpu, main"),
        ("nosuch", (), "accepted: none, Slurm shows no nodes"),
        ("gpu", (FREE, FULL), "no node of partition gpu has gpu:1 free now"),
    ],
)
def test_no_node(partition: str, nodes: tuple[Node, ...], said: str) -> None:
    """A name that Slurm does not have is not called a full partition."""
    with pytest.raises(NotTried, match=said):
        bench(partition, *nodes).free()


def test_a_free_node() -> None:
    """Those of the partition with a GPU free."""
    assert bench("main", FREE, FULL).free() == ["n1"]
