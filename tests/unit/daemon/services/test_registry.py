"""What the base does for every service, tried with a toy: off, review, act, the record, the taking back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from daemon_harness import World

from slurm_elastic.daemon.actions.action import QUEUE, Act, Action, Subject
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.services import registry
from slurm_elastic.daemon.services.base import ACT, OFF, REVIEW, Note, Observation, Proposal, Row, Service
from slurm_elastic.daemon.simulator.jobs import SimulationSettings, prepare
from slurm_elastic.daemon.simulator.replay import Elastic
from slurm_elastic.daemon.simulator.traces.formats import TraceJob
from slurm_elastic.daemon.slurm.model import SlurmClient
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.protocol.answers.history import PlanNote
from slurm_elastic.protocol.codes import EventKind
from slurm_elastic.protocol.errors import ConfigError

asked: list[str] = []
"""What the toy asked of Slurm, and how often it was asked itself."""


@dataclass(frozen=True)
class Reorder(Act):
    """An action of the toy's."""

    kind = EventKind.SERVICE
    ahead: int

    @property
    def subject(self) -> Subject:
        return Subject(QUEUE)

    def ask(self, client: SlurmClient) -> None:
        asked.append(self.sentence())

    def sentence(self) -> str:
        return f"reorder {self.ahead}"


class Toy(Service):
    """One row a round: how many jobs wait."""

    name = "toy"

    def needs(self, site: Site) -> str:
        return "no companion QOS" if site.checks_qos else ""

    def propose(self, seen: Observation) -> Proposal:
        waiting = sum(job.pending for job in seen.snapshot.jobs.values())
        asked.append(f"{sum(amount.gpus for amount in seen.free().now.values())} GPUs free")
        note = Note(Subject(QUEUE), f"{waiting} jobs wait", {"waiting": waiting})
        return Proposal((Reorder(waiting),), (note,), value=float(waiting))

    def explain(self, row: Row) -> str:
        return row.text if isinstance(row, Note) else ""

    def undo(self, seen: Observation) -> list[Action]:
        return [Reorder(-1)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """A cluster whose daemon has the toy as well, behind the elastic jobs."""
    asked.clear()
    monkeypatch.setattr(registry, "SERVICES", (*registry.SERVICES, Toy))
    return lambda *services, **more: World(tmp_path, services=services, **more)


def notes(world: World) -> Sequence[dict[str, object]]:
    return [event.detail for event in world.store.events.of(0) if "service" in event.detail]


def test_one_that_nobody_turned_on_is_not_asked_but_for_what_it_has_to_take_back(world: Callable[..., World]) -> None:
    """Off: no row, and what it did before it was turned off is undone."""
    off = world()
    off.round()
    assert asked == ["reorder -1"] and not notes(off)


def test_in_review_it_says_once_what_it_would_do(world: Callable[..., World], caplog: pytest.LogCaptureFixture) -> None:
    """A row that is as the last one is not stored again; nothing of it is done, and a dry run stores nothing."""
    caplog.set_level(logging.INFO)
    review = world("toy=review")
    for _ in range(3):
        review.round()
    assert len(review.rounds.dry_run()) == 2
    assert notes(review) == [{"service": "toy", "about": "queue", "waiting": 0}] and "0 jobs wait" in caplog.text
    assert "reorder -1" in asked and "reorder 0" not in asked and "32 GPUs free" in asked
    review.rigid(9)
    review.round()
    assert [note["waiting"] for note in notes(review)] == [0, 1] and "reorder 1" not in asked


def test_one_that_acts_is_done_behind_those_before_it(world: Callable[..., World]) -> None:
    """The 20 GPUs that the elastic job is to get in the first round are not free for it, though nobody holds them yet;
    nothing is taken back."""
    act = world("toy=act")
    job = act.elastic(1)
    act.settle()
    assert job.gpus == 24 and asked[:2] == ["8 GPUs free", "reorder 0"] and "reorder -1" not in asked
    assert {"ahead": 0} in [event.detail for event in act.store.events.of(0) if event.kind == EventKind.SERVICE]


@pytest.mark.parametrize(("mode", "told", "site", "goes"), [
    ("act", "toy=act", Site(), ACT),
    ("act", "toy=act", Site(checks_qos=True), REVIEW),
    ("act", "toy=review", Site(), REVIEW),
    ("act", "elastic=act", Site(), OFF),
    ("review", "toy=act", Site(), REVIEW),
    ("observe", "toy=act", Site(), OFF),
    ("off", "toy=act", Site(), OFF),
])  # fmt: skip
def test_it_goes_no_further_than_told_than_the_daemon_and_than_the_site_allows(
    mode: str, told: str, site: Site, goes: str
) -> None:
    """The least of the three."""
    assert Toy().mode(Settings(mode=mode, services=(told,)), site) == goes


@pytest.mark.parametrize("where", ["needs", "propose", "explain", "settled", "undo"])
@pytest.mark.parametrize("told", ["toy=act", "toy=review"])
def test_one_that_fails_ends_no_round(
    world: Callable[..., World],
    where: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever it fails at: elastic jobs are resized on, the log and health name it, and they forget it afterwards."""
    broken = world(told)
    job = broken.elastic(1)
    with monkeypatch.context() as patch:
        patch.setattr(Toy, where, lambda *given: {}["n3"])
        broken.settle()
        if (told, where) != ("toy=act", "undo"):  # what acts takes nothing back
            assert "service toy failed; the round goes on without it" in caplog.text and broken.rounds.failed
            health = broken.controller.health()
            # A row is explained once.
            assert where == "explain" or (health.trouble, health.failing) == (True, "service toy")
            assert where == "explain" or broken.rounds.trouble == "service toy: KeyError: 'n3'"
        assert job.gpus == 24
    broken.round()
    assert not broken.controller.health().trouble


def test_the_plan_shows_admins_what_services_say_besides(world: Callable[..., World]) -> None:
    """Of the queue, or a node: as it stands, which the events of job 0 do not say."""
    review = world("toy=review")
    review.rigid(9)
    review.round()
    assert review.controller.notes() == [PlanNote(service="toy", about="queue", text="1 jobs wait")]


def test_elastic_jobs_can_be_reviewed_alone(world: Callable[..., World]) -> None:
    """`elastic=review`: decisions say so, and no resize begins, while the daemon acts."""
    review = world("elastic=review")
    job = review.elastic(1)
    for _ in range(12):
        review.round()
    row = review.store.decisions.last(job.job_id)
    assert row is not None and (row.mode, row.gpus_from) == ("review", 4) and row.gpus_to > 4
    assert job.gpus == 4 and not review.store.resizes.under_way() and review.rounds.mode == "act"


def test_a_service_that_is_not_known_is_refused() -> None:
    """A typing error turns nothing off by silence."""
    with pytest.raises(ConfigError, match="services=elastik is not known; accepted: elastic"):
        registry.Services(Settings(services=("elastik=off",)))


def test_the_simulator_asks_the_same_services(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same order, with what is left."""
    settings = SimulationSettings(8, 4)
    planner = SimulationSettings.planner
    told = lambda self, policy: replace(planner(self, policy), services=("toy=act",))  # noqa: E731
    monkeypatch.setattr(SimulationSettings, "planner", told)
    rows = [TraceJob("rigid", 0.0, "unknown", 4, duration_s=100.0)]
    Elastic(prepare(rows, {}, settings)[0], "auto", settings).run()
    assert asked and all("GPUs free" in one for one in asked)
