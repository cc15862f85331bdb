"""What jobs hold on their nodes is found from what is in use there, and is not guessed where that leaves a doubt."""

from __future__ import annotations

from slurm_elastic.daemon.slurm.model import Job, Node
from slurm_elastic.daemon.slurm.parse import with_nodes


def node(name: str, used: int = 0, kind: str = "a100", gpus: int = 4) -> Node:
    return Node(name, frozenset({"MIXED"}), gpus=gpus, gpus_used=used, gpu_type=kind)


def job(number: int, *nodes: str, gpus: int, asked: int = 0, exclusive: bool = False, kind: str = "a100") -> Job:
    """As it is read from squeue: equal shares where the total divides."""
    each = 0 if gpus % len(nodes) else gpus // len(nodes)
    return Job(
        number,
        "RUNNING",
        "games",
        5,
        nodes=nodes,
        gpus=gpus,
        gpus_per_node=each,
        asked_per_node=asked,
        gpu_type=kind,
        exclusive=exclusive,
    )


def held(nodes: list[Node], *jobs: Job) -> dict[int, tuple[int, int]]:
    """(all, per node) by job."""
    found = with_nodes({one.job_id: one for one in jobs}, {one.name: one for one in nodes})
    return {number: (one.gpus, one.gpus_per_node) for number, one in found.items()}


def test_a_total_is_shared_out_as_the_nodes_have_it() -> None:
    """--gpus=6 on two nodes is 4 and 2, though 6 divides, beside a job that asked per node; --gpus=4 may be 2 and 2."""
    spread, other = job(1, "n1", "n2", gpus=6), job(2, "n2", gpus=2, asked=2)
    assert held([node("n1", 4), node("n2", 4)], spread, other) == {1: (6, 0), 2: (2, 2)}
    assert held([node("n1", 2), node("n2", 4)], job(1, "n1", "n2", gpus=4), other) == {1: (4, 2), 2: (2, 2)}


def test_an_exclusive_job_holds_all_of_its_nodes() -> None:
    """Also where accounting does not count GPUs, so that its total is what it asked for; and with unequal nodes."""
    nodes = [node("n1", 4), node("n2", 8, gpus=8)]
    assert held(nodes, job(1, "n1", gpus=1, asked=1, exclusive=True)) == {1: (4, 4)}
    assert held(nodes, job(1, "n1", "n2", gpus=12, asked=1, exclusive=True)) == {1: (12, 0)}


def test_what_leaves_a_doubt_stays_as_it_was_read() -> None:
    """Two spread jobs on the same nodes; a job that started there since; one that ended."""
    nodes = [node("n1", 4), node("n2", 4)]
    assert held(nodes, job(1, "n1", "n2", gpus=4), job(2, "n1", "n2", gpus=4)) == {1: (4, 2), 2: (4, 2)}
    assert held(nodes, job(1, "n1", "n2", gpus=4)) == {1: (4, 2)}
    assert held([node("n1"), node("n2")], job(1, "n1", gpus=4, asked=1, exclusive=True)) == {1: (4, 4)}


def test_the_type_is_that_of_the_nodes_where_accounting_has_none() -> None:
    """Unless they have several."""
    nodes = {name: node(name, kind="v100") for name in ("n1", "n2")}
    untyped = {1: job(1, "n1", "n2", gpus=4, asked=2, kind="")}
    assert with_nodes(untyped, nodes)[1].gpu_type == "v100"
    assert with_nodes(untyped, {**nodes, "n2": node("n2", kind="a100")})[1].gpu_type == ""
