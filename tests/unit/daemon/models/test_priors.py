"""What the daemon believes of jobs before it measures them: learned from its own history, kept, and told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from daemon_harness import World
from fresh_store import fresh_store
from waiting import wait_until

from slurm_elastic.daemon.models.cache import observation
from slurm_elastic.daemon.models.priors import SHIPPED, Priors, learned, program_of
from slurm_elastic.daemon.optimizer.models.prior import DEFAULT, from_plain
from slurm_elastic.daemon.optimizer.models.step_time import parameters, step_time
from slurm_elastic.daemon.optimizer.models.throughput import fit
from slurm_elastic.daemon.selasticd.daemon import Daemon, Scheduler
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.db.rows import JobRow, ObservationRow, PriorRow, RunRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.messages import Report

JOB = JobRow(7, "ada", 1000, "t", "lab", "gpu", "", True, "", "", 1.0, 2.0, None, "RUNNING")
CHATTY = (-1.4, -0.3, -1.0, -3.0, 0.8, -2.0, -3.0)
"""A program that waits for its network as no public profile does."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with fresh_store(f"sqlite:///{tmp_path / 'a.db'}") as opened:
        yield opened


def chatty(gpus: int, nodes: int, micro: int = 64) -> ObservationRow:
    """What twenty reports of the chatty program at one size come to."""
    seconds = 0.4 * step_time(parameters(CHATTY), gpus, nodes, micro / 64, 1)
    return ObservationRow(gpus, nodes, gpus * micro, micro, 1, 20, seconds, gpus * micro / seconds, 9.0)


def run(job_id: int, program: str = "ada:chatty.py", gpu_type: str = "a100") -> RunRow:
    """A job that was seen from one GPU to sixteen on four nodes."""
    return RunRow(job_id, program, gpu_type, tuple(chatty(k, n) for k, n in ((1, 1), (4, 1), (8, 2), (16, 4))))


def seconds_at_sixteen(row: PriorRow | None) -> float:
    """Predicted step time on 16 GPUs of 4 nodes from a report on one GPU."""
    prior = from_plain(row.prior) if row is not None else DEFAULT
    return fit([observation(chatty(1, 1))], prior).step_time(16, 4, 16 * 64)


def test_a_second_run_of_a_program_is_known_before_it_is_measured() -> None:
    """After three runs one report on one GPU predicts four nodes to 46 %, where the shipped prior is off by 60."""
    rows = {(row.program, row.gpu_type): row for row in learned([run(1), run(2), run(3)], 5.0)}
    truth = chatty(16, 4).step_time
    assert rows["ada:chatty.py", "a100"].runs == 3
    assert abs(seconds_at_sixteen(rows["ada:chatty.py", "a100"]) / truth - 1) < 0.46
    assert abs(seconds_at_sixteen(None) / truth - 1) > 0.6


def test_one_program_does_not_speak_for_the_cluster() -> None:
    """Thirty runs of one program move the cluster's prior no more than one run does; its own prior moves much more."""
    truth, shipped = chatty(16, 4).step_time, seconds_at_sixteen(None)
    moved = []
    for count in (1, 30):
        cluster, own = learned([run(i) for i in range(count)], 5.0)
        assert (cluster.program, cluster.runs, own.program) == ("", count, "ada:chatty.py")
        moved.append((seconds_at_sixteen(cluster) - shipped) / (truth - shipped))
    assert 0 < moved[0] < 0.2 and 0 < moved[1] < 0.2
    assert (seconds_at_sixteen(own) - shipped) / (truth - shipped) > 0.8


def test_nothing_is_learned_from_nothing() -> None:
    """No runs, and runs that measured nothing, give no prior: the shipped one stays."""
    assert learned([], 5.0) == []
    assert learned([replace(run(1), observations=(replace(chatty(1, 1), step_time=0.0),))], 5.0) == []


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("train.py --epochs 90", "ada:train.py"),
        ("/opt/venv/bin/python3 -u /home/ada/train.py --lr 0.1", "ada:/home/ada/train.py"),
        ("python -m pkg.train --lr 0.1", "ada:pkg.train"),
        ("", ""),
        ("python", ""),
    ],
)
def test_a_program_is_its_user_and_script(command: str, program: str) -> None:
    """A sweep over arguments is one program; another user's script of the same name is another."""
    assert program_of("ada", command) == program


def ended(store: Store, job_id: int, end: float, program: str = "ada:chatty.py") -> None:
    """A job that ran, was measured at two sizes, and is over."""
    store.jobs.upsert(replace(JOB, job_id=job_id))
    store.programs.note(job_id, program, "a100")
    rows = [chatty(1, 1), chatty(8, 2)]
    reports = [
        Report(1, end - 9 + i, r.gpus, r.nodes, r.batch, r.micro_batch, 1, 9, r.step_time, r.step_time,
               r.samples_per_s, i, i, 0) for i, r in enumerate(rows)
    ]  # fmt: skip
    store.reports.submit(job_id, reports, end).result()
    store.jobs.end(job_id, "COMPLETED", end)


def test_runs_are_the_ended_jobs_with_all_that_was_measured(store: Store) -> None:
    """The youngest come first; a job that still runs is no evidence of itself; rolled-up reports still count."""
    for number, end in ((1, 100.0), (2, 300.0), (3, 200.0)):
        ended(store, number, end)
    store.jobs.upsert(replace(JOB, job_id=4))
    store.programs.note(4, "ada:chatty.py", "a100")
    store.retention.roll_up(1e6)
    assert [found.job_id for found in store.programs.runs(9)] == [2, 3, 1]
    assert [found.job_id for found in store.programs.runs(2)] == [2, 3]
    first = store.programs.runs(1)[0]
    assert (first.program, first.gpu_type) == ("ada:chatty.py", "a100")
    assert [(seen.gpus, seen.nodes) for seen in first.observations] == [(1, 1), (8, 2)]


def test_what_was_learned_survives_a_restart(store: Store) -> None:
    """A job of a known program gets its program's prior, one of another the cluster's, from a fresh start too."""
    assert Priors(store).of_job(7) is SHIPPED
    for number in range(1, 4):
        ended(store, number, 100.0 * number)
    store.jobs.upsert(JOB)
    store.programs.note(7, "ada:chatty.py", "a100")
    store.jobs.upsert(replace(JOB, job_id=8))
    store.programs.note(8, "ada:chatty.py", "h100")
    priors = Priors(store, lambda: 1000.0)
    assert priors.due()
    assert priors.learn()
    assert not priors.due()
    for one in (priors, Priors(store, lambda: 1000.0 + 2 * 86400)):
        assert one.of_job(7).words == "3 earlier runs of chatty.py on a100"
        assert one.of_job(8).words == one.of_job(99).words == "3 earlier runs of this cluster"
        assert one.of_job(7).prior != one.of_job(8).prior != DEFAULT
        assert one.summary()["programs"] == 1
    assert one.due()


def test_a_program_is_learned_soon_after_one_of_its_runs(store: Store) -> None:
    """What has just ended counts for the next run of the same program without the night's learning, survives a restart,
    and leaves the cluster's prior and other programs' as they were; without news nothing changes."""
    ended(store, 1, 50.0, "ada:other.py")
    assert Priors(store, lambda: 100.0).learn()
    clock = [1000.0]
    priors = Priors(store, lambda: clock[0])
    cluster = priors.of_job(99)
    store.jobs.upsert(replace(JOB, job_id=7))
    store.programs.note(7, "ada:chatty.py", "a100")
    store.jobs.upsert(replace(JOB, job_id=8))
    store.programs.note(8, "ada:other.py", "a100")
    other = priors.of_job(8)
    assert not priors.learn_ended() and priors.of_job(7) is cluster
    ended(store, 2, 1010.0)
    clock[0] = 1060.0
    assert priors.learn_ended()
    for one in (priors, Priors(store, lambda: 1060.0)):
        assert one.of_job(7).words == "1 earlier run of chatty.py on a100"
        assert one.of_job(99).prior == cluster.prior and one.of_job(8).prior == other.prior
    known, clock[0] = priors.of_job(7), 1120.0
    assert not priors.learn_ended() and priors.of_job(7) is known


def test_a_failure_to_learn_leaves_what_was_there(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing to learn from, a damaged row, a failing history: the prior in use stays, and the log says why."""
    priors = Priors(store, lambda: 5.0)
    assert not priors.learn()
    store.priors.save([PriorRow("", "", 1.0, 3, {**asdict(DEFAULT), "noise": -1.0})])
    with caplog.at_level(logging.WARNING):
        assert Priors(store).of_job(7) is SHIPPED
    assert "shipped prior is used" in caplog.text and "stored prior" in caplog.text
    monkeypatch.setattr(store.programs, "runs", lambda limit: 1 / 0)
    monkeypatch.setattr(store.programs, "ended", lambda since: 1 / 0)
    assert not priors.learn() and not priors.learn_ended()
    assert priors.of_job(7) is SHIPPED


def test_the_daemon_starts_a_job_from_its_program_s_runs_and_says_so(tmp_path: Path) -> None:
    """Jobs that ended are learned from; the next one's decision names them, and the model is fitted on top of them."""
    world = World(tmp_path)
    for _ in range(2):
        supervisor = world.elastic()
        for _ in range(12):
            world.round()
        supervisor.end()
        world.round()
    assert world.rounds.priors.learn()
    world.boot()
    job = world.elastic().job_id
    for _ in range(3):
        world.round()
    decision = world.store.decisions.last(job)
    assert decision is not None
    assert decision.evidence["prior"] == "2 earlier runs of train.py on a100"
    assert world.controller.prior(job) != SHIPPED.prior
    models = world.controller.health().models
    assert models is not None
    assert (models.runs, models.programs) == (2, 1)


def rounds_go(daemon: Daemon) -> Callable[[], bool]:
    return lambda: daemon.rounds.last_ok > 0


def test_learning_is_due_once_a_day_and_at_a_late_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service learns at once when nothing was learned for a day, beside its rounds; with no time set, never."""
    calls = threading.Event()
    monkeypatch.setattr(Priors, "learn", lambda self: calls.set())
    world = World(tmp_path, mode="observe")
    for at, expected in (("", False), ("03:30", True)):
        settings = Settings(mode="observe", learn_prior_at=at, state_dir=str(tmp_path), database_url=world.url)
        daemon = Daemon(settings, world.slurm.client(), Store.open(world.url))
        daemon.start()
        try:
            wait_until(rounds_go(daemon), 60)
            if expected:
                wait_until(calls.is_set, 60)
            assert calls.is_set() is expected
        finally:
            daemon.stop()


def test_a_day_s_work_is_planned_for_its_hour() -> None:
    """The next time is the given one by the clock of this host."""
    scheduler = Scheduler(lambda: None, 3600, 1)
    scheduler.daily(lambda: None, "03:30", soon=False)
    scheduler.start()
    try:
        times = [job.next_run_time.astimezone() for job in scheduler._scheduler.get_jobs() if job.id != "round"]
        assert [(time.hour, time.minute) for time in times] == [(3, 30)]
    finally:
        scheduler.stop()
