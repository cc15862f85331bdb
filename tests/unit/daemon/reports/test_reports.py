"""The reports over a real store: what is known is given as it is, what is not is None, and to whom."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

import pytest

from slurm_elastic.client.commands.status import DEFAULT, FIELDS, SPARE
from slurm_elastic.daemon import reports
from slurm_elastic.db.rows import DecisionRow, JobRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.explain import AddedNodes, Evidence, Explain, OpenResize, OtherMove
from slurm_elastic.protocol.answers.history import CapacityPoint, PlanTable
from slurm_elastic.protocol.answers.record import read
from slurm_elastic.protocol.errors import NotAllowed, NotFound
from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.text import tables


def at(clock: str) -> float:
    """Unix time of a clock on the story's day."""
    return datetime.fromisoformat(f"2026-11-20T{clock}").timestamp()


NOW = at("13:25:00")
SECRET = ("alice", "bob", "resnet", "secret", "n1", "physics", "elastic:", "shrink_for_job")


def by_job(rows: Iterable[Any]) -> dict[int, Any]:
    """Records by job id."""
    return {row.job_id: row for row in rows}


def test_status_of_a_resized_job(story: Store, viewer: Callable[..., Any]) -> None:
    """Size, bounds, batch, throughput and the planner's speedup of the size it has now, not of the one it had."""
    row = by_job(reports.status(story, viewer(1000), NOW))[1215]
    assert (row.gpus, row.nodes, row.node_list, row.batch, row.generation) == (2, 1, "n1", 256, 2)
    assert (row.min_gpus, row.max_gpus, row.target_gpus, row.resize) == (1, 8, 2, None)
    assert (row.samples_per_s, row.speedup, row.elapsed_s) == (496, 1.922, 1500)
    assert (row.reason, row.reason_text) == ("keep_cooldown", "it was resized a short while ago")
    assert row.own is True


def test_a_resize_under_way_gives_target_and_reason(story: Store, viewer: Callable[..., Any]) -> None:
    """An order counts before the last decision, with how far it has come."""
    row = by_job(reports.status(story, viewer(1000), NOW))[1207]
    assert (row.gpus, row.target_gpus, row.target_batch) == (2, 4, 512)
    assert (row.resize, row.reason) == ("submitted", "grow_idle")


def test_speedup_is_measured_or_the_planners_or_unknown(story: Store, viewer: Callable[..., Any]) -> None:
    """What was measured at both sizes counts before the planner's figure, and without either it is None."""
    rows = by_job(reports.status(story, viewer(1000), NOW))
    assert rows[1207].speedup == 1.0
    assert rows[1215].speedup == 1.922
    assert rows[1221].speedup is None
    story.reports.submit(
        1215, [replace(story.reports.last(1215), gpus=1, samples_per_s=248.0, generation=3)], NOW
    ).result()
    assert by_job(reports.status(story, viewer(1000), NOW))[1215].speedup == 2.0


def test_what_nobody_said_is_none(story: Store, viewer: Callable[..., Any]) -> None:
    """A job without a supervisor has no GPUs, batch, throughput or target made up for it."""
    row = by_job(reports.status(story, viewer(1000), NOW))[1221]
    unknown = ("gpus", "nodes", "node_list", "batch", "samples_per_s", "speedup", "target_gpus", "reported_at")
    assert [getattr(row, key) for key in unknown] == [None] * len(unknown)
    assert row.reason == "keep_unregistered"


def test_a_request_that_cannot_be_read_has_no_bounds(story: Store, viewer: Callable[..., Any]) -> None:
    """A malformed request does not stop the report; its sentence is there."""
    row = by_job(reports.status(story, viewer(1001), NOW))[1220]
    assert (row.managed, row.min_gpus, row.max_batch) == (False, None, None)
    assert "minimum above its maximum" in row.detail


def test_ended_jobs_are_not_in_the_status_but_can_be_asked_for(story: Store, viewer: Callable[..., Any]) -> None:
    """status lists what is pending or running; one job's row is there for good."""
    assert 1210 not in by_job(reports.status(story, viewer(1000), NOW))
    row = reports.job(story, 1210, viewer(1000), NOW)
    assert (row.state, row.gpus, row.target_gpus, row.elapsed_s) == ("COMPLETED", None, None, 3610)


@pytest.mark.parametrize("report", ["status", "acct", "plan", "job"])
def test_another_users_rows_keep_id_state_and_gpus_only(report: str, story: Store, viewer: Callable[..., Any]) -> None:
    """No name, node, reason, request or account of another's job leaves the daemon; its columns stay, empty."""
    mallory = viewer(1002)
    rows = {
        "status": lambda: reports.status(story, mallory, NOW),
        "acct": lambda: reports.acct(story, mallory, NOW),
        "plan": lambda: reports.plan(story, mallory).jobs,
        "job": lambda: [reports.job(story, 1215, mallory, NOW)],
    }[report]()
    assert 1215 in by_job(rows)
    for row in rows:
        told = {key for key, value in asdict(row).items() if value is not None}
        assert told <= {"job_id", "task_name", "state", "gpus", "own", "gpus_from", "gpus_to"}
        assert row.own is False
    assert not [word for word in SECRET if word in str(rows)]


@pytest.mark.parametrize("width", [0, 60, 80, 120])
def test_another_users_gpus_stand_under_gpus(width: int, story: Store, viewer: Callable[..., Any]) -> None:
    """Whatever is not said of them, in a terminal of any width: a dash stands for it, and TARGET tells nothing."""
    rows = reports.status(story, viewer(1002), NOW)
    chosen = tables.choose(FIELDS, DEFAULT, None)
    header, *lines = tables.lines(chosen, rows, terminal=width, spare=SPARE)
    known = [row for row in rows if not row.own and row.gpus]
    assert known
    printed = {line.split()[0]: dict(zip(header.split(), line.split(), strict=True)) for line in lines}
    for row in known:
        assert (printed[str(row.job_id)]["GPUS"], printed[str(row.job_id)]["TARGET"]) == (str(row.gpus), "-")


def test_an_admin_sees_everybody(story: Store, viewer: Callable[..., Any]) -> None:
    """Admins get full rows, told apart from their own."""
    rows = by_job(reports.status(story, viewer(0, admin=True), NOW))
    assert rows[1218].name == "secret"
    assert rows[1218].own is False


def test_acct_has_a_row_for_each_size(story: Store, viewer: Callable[..., Any]) -> None:
    """Elapsed time, GPU-hours, steps, samples and pause belong to the size, and the sizes add up to the job."""
    before, after = (row for row in reports.acct(story, viewer(1000), NOW) if row.job_id == 1215)
    assert (before.state, before.gpus, before.nodes, before.batch) == ("RESIZED", 4, 2, 512)
    assert (before.steps, before.samples, before.pause_s) == (1850, 947200, 0)
    assert before.elapsed_s == 1236
    assert before.gpu_hours == pytest.approx(1236 * 4 / 3600)
    assert before.samples_per_s == pytest.approx(947200 / 1236)
    assert (after.state, after.start, after.end) == ("RUNNING", at("13:20:41"), None)
    assert (after.elapsed_s, after.pause_s, after.reason) == (259, 0.8, "shrink_for_job")


def test_acct_of_an_ended_job_has_its_state(story: Store, viewer: Callable[..., Any]) -> None:
    """The last size ends as the job did; without a single report its rate is unknown, not zero."""
    (row,) = reports.acct(story, viewer(1000), NOW, job=[1210])
    assert (row.state, row.elapsed_s, row.gpu_hours) == ("COMPLETED", 3600, 2.0)
    assert row.samples_per_s is None


def test_the_last_size_has_the_jobs_state_whatever_came_first(story: Store, viewer: Callable[..., Any]) -> None:
    """Training may finish before Slurm ends the job; its last size is not one that was left behind."""
    story.allocations.clear_in_use(1215, at("13:24:30"))
    story.jobs.end(1215, "COMPLETED", at("13:24:40"))
    rows = reports.acct(story, viewer(1000), NOW, job=[1215])
    assert [row.state for row in rows] == ["RESIZED", "COMPLETED"]
    (first,) = reports.acct(story, viewer(1000), NOW, job=[1215], end=at("13:10:00"))
    assert first.state == "RESIZED"


def test_a_restart_at_the_same_size_is_told_from_a_resize(story: Store, viewer: Callable[..., Any]) -> None:
    """A new world on the same nodes with the same batch is a restart."""
    story.allocations.note(1215, 3, story.allocations.in_use(1215).pieces, 256, at("13:24:30"), 9.0, "restart")
    rows = reports.acct(story, viewer(1000), NOW, job=[1215])
    assert [row.state for row in rows] == ["RESIZED", "RESTARTED", "RUNNING"]
    assert rows[-1].reason_text == "its supervisor started the workers again, without a resize from the daemon"


@pytest.mark.parametrize(
    ("filters", "jobs"),
    [
        ({"job": [1210, 1207]}, {1207, 1210}),
        ({"user": "alice"}, {1207, 1210, 1215}),
        ({"user": "1000"}, {1207, 1210, 1215}),
        ({"user": "bob"}, set()),
        ({"end": at("12:00:00")}, {1210}),
        ({"start": at("12:00:00")}, {1207, 1215}),
        ({"start": at("11:30:00"), "end": at("12:30:00")}, set()),
    ],
)
def test_acct_filters(filters: dict[str, Any], jobs: set[int], story: Store, viewer: Callable[..., Any]) -> None:
    """Rows that touch the time asked for, of the users and jobs asked for."""
    assert {row.job_id for row in reports.acct(story, viewer(1000), NOW, **filters)} == jobs


def test_acct_by_user_tells_nothing_of_others(story: Store, viewer: Callable[..., Any]) -> None:
    """Asking for another user's jobs by name does not reveal which are theirs."""
    assert reports.acct(story, viewer(1002), NOW, user="alice") == []


def test_explain_finds_the_decision_behind_the_last_resize(story: Store, viewer: Callable[..., Any]) -> None:
    """The cause is the decision that ordered this size, though a younger one now says why the job stays."""
    facts = reports.explain(story, 1215, viewer(1000), NOW)
    last = facts.last_resize
    assert (last.gpus_from, last.gpus_to, last.batch_from, last.batch_to) == (4, 2, 512, 256)
    assert (last.at, last.pause_s) == (at("13:20:41"), 0.8)
    assert (last.cause.reason, last.cause.gain) == ("shrink_for_job", 0.61)
    assert facts.decision.reason == "keep_cooldown"
    assert {(seen.gpus, seen.count) for seen in facts.observations} == {(4, 9), (2, 4)}
    assert facts.sizes == (4, 2)


def test_explain_gives_the_order_under_way(story: Store, viewer: Callable[..., Any]) -> None:
    """What was asked for, how far it has come and what was said about it."""
    facts = reports.explain(story, 1207, viewer(1000), NOW)
    assert facts.resize.cause.reason == "grow_idle"
    assert replace(facts.resize, id=0, cause=None) == OpenResize(
        id=0,
        gpus=4,
        batch=512,
        adds=(AddedNodes(nodes=1, gpus=2),),
        reason="grow_idle",
        reason_text="GPUs were idle and no waiting job could use them",
        wait_s=120,
        state="submitted",
        detail="companion 1222 is pending",
        created=at("13:24:30"),
        updated=at("13:24:31"),
        cause=None,
    )
    assert facts.last_resize is None


def test_explain_and_events_refuse_strangers_and_the_unknown(story: Store, viewer: Callable[..., Any]) -> None:
    """Another user's job is refused and one that never was is not found, each with its number."""
    for ask in (reports.explain, reports.events):
        arguments = (NOW,) if ask is reports.explain else ()
        with pytest.raises(NotAllowed, match="job 1215 belongs to another user"):
            ask(story, 1215, viewer(1001), *arguments)
        with pytest.raises(NotFound, match="job 99 is not known"):
            ask(story, 99, viewer(1001), *arguments)


def test_events_are_oldest_first(story: Store, viewer: Callable[..., Any]) -> None:
    """The timeline reads downwards, each with who and what; a limit keeps the youngest."""
    rows = reports.events(story, 1215, viewer(1000)).events
    assert [(row.kind, row.who) for row in rows] == [("resize_issued", "selasticd"), ("resize_running", "supervisor")]
    assert rows[1].detail == {"generation": 2, "pause_s": 0.8}
    assert [row.kind for row in reports.events(story, 1215, viewer(1000), 1).events] == ["resize_running"]


def test_plan_is_the_last_decision_of_every_active_job(story: Store, viewer: Callable[..., Any]) -> None:
    """One row per job that a round has decided about, and the time of the youngest."""
    plan = reports.plan(story, viewer(1000))
    assert plan.at == at("13:24:40")
    moves = [(row.job_id, row.gpus_from, row.gpus_to) for row in plan.jobs]
    assert moves == [(1207, 2, 4), (1215, 2, 2), (1218, 0, 2)]


def test_an_empty_store_gives_empty_reports(store: Store, viewer: Callable[..., Any]) -> None:
    """A daemon that has seen nothing yet answers, with nothing."""
    assert reports.status(store, viewer(0, admin=True), NOW) == []
    assert reports.acct(store, viewer(0, admin=True), NOW) == []
    assert reports.plan(store, viewer(0, admin=True)) == PlanTable(at=None, jobs=())


def test_every_report_is_json(story: Store, viewer: Callable[..., Any]) -> None:
    """What the reports give can be sent as it is."""
    root = viewer(0, admin=True)
    facts = [reports.explain(story, row.job_id, root, NOW) for row in reports.status(story, root, NOW)]
    made = [*facts, *reports.acct(story, root, NOW), reports.plan(story, root), reports.events(story, 1215, root)]
    made += [report(story, root, NOW, start=at("12:00:00")) for report in (reports.review, reports.usage)]
    for record in made:
        assert read(type(record), json.loads(json.dumps(asdict(record), allow_nan=False))) == record


def told_in(facts: Explain) -> tuple[Evidence, str | None]:
    """The evidence behind the last resize, and why a larger size was not left."""
    cause = facts.last_resize.cause
    return cause.evidence, cause.alternatives[0].why


def test_explain_tells_no_more_of_other_jobs_than_status(store: Store, viewer: Callable[..., Any]) -> None:
    """A job's owner learns what made room: of another's job its id and GPUs, where Slurm hides jobs nothing; an admin
    learns how that job's progress changed too."""
    moved = [
        {"job_id": 7, "gpus_from": 1, "gpus_to": 2, "change": 0.5},
        {"job_id": 8, "gpus_from": 2, "gpus_to": 1, "change": 0.25},
    ]
    waiting = {"for_job": 9, "for_gpus": 4, "for_jobs": [{"job_id": 9, "gpus": 4, "given": 2}]}
    decision = DecisionRow(
        *(7, 5.0, 4, 2, 64, 64, "shrink_for_job", None, None),
        evidence={"others": moved, "idle_gpus": 0, **waiting},
        alternatives=[{"gpus": 3, "batch": 64, "why": "too few would be left for 9 to start"}],
        mechanism="shrink",
        mode="act",
    )
    for job_id, uid in ((7, 1000), (8, 2000)):
        row = JobRow(
            job_id, "x", uid, "n", "a", "p", "elastic:gpus=1-8,batch=64", True, "", "", 1.0, 2.0, None, "RUNNING"
        )
        store.jobs.upsert(row)
    for generation, gpus in ((1, 4), (2, 2)):
        store.allocations.note(
            7, generation, (Piece(7, "base", ("n1",), gpus),), 64, generation * 3.0, 0.0, "shrink_for_job"
        )
    store.decisions.save(5.0, [decision])
    evidence, why = told_in(reports.explain(store, 7, viewer(1000), 9.0))
    assert evidence.others == (OtherMove(**moved[0]), OtherMove(job_id=8, gpus_from=2, gpus_to=1))
    assert evidence.for_job == 9 and why.endswith("for 9 to start")
    evidence, why = told_in(reports.explain(store, 7, viewer(1000, private=True), 9.0))
    assert evidence == Evidence(others=(OtherMove(**moved[0]),), idle_gpus=0, for_jobs=())
    assert why == "too few would be left for waiting jobs to start"
    evidence, _ = told_in(reports.explain(store, 7, viewer(0, admin=True, private=False), 9.0))
    assert evidence.others == tuple(OtherMove(**other) for other in moved)


def test_a_sum_over_one_job_tells_nothing_of_it(story: Store, viewer: Callable[..., Any]) -> None:
    """Asking for the advice on another user's job by its id gives no sum that would be that job's own figures."""
    start = at("12:00:00")
    stranger = reports.review(story, viewer(1002), NOW, start=start, job=[1215])
    assert stranger.cluster.jobs == stranger.acted == stranger.cluster.seconds == 0
    assert reports.review(story, viewer(1002), NOW, start=start).cluster.jobs > 1
    owner = reports.review(story, viewer(1000), NOW, start=start, job=[1215])
    assert owner.cluster.jobs == 1 and owner.acted > 0
    assert reports.review(story, viewer(1002, private=True), NOW, start=start).acted == 0


def test_capacity_is_not_timed_by_hidden_jobs(story: Store, viewer: Callable[..., Any]) -> None:
    """Where Slurm hides jobs the report has no moment at which something was decided about another's."""
    known = {"pool": "gpu", "capacity_gpus": 8}
    row = DecisionRow(1218, at("13:22:00"), 0, 3, 0, 0, "waiting", None, None, known, mode="act")
    story.decisions.save(row.at, [row])
    start = at("12:00:00")
    assert reports.usage(story, viewer(1002), NOW, start=start).capacity == (CapacityPoint(at=row.at, gpus=8.0),)
    assert reports.usage(story, viewer(1002, private=True), NOW, start=start).capacity == ()


def test_the_daemons_own_events_are_for_admins(story: Store, viewer: Callable[..., Any]) -> None:
    """What job 0 stands for: starts, and why Slurm's refusals made it fall back."""
    story.events.add(0, "tripped", "selasticd", {"why": "Access denied"}, NOW)
    assert reports.events(story, 0, viewer(0, admin=True)).events[0].detail == {"why": "Access denied"}
    with pytest.raises(NotAllowed, match="admins only"):
        reports.events(story, 0, viewer(1000))
