"""The service `queue` in a daemon on a Slurm in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from daemon_harness import World, settings
from fake_slurm import Component, FakeClient

from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.daemon.services.queue.service import LEARN_FROM_S
from slurm_elastic.daemon.slurm.accounting import EndedJob
from slurm_elastic.daemon.slurm.model import Job
from slurm_elastic.protocol.codes import EventKind
from slurm_elastic.protocol.errors import NotFound, SlurmRefused


def world(tmp_path: Path, *services: str, multifactor: bool = True, **more: object) -> World:
    """A cluster that is full, with an hour-long and a minute-long program in its accounting."""
    found = World(tmp_path, services=services, site_interval_s=1.0, **more)
    found.slurm.multifactor = multifactor
    for name, seconds in (("long", 3600.0), ("short", 60.0)):
        found.slurm.ended_jobs.append(EndedJob("nobody", name, 4, 4, seconds, found.slurm.now - 2 * 86400))
    found.rigid(8, name="long")
    return found


def learn(world: World) -> None:
    for _ in range(round(LEARN_FROM_S / 86400) + 2):
        world.round()


def test_who_needs_less_gets_more_priority_and_gives_it_back(tmp_path: Path) -> None:
    """Nothing before all is read; then each waiting job once, also after a restart; off, all of it is taken back."""
    acts = world(tmp_path, "queue=act")
    long, short = acts.rigid(1, name="long"), acts.rigid(1, name="short")
    acts.round()
    assert not acts.slurm.site_factors
    learn(acts)
    factors = dict(acts.slurm.site_factors)
    assert set(factors) == {long, short} and factors[short] > factors[long] > 0
    acts.boot()
    learn(acts)
    for job_id in factors:
        asked = [event for event in acts.store.events.of(job_id) if event.kind == EventKind.PRIORITIZE]
        assert [event.detail["factor"] for event in asked] == [factors[job_id]]
    acts.settings = settings()
    acts.boot()
    acts.round()
    assert acts.slurm.site_factors == {long: 0, short: 0}


def test_what_slurm_refuses_to_take_back_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a daemon that was started again in between."""
    acts = world(tmp_path, "queue=act")
    job = acts.rigid(1, name="short")
    learn(acts)
    assert acts.slurm.site_factors[job] > 0
    acts.settings = settings()

    def refuses(_: FakeClient, job_id: int, factor: int) -> None:
        raise SlurmRefused(f"Slurm refused to change job {job_id}: Access/permission denied")

    with monkeypatch.context() as site:
        site.setattr(FakeClient, "set_site_factor", refuses)
        acts.boot()
        acts.round()
    acts.boot()
    for _ in range(2):
        acts.round()
    assert acts.slurm.site_factors == {job: 0}
    asked = [event for event in acts.store.events.of(job) if event.kind == EventKind.PRIORITIZE]
    assert len(asked) == 3


def test_held_jobs_and_companions_are_left_alone(tmp_path: Path) -> None:
    """And those that have to wait for others."""
    acts = world(tmp_path, "queue=act")
    acts.rigid(1, name="short", reason="JobHeldUser")
    acts.rigid(1, name="short", reason="Dependency")
    acts.rigid(1, name="selastic-12")
    learn(acts)
    assert not acts.slurm.site_factors
    first = acts.slurm.submit(Component(1, 4), Component(1, 4), user="nobody", name="short")
    acts.round()
    assert set(acts.slurm.site_factors) == {first}


@pytest.mark.parametrize(("told", "multifactor"), [("queue=review", True), ("queue=act", False)])
def test_a_review_says_what_it_would_bring(tmp_path: Path, told: str, multifactor: bool) -> None:
    """So it does where the site lacks what it needs; nothing is written."""
    reviews = world(tmp_path, told, multifactor=multifactor)
    first, second = reviews.rigid(1, name="long"), reviews.rigid(1, name="short")
    learn(reviews)
    reviews.slurm.now += 601
    reviews.round()
    assert not reviews.slurm.site_factors
    said = [event.detail for event in reviews.store.events.of(0) if event.detail.get("service") == "queue"]
    assert said and said[-1]["jobs"] == 2
    found = reviews.controller.queue(Viewer(0, admin=True))
    assert found.mode == "review" and ("multifactor" in found.lacks) == (not multifactor)
    assert [job.job_id for job in found.jobs] == [second, first]
    for job in found.jobs:
        assert job.start and job.earliest and job.latest and job.earliest <= job.start <= job.latest
    mean_s = sum(job.start - found.at for job in found.jobs if job.start) / 2
    alone_s = sum(job.alone - found.at for job in found.jobs if job.alone) / 2
    assert mean_s <= alone_s


def test_of_others_jobs_no_more_is_shown_than_slurm_would(tmp_path: Path) -> None:
    """Their ids and sizes; with PrivateData=jobs nothing. Off: one sentence."""
    reviews = world(tmp_path, "queue=review")
    reviews.rigid(1, name="long")
    learn(reviews)
    (row,) = reviews.controller.queue(Viewer(1234)).jobs
    assert row.gpus == 4 and row.name is None and row.user is None and row.left_s is None
    assert not reviews.controller.queue(Viewer(1234, private=True)).jobs
    reviews.settings = settings()
    reviews.boot()
    reviews.round()
    with pytest.raises(NotFound, match="service queue is off"):
        reviews.controller.queue(Viewer(0))


def test_when_one_more_job_would_start_is_foretold(tmp_path: Path) -> None:
    """Behind those that wait, within bounds; one for which there is never room is not; off, nobody is asked."""
    review = world(tmp_path, "queue=review")
    review.rigid(8, name="long")
    learn(review)
    ground = review.controller.ground()
    assert ground.would_start is not None
    now = review.slurm.now
    like = Job(0, "PENDING", "nobody", 65534, partition="main", num_nodes=1, gpus=4, gpus_per_node=4)
    moments = sorted(ground.would_start(like, 60.0))
    assert len(moments) == 3 and moments[1] - now > 3000
    assert ground.would_start(replace(like, num_nodes=9, gpus=36), 60.0) == ()
    review.settings = settings()
    review.boot()
    review.round()
    assert review.controller.ground().would_start is None
