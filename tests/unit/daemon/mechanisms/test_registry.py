"""One list of mechanisms: the grammar, the hooks' parsers and the docs agree with it, and the cheapest is taken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cluster_snapshots import Cluster
from resizable_jobs import Resizable, resizable

from slurm_elastic.daemon.mechanisms import registry
from slurm_elastic.daemon.mechanisms.base import ChosenWay, Mechanism, WantedSize
from slurm_elastic.daemon.mechanisms.registry import MECHANISMS
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.protocol import request
from slurm_elastic.protocol.messages import Piece, Resize, Shape

ROOT = Path(__file__).parents[4]
BASE = Piece(1, "base", ("n1", "n2"), 4)
COMPONENT = Piece(2, "component", ("n3",), 4)
COMPANION = Piece(5, "companion", ("n4",), 4)
SHAPE = Shape(1, 4)
NAMES = tuple(mechanism.name for mechanism in MECHANISMS)


def table(path: str, pattern: str) -> tuple[str, ...]:
    """The quoted words of the table that `pattern` finds in a file."""
    found = re.search(pattern, (ROOT / path).read_text())
    assert found, f"{path} has no table of mechanisms"
    return tuple(re.findall(r'"(\w+)"', found[1]))


def job(via: str = "companion+component+shrink+requeue", **more: object) -> Resizable:
    """Job 1 on two whole nodes of four."""
    cluster = Cluster(4)
    cluster.run(1, "n1 n2", 4, f"elastic:gpus=1-16,batch=240-3840,via={via}", **{"asked_per_node": 4, **more})
    return resizable(cluster.snapshot(), pause_s=0.5, requeue_s=20.0)


def names(by: tuple[Mechanism, ...]) -> list[str]:
    return [mechanism.name for mechanism in by]


def test_every_table_of_names_is_this_list() -> None:
    """`via=` in Python, C and Lua, and the page in docs/, name the same mechanisms in the same order."""
    page = (ROOT / "docs/reference/mechanisms.md").read_text()
    assert NAMES == request.MECHANISMS
    assert table("slurm_hooks/elastic_request.c", r"mechanisms\[\] = \{(.*)\}") == NAMES
    assert table("slurm_hooks/elastic.lua", r"local MECHANISMS = \{(.*)\}") == NAMES
    assert tuple(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == NAMES


def test_every_table_of_defaults_is_the_same() -> None:
    """Without `via=` the daemon and the site's policy take the same mechanisms."""
    page = (ROOT / "docs/reference/mechanisms.md").read_text()
    assert table("slurm_hooks/elastic.lua", r"local DEFAULT_VIA = \{(.*)\}") == request.DEFAULT_VIA
    assert f"`{'+'.join(request.DEFAULT_VIA)}` by default" in page


def test_the_list_is_in_order_of_cost() -> None:
    """What is given up first costs least, and a restart costs more than any other pause."""
    prices = [mechanism.drops.price for mechanism in MECHANISMS if mechanism.drops]
    assert prices == sorted(prices)
    costs = [mechanism.cost_s(job(), Settings()) for mechanism in MECHANISMS if mechanism.name != "expand"]
    assert costs == sorted(costs)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=NAMES)
def test_what_a_request_does_not_name_is_not_used(mechanism: Mechanism) -> None:
    """Each says why it does not fit in a sentence."""
    others = "+".join(name for name in NAMES if name != mechanism.name)
    assert mechanism.fits(job(others), Site())


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=NAMES)
def test_no_mechanism_changes_what_it_is_asked_about(mechanism: Mechanism) -> None:
    """Asked twice, each gives the same answers: they are pure."""
    chosen = ChosenWay(4, (), 0.5)
    for ask in (
        lambda: mechanism.fits(job(), Site()),
        lambda: mechanism.why_not(job(), Site(), chosen, Settings()),
        lambda: mechanism.undo(1, (5,), "why"),
    ):
        assert ask() == ask()


def test_the_cheapest_that_fits_and_reaches_is_taken() -> None:
    """Growth by a companion; a size between two nodes, or other nodes, by requeue alone."""

    def taken(wanted: WantedSize, via: str = "companion+shrink+requeue") -> str:
        found = registry.cheapest(job(via), Site(), wanted)
        return found.name if found else ""

    assert taken(WantedSize(12, 8)) == "companion"
    assert taken(WantedSize(12, 8), "shrink+requeue") == "requeue"
    assert taken(WantedSize(6, 8)) == "requeue"
    assert taken(WantedSize(6, 8), "companion+shrink") == ""
    assert taken(WantedSize(8, 8, elsewhere=True)) == "requeue"
    assert taken(WantedSize(12, 4, forced=True)) == "companion"
    assert taken(WantedSize(2, 4, forced=True)) == ""  # a waiting job must not wait for a requeue


def test_what_adds_and_what_restarts_hangs_on_the_job() -> None:
    """The planner asks for the capability, not for a name."""
    adding, restarting = registry.adding(job(), Site()), registry.restarting(job(), Site())
    assert (adding and adding.name, restarting and restarting.name) == ("companion", "requeue")
    assert registry.adding(job("shrink+requeue"), Site()) is None
    assert registry.restarting(job("shrink"), Site()) is None
    assert registry.restarting(job(asked_per_node=0), Site()) is None


def test_a_resize_is_done_by_what_changes_in_it() -> None:
    """Several can have a part: nodes given up here, a companion added there."""
    before = (BASE, COMPONENT, COMPANION)
    companion, requeue = registry.adding(job(), Site()), registry.restarting(job(), Site())
    assert names(registry.used(before, before)) == []
    assert names(registry.used(before, (BASE, COMPONENT))) == ["companion"]
    assert names(registry.used(before, (BASE, COMPANION), companion)) == ["companion", "component"]
    assert names(registry.used(before, (Piece(1, "base", ("n1",), 4),))) == ["companion", "component", "shrink"]
    assert names(registry.used(before, (), requeue)) == ["requeue"]


@pytest.mark.parametrize(
    ("keep", "add", "name"),
    [((BASE,), (SHAPE,), "companion"), ((BASE,), (), "shrink"), ((), (SHAPE,), "requeue"), ((), (), "requeue")],
)
def test_every_open_resize_is_led_by_one_mechanism(keep: tuple[Piece, ...], add: tuple[Shape, ...], name: str) -> None:
    """Whatever a stored resize says."""
    resize = Resize(7, 1, keep, add, 8, 256, "r", 60.0)
    assert names(tuple(m for m in MECHANISMS if m.carries(resize))) == [name]
    assert registry.carrier(resize).name == name


def test_pieces_are_given_up_by_the_rules_of_the_mechanisms_named() -> None:
    """A kind of piece without a rule stays."""
    assert set(registry.drop_rules(("companion", "requeue"))) == {"companion"}
    assert set(registry.drop_rules(request.MECHANISMS)) == {"companion", "component", "base"}
    assert [registry.dropping(piece.kind).name for piece in (BASE, COMPONENT, COMPANION)] == [
        "shrink",
        "component",
        "companion",
    ]


def test_a_change_of_the_batch_passes_nothing_over() -> None:
    """No mechanism has a part in it, and it costs a pause."""
    assert registry.passed_over(job(), Site(), ChosenWay(8, (), 0.5), Settings()) == {}
    assert registry.cost_s(job(), (), Settings()) == 0.5
