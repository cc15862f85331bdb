"""What supervisors may say, and what they are answered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from daemon_harness import REQUEST, USER, World
from fake_slurm import Component

from slurm_elastic.client.explanation.sections import checkpoints, next_steps
from slurm_elastic.daemon.api.metrics import Metrics
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.daemon.reports.explain import explain
from slurm_elastic.daemon.reports.status import status
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.protocol.answers.record import columns
from slurm_elastic.protocol.answers.status import JobStatus
from slurm_elastic.protocol.codec import VERSION
from slurm_elastic.protocol.codes import ResizeState
from slurm_elastic.protocol.errors import NotAllowed, NotFound
from slurm_elastic.protocol.messages import (
    ENDING,
    Happening,
    Piece,
    Rate,
    Registration,
    Resize,
    Unreached,
)


def registration(*pieces: Piece, request: str = "") -> Registration:
    return Registration(VERSION, 0, pieces, 240, "train.py", request)


def test_an_unknown_job_cannot_register(world: World) -> None:
    """Slurm says which jobs there are."""
    with pytest.raises(NotFound, match="no job 99"):
        world.register(99, registration())


def test_a_job_without_a_request_is_told_how_to_ask(world: World) -> None:
    """It trains at the size it has."""
    job = world.slurm.submit(Component(1, 4), user="games")
    grant = world.register(job, registration(Piece(job, "base", ("n1",), 4)))
    assert not grant.managed and "--comment=elastic:" in grant.reason
    assert world.store.jobs.get(job) is None


def test_a_request_of_the_supervisor_makes_the_job_elastic_for_good(tmp_path: Path) -> None:
    """Also after the daemon was started again, when nothing but the store remembers it."""
    world = World(tmp_path, supervisor_requests=True)
    job = world.slurm.submit(Component(1, 4), user="games")
    grant = world.register(job, registration(Piece(job, "base", ("n1",), 4), request=REQUEST))
    assert grant.managed
    world.boot()
    world.rounds.run()
    row = world.store.jobs.get(job)
    assert row is not None and row.managed
    world.store.close()


def test_a_request_that_the_sites_rules_have_not_seen_counts_where_the_site_has_it_so(tmp_path: Path) -> None:
    """Not in place of the comment's either, nor after a restart with the setting changed."""
    world = World(tmp_path, supervisor_requests=True)
    seen = world.slurm.submit(Component(1, 4), user="games", comment="elastic:gpus=4-8,batch=256")
    unseen = world.slurm.submit(Component(1, 4), user="games")
    before = world.slurm.submit(Component(1, 4), user="games")
    assert world.register(before, registration(Piece(before, "base", ("n3",), 4), request=REQUEST)).managed
    world.rounds.run()
    world.settings = replace(world.settings, supervisor_requests=Settings().supervisor_requests)
    world.boot()
    world.rounds.run()
    assert list(world.registry.sort(world.snapshot()).elastic) == [seen]
    grant = world.register(unseen, registration(Piece(unseen, "base", ("n2",), 4), request=REQUEST))
    assert not grant.managed and "not in its comment does not count here" in grant.reason
    grant = world.register(seen, registration(Piece(seen, "base", ("n1",), 4), request=REQUEST))
    assert grant.managed and grant.request == "elastic:gpus=4-8,batch=256"
    world.store.close()


@pytest.mark.parametrize("open_to", [{"partitions": ("other",)}, {"accounts": ("other",)}])
def test_a_supervisors_request_is_held_to_the_settings(tmp_path: Path, open_to: dict[str, tuple[str, ...]]) -> None:
    """As one in the comment is."""
    world = World(tmp_path, supervisor_requests=True, **open_to)
    job = world.slurm.submit(Component(1, 4), user="games")
    grant = world.register(job, registration(Piece(job, "base", ("n1",), 4), request=REQUEST))
    assert not grant.managed and "is not open to elastic jobs" in grant.reason
    world.store.close()


def test_a_request_that_does_not_fit_is_answered_with_its_sentence(world: World) -> None:
    """The supervisor prints it where the user looks."""
    job = world.slurm.submit(Component(1, 4), user="games", comment="elastic:gpus=8-16,batch=256")
    grant = world.register(job, registration(Piece(job, "base", ("n1",), 4)))
    assert not grant.managed and "starts with 4 GPUs" in grant.reason


@pytest.mark.parametrize(("asked", "unit"), [("gpus=4-8", ""), ("gpus=4-8,batch=256", "tasks")])
def test_a_request_without_a_batch_is_for_selastic_hold_alone(world: World, asked: str, unit: str) -> None:
    """And one with a batch is not for it: the job keeps its size, and says why."""
    job = world.slurm.submit(Component(1, 4), user="games", comment=f"elastic:{asked}")
    other = replace(registration(Piece(job, "base", ("n1",), 4)), unit=unit)
    grant = world.register(job, other)
    assert not grant.managed and "is not for this; accepted: one with" in grant.reason
    assert world.register(job, replace(other, unit="" if unit else "tasks")).managed


def test_pieces_of_another_user_are_refused(world: World) -> None:
    """A supervisor cannot claim what is not its user's: it would be counted, and released."""
    job = world.slurm.submit(Component(1, 4), user="games", comment=REQUEST)
    other = world.slurm.submit(Component(1, 4), user="nobody")
    pieces = (Piece(job, "base", ("n1",), 4), Piece(other, "companion", ("n2",), 4))
    with pytest.raises(NotAllowed, match=f"piece {other}"):
        world.register(job, registration(*pieces))
    assert world.store.allocations.in_use(job) is None
    supervisor = world.elastic()
    supervisor.step()
    with pytest.raises(NotAllowed, match=f"piece {other}"):
        world.controller.happened(supervisor.job_id, Happening(0, "running", 1, pieces, 240, world.slurm.now))


def test_nothing_is_resized_while_one_does_not_understand_the_other(world: World) -> None:
    """The open resize fails, nothing is released or begun, and it is said once; a registration without a refusal ends
    that."""
    job = world.elastic()
    job.step()
    world.rounds.run()
    opened = world.store.resizes.of(job.job_id)
    assert opened is not None
    for sentence in ("Phase.batch: 'x' is not accepted", "and again"):
        world.controller.not_understood(job.job_id, sentence)
    assert world.store.resizes.get(opened.id).state == ResizeState.FAILED
    piece = Piece(job.job_id, "base", ("n1",), 4, "a100")
    refusing = replace(registration(piece), refusal="Resize.gpus: 'four' is not accepted")
    for _ in range(2):
        world.register(job.job_id, refusing)
    world.slurm.now += 3600
    for _ in range(3):
        world.rounds.run()
    kinds = [event.kind for event in world.store.events.of(job.job_id)]
    assert (kinds.count("not_understood"), kinds.count("resize_issued"), kinds.count("registered")) == (1, 1, 1)
    decision = world.store.decisions.last(job.job_id)
    assert decision is not None and decision.reason == "keep_not_understood"
    told = explain(world.store, job.job_id, Viewer(0, admin=True), world.slurm.now)
    assert told.not_understood == "Resize.gpus: 'four' is not accepted"
    world.register(job.job_id, registration(piece))
    world.rounds.run()
    assert world.store.resizes.of(job.job_id) is not None


def test_a_job_that_could_not_register_says_so_once(world: World) -> None:
    """Its supervisor tries again and again."""
    job = world.slurm.submit(Component(1, 4), user="games", comment=REQUEST)
    world.rounds.run()
    for _ in range(3):
        world.controller.not_understood(job, "Registration: version 1 of the messages is not spoken any more")
    kinds = [event.kind for event in world.store.events.of(job)]
    assert kinds.count("not_understood") == 1
    told = explain(world.store, job, Viewer(0, admin=True), world.slurm.now)
    assert told.not_understood.startswith("Registration: version 1")


def test_where_a_training_hangs_is_told_until_it_goes_on(world: World) -> None:
    """Its supervisor says so beside any resize, which it changes nothing of."""
    job = world.elastic()
    job.step()
    world.rounds.run()
    opened = world.store.resizes.of(job.job_id)
    assert opened is not None
    pieces, said = (Piece(job.job_id, "base", ("n1",), 4, "a100"),), "no step for 63 s: rank 1 on n1 is at t.py line 7"

    def told() -> str:
        return explain(world.store, job.job_id, Viewer(0, admin=True), world.slurm.now).stalled

    for _ in range(2):
        world.controller.happened(job.job_id, Happening(0, "stalled", 1, pieces, 240, world.slurm.now, detail=said))
        assert told() == said
        world.controller.happened(job.job_id, Happening(0, "steps_again", 1, pieces, 240, world.slurm.now))
        assert told() == ""
    assert world.store.resizes.get(opened.id).state == opened.state
    kinds = [event.kind for event in world.store.events.of(job.job_id)]
    assert (kinds.count("stalled"), kinds.count("steps_again")) == (2, 2)


@pytest.mark.parametrize(("said", "counts"), [(1e9, 30.0), (20.0, 20.0)])
def test_no_pause_is_longer_than_slurm_ran_the_job(world: World, said: float, counts: float) -> None:
    """A supervisor that says so is not believed: means and accounts would hold it for ever."""
    job = world.elastic()
    job.step()
    world.slurm.now += 30.0
    pieces = (Piece(job.job_id, "base", ("n1",), 4, "a100"),)
    world.controller.happened(job.job_id, Happening(0, "running", 7, pieces, 480, world.slurm.now, pause_s=said))
    assert [row.pause_s for row in world.store.allocations.rows(job.job_id)][-1] == counts


def test_a_pin_ends_the_wait_after_a_failure(tmp_path: Path) -> None:
    """Its owner knows of it: a resize that failed holds a later pin to the same size no longer back."""
    world = World(tmp_path, failed_backoff_s=600.0)
    job = world.elastic()
    job.step()
    world.store.jobs.pin(job.job_id, 8)
    world.rounds.run()
    opened = world.store.resizes.of(job.job_id)
    assert opened is not None and opened.gpus == 8
    pieces = (Piece(job.job_id, "base", ("n1",), 4, "a100"),)
    world.controller.happened(job.job_id, Happening(opened.id, "failed", 1, pieces, 240, world.slurm.now, detail="no"))
    for pinned_again in (False, True):
        world.slurm.now += 1
        if pinned_again:
            world.store.events.add(job.job_id, "pinned", USER, {"gpus": 8}, world.slurm.now)
        world.rounds.run()
        again = world.store.resizes.of(job.job_id)
        assert (again is not None and again.gpus == 8) == pinned_again
    world.store.close()


def test_a_training_that_stands_still_is_a_state_of_its_job(world: World) -> None:
    """Since its last step, by the clock of whoever asks, with no throughput; also after the daemon was started again,
    before its supervisor has spoken, which is planned with as soon as it has. A new world ends it."""
    job = world.elastic()
    job.step()
    job.report()
    world.rounds.run()
    job_id, pieces = job.job_id, (Piece(job.job_id, "base", ("n1",), 4, "a100"),)
    world.slurm.now += 100
    began = world.slurm.now
    said = "no step for 63 s: rank 1 on n1 is at t.py line 7"
    world.controller.happened(job_id, Happening(0, "stalled", 1, pieces, 240, began, pause_s=1e9, detail=said))
    (row,) = status(world.store, Viewer(0, admin=True), began)
    assert row.stalled_since == row.start_time  # it is not believed for longer than Slurm ran the job
    world.controller.happened(job_id, Happening(0, "stalled", 1, pieces, 240, began, pause_s=63.0, detail=said))
    world.boot()
    woken: list[str] = []
    world.controller.wake = woken.append  # type: ignore[method-assign]
    world.slurm.now += 300
    world.rounds.run()
    viewer = Viewer(0, admin=True)
    (row,) = status(world.store, viewer, world.slurm.now)
    assert (row.stalled_since, row.samples_per_s, row.reason) == (began - 63, 0.0, "keep_stalled")
    (shown,) = [field for field in columns(JobStatus) if field.name == "Stalled"]
    assert shown.text(row) == "6:03"
    assert explain(world.store, job_id, viewer, world.slurm.now).stalled.startswith("no step for 363 s: rank 1")
    metrics = Metrics(world.store, world.rounds).exposition(of_jobs=True).decode()
    assert "slurm_elastic_jobs_stalled 1.0" in metrics
    for _ in range(2):
        world.controller.heard(job_id, 0)
    assert woken == ["heard"]
    world.controller.happened(job_id, Happening(0, "running", 2, pieces, 240, world.slurm.now))
    (row,) = status(world.store, viewer, world.slurm.now)
    assert row.stalled_since is None and row.reason != "keep_stalled"


def test_a_job_that_is_about_to_end_is_ordered_nothing(world: World) -> None:
    """Until its supervisor registers anew, as after a requeue."""
    job = world.elastic()
    job.step()
    job.report()
    pieces = (Piece(job.job_id, "base", ("n1",), 4, "a100"),)
    world.controller.happened(job.job_id, Happening(0, ENDING, 1, pieces, 240, world.slurm.now))
    world.rounds.run()
    assert world.store.resizes.of(job.job_id) is None
    (row,) = status(world.store, Viewer(0, admin=True), world.slurm.now)
    assert row.reason == "keep_ending" and world.store.events.of(job.job_id)[-1].kind == "ending"
    world.register(job.job_id, registration(*pieces))
    world.rounds.run()
    assert world.store.resizes.of(job.job_id) is not None


def test_a_job_is_told_how_long_nodes_last_and_says_how_often_it_saves(world: World) -> None:
    """The answer to a registration counts the starts again of its partition; what a checkpoint costs is no event, and
    is explained with its interval."""
    job_id = world.slurm.submit(Component(1, 4), user="games", comment=REQUEST)
    pieces = (Piece(job_id, "base", ("n1",), 4),)
    assert world.register(job_id, registration(*pieces)).node_failure_s == 0.0
    world.rounds.run()
    for generation in (1, 2):
        world.slurm.now += 4000.0
        world.controller.happened(job_id, Happening(0, "running", generation, pieces, 240, world.slurm.now))
    grant = world.register(job_id, replace(registration(*pieces), generation=2))
    assert 2000.0 <= grant.node_failure_s <= 8000.0
    before = len(world.store.events.of(job_id))
    cost = {"pause_s": 0.25, "megabytes": 312.0, "write_s": 4.0, "every_s": 75.0}
    world.controller.rated(job_id, Rate("checkpoints", **cost))
    assert len(world.store.events.of(job_id)) == before
    said = checkpoints(explain(world.store, job_id, Viewer(0, admin=True), world.slurm.now))
    assert said.startswith(
        "one every 75 s; it costs 0.25 s of training, and 4 s of writing beside it, 312 MB; a node of"
    )


def test_a_request_that_is_changed_is_told(world: World) -> None:
    """By `scontrol update comment=`, while the job runs."""
    job = world.elastic()
    world.rounds.run()
    before = world.store.jobs.get(job.job_id)
    world.slurm.client(USER).set_comment(job.job_id, "elastic:gpus=4-8,batch=64-128")
    for _ in range(2):
        world.rounds.run()
    [event] = [event for event in world.store.events.of(job.job_id) if event.kind == "request"]
    assert before is not None and event.detail == {
        "request": "elastic:gpus=4-8,batch=64-128",
        "before": before.request,
    }


def test_a_resize_is_handed_out_while_it_can_be_carried_out(world: World) -> None:
    """Open: yes. Switched already: no. Withdrawn: told for a while, to the one who took it."""
    job = world.elastic()
    world.round()
    world.rounds.run()
    resize = world.controller.resize(job.job_id)
    assert resize is not None and not resize.withdrawn
    world.store.resizes.advance(resize.id, ResizeState.WITHDRAWN, "test", at=world.slurm.now)
    taken_back = world.controller.resize(job.job_id)
    assert taken_back == replace(resize, withdrawn=True)
    world.slurm.now += 61
    assert world.controller.resize(job.job_id) is None


def test_a_waiting_supervisor_hears_at_once(world: World) -> None:
    """The long poll answers when the order is given, not when its time is over."""
    job = world.elastic()
    job.step()

    async def poll() -> object:
        waiting = asyncio.create_task(world.controller.wait_resize(job.job_id, 0, 60))
        while not world.waiters._waiting:
            await asyncio.sleep(0.001)
        await asyncio.get_running_loop().run_in_executor(None, world.rounds.run)
        return await asyncio.wait_for(waiting, 10)

    resize = asyncio.run(poll())
    assert resize is not None
    assert world.waiters._waiting == {}


def test_a_supervisor_that_knows_later_resizes_hears_of_the_next_one(world: World) -> None:
    """After a restored database it registers again, and the id it asked with raises those that follow."""
    job = world.elastic()
    job.step()
    with pytest.raises(NotAllowed, match="resize 500 of job 1 is not in the database"):
        asyncio.run(world.controller.wait_resize(job.job_id, 500, 0.0))
    world.rounds.run()
    assert world.store.resizes.of(job.job_id) is None  # what it trains on is not known
    job.register()
    world.rounds.run()
    told = asyncio.run(world.controller.wait_resize(job.job_id, 500, 5))
    assert told is not None and told.id == 501


def test_a_resize_with_a_number_that_its_supervisor_knows_is_withdrawn(world: World) -> None:
    """It was begun before the first supervisor spoke; nobody would ever take it."""
    job = world.elastic()
    job.step()
    world.rounds.run()
    begun = world.store.resizes.of(job.job_id)
    assert begun is not None
    with pytest.raises(NotAllowed):
        world.controller.heard(job.job_id, begun.id + 5)
    assert world.store.resizes.get(begun.id).state == ResizeState.WITHDRAWN
    assert world.store.resizes.of(job.job_id) is None


def test_a_resize_already_seen_is_waited_past(world: World) -> None:
    """Nothing new within the time: no answer. Its withdrawal is new."""
    job = world.elastic()
    job.step()
    world.rounds.run()
    seen = world.controller.resize(job.job_id)
    assert seen is not None
    assert asyncio.run(world.controller.wait_resize(job.job_id, seen.id, 0.05)) is None
    world.store.resizes.advance(seen.id, ResizeState.WITHDRAWN, "test", at=world.slurm.now)
    told = asyncio.run(world.controller.wait_resize(job.job_id, seen.id, 5))
    assert told is not None and told.withdrawn
    assert asyncio.run(world.controller.wait_resize(job.job_id, 0, 0.05)) is None


def test_many_who_ask_for_an_unknown_job_share_few_snapshots(world: World) -> None:
    """Asking for what is not there costs Slurm little."""
    world.round()
    taken = []
    look = world.jobs._client.snapshot
    world.jobs._client.snapshot = lambda: taken.append(1) or look()  # type: ignore[method-assign,func-returns-value]
    for _ in range(5):
        assert world.controller.owner(12345, 5) is None
    assert len(taken) <= 5
    job = world.slurm.submit(Component(1, 4), user="games")
    world.slurm.now += 1
    assert world.controller.owner(job, 6) == (5, "games")


def test_what_a_job_trains_on_is_not_looked_up(world: World) -> None:
    """However often it names pieces that do not exist, at registration and later: Slurm is asked nothing."""
    job = world.elastic()
    world.round()
    world.round()
    asked: list[int] = []
    world.jobs._client.snapshot = lambda: asked.append(1)  # type: ignore[method-assign,assign,func-returns-value]
    pieces = (*job.pieces, Piece(77, "companion", ("n8",), 4))
    for generation in range(20):
        world.slurm.now += 1.0
        world.controller.registered(job.job_id, registration(*pieces))
        world.controller.happened(job.job_id, Happening(0, "running", generation, pieces, 240, world.slurm.now))
    assert not asked


def test_hosts_that_fail_a_job_three_times_are_not_put_together_again(world: World) -> None:
    """`explain` names both, the address and until when; a job that trains on both ends it. Of hosts that Slurm does not
    know nothing is kept."""
    job = world.elastic()
    job.step()
    world.rounds.run()
    piece, now = job.pieces, world.slurm.now
    own = piece[0].nodes[0]
    far = next(name for name in sorted(world.snapshot().nodes) if name != own)
    for number in range(3):
        order = Resize(0, job.job_id, piece, (), 4, 240, "grow_idle", 60.0)
        resize = world.store.resizes.of(job.job_id) or world.store.resizes.begin(order, now)
        unreached = (Unreached(far, own, "10.0.0.1"), Unreached("no-such-host", own, "10.0.0.9"))
        failed = Happening(resize.id, "failed", 0, piece, 240, now, detail="no way", unreached=unreached)
        assert explain(world.store, job.job_id, Viewer(0, admin=True), now).hosts_apart == (), number
        assert world.controller.health().pairs_left_out == 0
        world.controller.happened(job.job_id, failed)
    [apart] = explain(world.store, job.job_id, Viewer(0, admin=True), now).hosts_apart
    assert ({apart.host, apart.other}, apart.address, apart.failures) == ({own, far}, f"{own} at 10.0.0.1", 3)
    assert apart.again_at == now + 3600 and world.controller.health().pairs_left_out == 1
    said = next_steps(explain(world.store, job.job_id, Viewer(0, admin=True), now))
    assert any(f"do not reach each other ({own} at 10.0.0.1): not put on both before" in line for line in said), said
    assert any(f"selastic hosts --clear {apart.host},{apart.other}" in line for line in said), said
    world.slurm.now += 700  # the time after a failure is over
    world.rounds.run()
    begun = world.store.resizes.of(job.job_id)
    assert begun is not None and all(far not in shape.node_list for shape in begun.add)
    both = (*piece, Piece(job.job_id, "companion", (far,), 4))
    world.controller.happened(job.job_id, Happening(0, "running", 1, both, 240, world.slurm.now))
    assert world.store.host_pairs.all() == ()
