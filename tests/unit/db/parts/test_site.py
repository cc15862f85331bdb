"""What users found out of the site is kept by user, across restarts of the daemon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slurm_elastic.db.parts.site import FORGET_S, MOST_PROBED
from slurm_elastic.db.rows import HostPair, ProbeRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.messages import Tried, Unreached


def test_failures_of_a_pair_are_counted_whoever_tried(tmp_path: Path) -> None:
    """Until both train in one world; each user's for themselves; one that nothing was heard of is forgotten."""
    url = f"sqlite:///{tmp_path}/elastic.db"
    with Store.open(url) as store:
        assert store.host_pairs.all() == ()
        store.host_pairs.note("ada", [Unreached("n3", "n2", "10.0.0.2")], 10.0)
        store.host_pairs.note("ada", [Unreached("n2", "n3", "10.0.0.3"), Unreached("n2", "n4", "10.0.0.4")], 20.0)
        [bobs] = store.host_pairs.note("bob", [Unreached("n2", "n3", "10.0.0.3")], 30.0)
        assert bobs.failures == 1
    n3 = HostPair("ada", "n2", "n3", "n3 at 10.0.0.3", 2, 20.0)
    n4 = HostPair("ada", "n2", "n4", "n4 at 10.0.0.4", 1, 20.0)
    with Store.open(url) as store:
        assert store.host_pairs.all() == (n3, n4, bobs)
        store.host_pairs.note_reached("ada", {"n1", "n2", "n3"})
        assert store.host_pairs.all() == (n4, bobs)
        store.host_pairs.note("ada", [], 20.0 + FORGET_S + 1)
        assert store.host_pairs.all() == (bobs,)


def test_a_pair_is_cleared_for_whom_it_is_asked(tmp_path: Path) -> None:
    """For some users or for all; one pair, or all of a host, whichever of its two places it stands in."""
    with Store.open(f"sqlite:///{tmp_path}/elastic.db") as store:
        for user in ("ada", "bob"):
            store.host_pairs.note(user, [Unreached("n3", other, "x") for other in ("n1", "n4")], 10.0)

        def left() -> list[tuple[str, str, str]]:
            return [(pair.user, pair.host, pair.other) for pair in store.host_pairs.all()]

        assert store.host_pairs.forget("n1", "n4", None) == [] and len(left()) == 4
        assert [pair.user for pair in store.host_pairs.forget("n4", "n3", {"ada"})] == ["ada"]
        assert left() == [("ada", "n1", "n3"), ("bob", "n1", "n3"), ("bob", "n3", "n4")]
        assert len(store.host_pairs.forget("n3", "", None)) == 3 and left() == []


def test_one_user_cannot_fill_the_table(tmp_path: Path) -> None:
    """The oldest of too many go."""
    with Store.open(f"sqlite:///{tmp_path}/elastic.db") as store:
        for round in range(3):
            store.host_pairs.note("eve", [Unreached("a", f"b{round}.{i}", "x") for i in range(500)], 10.0 + round)
        kept = store.host_pairs.all()
        assert len(kept) == 1000 and min(pair.last_at for pair in kept) == 11.0


def test_the_last_probe_of_a_partition_counts(tmp_path: Path) -> None:
    """Of each user's, but for what it did not try; a user's oldest go where there are very many."""
    url = f"sqlite:///{tmp_path}/elastic.db"
    works, refused = Tried("salloc", "works", "on n1", 0.1), Tried("salloc", "refused", "not here")
    with Store.open(url) as store:
        for row in (ProbeRow("", "gpu", 1.0, (refused,)), ProbeRow("ada", "gpu", 2.0, (refused,))):
            store.probes.save(row)
        store.probes.save(ProbeRow("ada", "gpu", 2.5, (works,)))
        store.probes.save(ProbeRow("ada", "gpu", 3.0, (Tried("salloc", "not tried", "no node was free"),)))
    kept = (
        ProbeRow("", "gpu", 1.0, (replace(refused, at=1.0),)),
        ProbeRow("ada", "gpu", 3.0, (replace(works, at=2.5),)),
    )
    with Store.open(url) as store:
        assert store.probes.all() == kept
        for number in range(MOST_PROBED):
            store.probes.save(ProbeRow("ada", f"p{number}", 10.0 + number, (works,)))
        assert (
            len(store.probes.all()) == MOST_PROBED + 1
            and kept[1] not in store.probes.all()
            and kept[0] in store.probes.all()
        )
