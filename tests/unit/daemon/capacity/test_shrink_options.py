"""What a job can give up and in which order, and where growth fits."""

from __future__ import annotations

from dataclasses import replace

from cluster_snapshots import TYPE, Cluster
from shrink_jobs import REQUEST, giver, room

from slurm_elastic.daemon.capacity.ledger import Amount, Ledger, pool_of, pools
from slurm_elastic.daemon.capacity.make_room import make_room
from slurm_elastic.daemon.capacity.pending_jobs import needs
from slurm_elastic.daemon.capacity.placement import ShapeTemplate, place, take
from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.capacity.shrink_options import ShrinkableJob, shrinks, units_of, without
from slurm_elastic.daemon.mechanisms.registry import drop_rules
from slurm_elastic.protocol.messages import Piece

# --- what can be given up -----------------------------------------------------------------------------------------


def held(
    *pieces: Piece, sizes: range = range(1, 100), via: tuple[str, ...] = ("shrink", "companion", "component")
) -> ShrinkableJob:
    share = {piece.slurm_job_id: Amount(piece.gpus_per_node, 2, 100) for piece in pieces}
    return ShrinkableJob(1, pieces, frozenset({(1, "n1")}), frozenset(sizes), drop_rules(via), share)


BASE = Piece(1, "base", ("n1", "n2"), 4, TYPE)


def test_batch_host_is_never_droppable() -> None:
    """Slurm refuses to take the batch host from a job."""
    assert set(held(BASE).drops) == {(1, "n2")}
    assert set(shrinks(held(BASE))) == {4, 8}


def test_a_companion_that_a_script_holds_goes_whole_or_keeps_its_batch_host() -> None:
    """One that no script holds may lose any node; a node of the same name in the base is something else."""
    companion = Piece(2, "companion", ("n1", "n3"), 2, TYPE)
    plain = held(BASE, companion)
    assert plain.drops[2, "n1"] == ((2, "n1"),)
    batch = replace(plain, batch_hosts=frozenset({(1, "n1"), (2, "n3")}))
    assert batch.drops[2, "n1"] == ((2, "n1"),)
    assert set(batch.drops[2, "n3"]) == {(2, "n1"), (2, "n3")}


def test_component_goes_whole_or_keeps_its_first_node() -> None:
    """The first node of a component goes only with all its others."""
    component = Piece(2, "component", ("n3", "n4"), 2, TYPE)
    units = held(BASE, component).drops
    assert set(units[(2, "n3")]) == {(2, "n3"), (2, "n4")}
    assert units[(2, "n4")] == ((2, "n4"),)
    assert set(shrinks(held(BASE, component))) == {4, 6, 8, 10, 12}


def test_newest_companion_goes_first_and_base_nodes_last() -> None:
    """Of several ways to one size the gentlest is taken."""
    old, new = Piece(5, "companion", ("n3",), 4, TYPE), Piece(6, "companion", ("n4",), 4, TYPE)
    kept = shrinks(held(BASE, old, new))
    assert kept[12] == (BASE, old)
    assert kept[8] == (BASE,)


def test_small_companions_make_small_steps_possible() -> None:
    """Sizes are subset sums: a 1-GPU companion lets a job give one GPU."""
    small = Piece(5, "companion", ("n3",), 1, TYPE)
    assert set(shrinks(held(BASE, small))) == {4, 5, 8, 9}


def test_what_lies_furthest_or_is_asked_for_goes_first() -> None:
    """Without a network the last node; with one that under the lonely switch; before both one that is asked for."""
    piece = Piece(1, "base", ("n1", "n2", "n3", "n4"), 4, TYPE)
    plain = ShrinkableJob(
        1, (piece,), frozenset({(1, "n1")}), frozenset({4, 8, 12, 16}), drop_rules(("shrink",)), {1: Amount(4)}
    )
    assert shrinks(plain)[12][0].nodes == ("n1", "n2", "n3")
    switched = replace(plain, switches={"n1": "s1", "n2": "s2", "n3": "s1", "n4": "s1"})
    assert shrinks(switched)[12][0].nodes == ("n1", "n3", "n4")
    assert shrinks(switched)[8][0].nodes == ("n1", "n3")
    asked = replace(switched, wanted=frozenset({"n3", "n1"}))
    assert shrinks(asked)[12][0].nodes == ("n1", "n2", "n4")  # the batch host never goes


def test_the_slowest_node_goes_first() -> None:
    """What holds the others back goes before what lies far off, and after what a waiting job asks for by name."""
    piece = Piece(1, "base", ("n1", "n2", "n3", "n4"), 4, TYPE)
    plain = ShrinkableJob(
        1, (piece,), frozenset({(1, "n1")}), frozenset({4, 8, 12, 16}), drop_rules(("shrink",)), {1: Amount(4)}
    )
    slow = replace(plain, slow={"n3": 0.15, "n2": 0.4, "n1": 0.5})
    assert shrinks(slow)[12][0].nodes == ("n1", "n3", "n4")  # the batch host never goes
    assert shrinks(slow)[8][0].nodes == ("n1", "n4")
    switched = replace(slow, switches={"n1": "s1", "n2": "s1", "n3": "s1", "n4": "s2"})
    assert shrinks(switched)[12][0].nodes == ("n1", "n3", "n4")
    assert shrinks(replace(switched, wanted=frozenset({"n4"})))[12][0].nodes == ("n1", "n2", "n3")


def test_a_companion_on_a_slow_node_goes_before_newer_ones() -> None:
    """Among companions the slow one goes, however long it has been held; the base's own nodes still stay."""
    old, new = Piece(5, "companion", ("n3",), 4, TYPE), Piece(6, "companion", ("n4",), 4, TYPE)
    assert shrinks(replace(held(BASE, old, new), slow={"n3": 0.3}))[12] == (BASE, new)
    assert shrinks(replace(held(BASE, old, new), slow={"n2": 0.3}))[12] == (BASE, old)


def test_room_is_made_on_the_slowest_node_that_would_do() -> None:
    """Of nodes that cost their job as many GPUs, a waiting job is given the one that holds it back."""
    cluster = Cluster(4)
    cluster.run(1, "n1 n2 n3 n4", comment=REQUEST)
    cluster.wait(2)
    snapshot = cluster.snapshot()
    roster = sort_jobs(snapshot)
    slow = replace(giver(roster, 1), slow={"n3": 0.2})
    made = make_room(snapshot, Ledger.of(snapshot), [slow], needs(snapshot, roster))
    assert made.forced == {1: frozenset({(1, "n3")})}
    assert room(snapshot).forced != made.forced


def test_growth_prefers_nodes_next_to_the_jobs_own() -> None:
    """Of nodes with as many free GPUs those under the same switch are taken."""
    cluster = Cluster(4)
    template = ShapeTemplate.of(cluster.run(1, "n1"))
    ledger = Ledger.of(cluster.snapshot())
    shapes = place(ledger, 4, template, ["n2", "n3", "n4"], near={"n4"})
    assert shapes is not None and shapes[0].node_list == ("n4",)


def test_forced_units_are_gone_from_every_size() -> None:
    """What a waiting job needs goes, even where something gentler would reach the same size."""
    old, new = Piece(5, "companion", ("n3",), 4, TYPE), Piece(6, "companion", ("n4",), 4, TYPE)
    kept = shrinks(held(BASE, old, new), frozenset({(5, "n3")}))
    assert kept[12] == (BASE, new)
    assert max(kept) == 12


def test_via_forbids_what_it_does_not_name() -> None:
    """A job with via=companion never loses base nodes."""
    companion = Piece(5, "companion", ("n3",), 4, TYPE)
    assert set(shrinks(held(BASE, companion, via=("companion",)))) == {8, 12}
    assert set(held(BASE, companion, via=("companion",)).drops) == {(5, "n3")}


def test_without_drops_pieces_that_lose_every_node() -> None:
    """A companion whose nodes all go is gone."""
    companion = Piece(5, "companion", ("n3",), 4, TYPE)
    assert without((BASE, companion), {(5, "n3"), (1, "n2")}) == (Piece(1, "base", ("n1",), 4, TYPE),)
    assert units_of((companion,)) == {(5, "n3")}


# --- where growth fits --------------------------------------------------------------------------------------------


def template(cluster: Cluster) -> ShapeTemplate:
    return ShapeTemplate.of(cluster.run(99, "n1", 4))


def test_whole_nodes_first_then_one_remainder() -> None:
    """Six GPUs on idle nodes of four: one whole node, and two on another."""
    cluster = Cluster(4)
    shape = template(cluster)
    shapes = place(Ledger.of(cluster.snapshot()), 6, shape, cluster.nodes)
    assert shapes is not None
    assert [(s.nodes, s.gpus_per_node, s.cpus_per_node, s.node_list) for s in shapes] == [
        (1, 4, 8, ("n2",)),
        (1, 2, 4, ("n3",)),
    ]


def test_remainder_goes_where_it_leaves_least_over() -> None:
    """A half-used node is filled before a whole one is broken."""
    cluster = Cluster(4)
    shape = template(cluster)
    cluster.run(5, "n3", 2)
    shapes = place(Ledger.of(cluster.snapshot()), 2, shape, cluster.nodes)
    assert shapes is not None and [s.node_list for s in shapes] == [("n3",)]


def test_growth_respects_cores() -> None:
    """GPUs without the cores that the base has per GPU are not used."""
    cluster = Cluster(2)
    shape = template(cluster)
    cluster.run(5, "n2", 0, cpus=14)
    assert place(Ledger.of(cluster.snapshot()), 2, shape, cluster.nodes) is None
    assert place(Ledger.of(cluster.snapshot()), 1, shape, cluster.nodes) is not None


def test_growth_never_counts_what_is_not_free_yet() -> None:
    """A companion on GPUs still held would only wait; such growth is known to be possible later."""
    cluster = Cluster(2)
    shape = template(cluster)
    cluster.run(5, "n2", 4)
    ledger = Ledger.of(cluster.snapshot())
    ledger.release("n2", Amount(4, 8, 4000))
    assert place(ledger, 4, shape, cluster.nodes) is None
    assert place(ledger, 4, shape, cluster.nodes, soon=True) is not None


def test_two_growths_take_different_nodes() -> None:
    """What one plan takes is used up for the next."""
    cluster = Cluster(3)
    shape = template(cluster)
    ledger = Ledger.of(cluster.snapshot())
    first = place(ledger, 4, shape, cluster.nodes)
    assert first is not None
    take(ledger, first)
    second = place(ledger, 4, shape, cluster.nodes)
    assert second is not None and second[0].node_list != first[0].node_list
    take(ledger, second)
    assert place(ledger, 1, shape, cluster.nodes) is None


def test_pools_join_partitions_that_share_nodes() -> None:
    """Jobs of two partitions over the same nodes compete for the same GPUs; another type is another pool."""
    cluster = Cluster(3)
    from dataclasses import replace

    cluster.nodes["n1"] = replace(cluster.nodes["n1"], partitions=("main", "short"))
    cluster.nodes["n3"] = replace(cluster.nodes["n3"], gpu_type="v100")
    found = pools(cluster.snapshot())
    assert [(pool.gpu_type, sorted(pool.nodes)) for pool in found] == [("a100", ["n1", "n2"]), ("v100", ["n3"])]
    job = cluster.run(7, "n3", gpu_type="v100")
    mine = pool_of(found, job)
    assert mine is not None and mine.gpu_type == "v100"
