"""A small cluster's story in a real store: what the reports and the command line are tested on.

1215 of alice shrank from 4 to 2 GPUs at 13:20:41 for 1218 of bob, which waits; 1207 of alice grows, its companion
submitted; 1210 of alice is over; 1220 of bob cannot be read; 1221 of alice runs without a supervisor.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from fresh_store import fresh_store, nothing

from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.db.rows import DecisionRow, JobRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import Reason, ResizeState
from slurm_elastic.protocol.messages import Piece, Report, Resize, Shape

ALICE, BOB = 1000, 1001


def at(clock: str) -> float:
    """Unix time of HH:MM:SS on the day of the story."""
    return datetime.fromisoformat(f"2026-11-20T{clock}").timestamp()


NOW = "13:25:00"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the caller's shell changes what is printed."""
    for name in ("SLURM_TIME_FORMAT", "NO_COLOR", "SBATCH_COMMENT", "SELASTIC_URL", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """A real store on a temporary file: empty, or for a test of the story with that in it."""
    fill = _story if "story" in request.fixturenames else nothing
    with fresh_store(f"sqlite:///{tmp_path}/elastic.db", fill) as opened:
        yield opened


@pytest.fixture
def story(store: Store) -> Store:
    """The store with the story in it."""
    return store


def _story(store: Store) -> None:
    _resized(store)
    _growing(store)
    _others(store)


def job(job_id: int, user: str, uid: int, **more: object) -> JobRow:
    """A running managed job, but for what `more` says."""
    values: dict[str, object] = {
        "job_id": job_id,
        "user": user,
        "uid": uid,
        "name": "train",
        "account": "physics",
        "partition": "gpu",
        "request": "elastic:gpus=1-8,batch=128-1024",
        "managed": True,
        "reason": Reason.KEEP_BEST.value,
        "detail": "",
        "submit_time": at("12:59:00"),
        "start_time": at("13:00:00"),
        "end_time": None,
        "state": "RUNNING",
    }
    return JobRow(**(values | more))  # type: ignore[arg-type]


def base(job_id: int, *nodes: str, gpus: int = 2) -> Piece:
    """The base piece of a job."""
    return Piece(job_id, "base", nodes, gpus, "h100")


def report(clock: str, gpus: int, batch: int, rate: float, step: int, generation: int = 1) -> Report:
    """One report of a whole job."""
    return Report(
        generation=generation,
        at=at(clock),
        gpus=gpus,
        nodes=max(1, gpus // 2),
        batch=batch,
        micro_batch=64,
        accumulation=1,
        steps=20,
        step_time_median_s=batch / rate,
        step_time_p90_s=batch / rate * 1.1,
        samples_per_s=rate,
        step=step,
        samples=step * batch,
        epoch=3,
    )


def _resized(store: Store) -> None:
    store.jobs.upsert(job(1215, "alice", ALICE, name="resnet"))
    store.allocations.note(1215, 1, (base(1215, "n1", "n2"),), 512, at("13:00:05"), step=0, samples=0)
    before = [report(f"13:{minute:02}:00", 4, 512, 800, minute * 90) for minute in range(11, 20)]
    store.reports.submit(1215, before, at("13:19:01")).result()
    store.decisions.save(at("13:20:35"), [_shrink()])
    order = Resize(0, 1215, (base(1215, "n1"),), (), 2, 256, Reason.SHRINK_FOR_JOB.value, 120)
    made = store.resizes.begin(order, at("13:20:35")).id
    store.allocations.note(
        *(1215, 2, (base(1215, "n1"),), 256, at("13:20:41"), 0.8, Reason.SHRINK_FOR_JOB.value, made),
        step=1850,
        samples=947200,
    )
    store.resizes.advance(made, ResizeState.RUNNING, at=at("13:20:41"))
    store.resizes.advance(made, ResizeState.DONE, at=at("13:20:44"))
    after = [report(f"13:{minute}:00", 2, 256, 496, 1850 + 90 * (minute - 20), 2) for minute in range(21, 25)]
    store.reports.submit(1215, after, at("13:24:01")).result()
    kept = DecisionRow(
        *(1215, at("13:21:00"), 2, 2, 256, 256, Reason.KEEP_COOLDOWN.value, 1.92, None),
        evidence={"cooldown_until": at("13:30:41"), "speedup_from": 1.922},
        mode="act",
    )
    store.decisions.save(at("13:21:00"), [kept])
    store.events.add(1215, "resize_issued", "selasticd", {"resize": made, "gpus": 2, "batch": 256}, at("13:20:35"))
    store.events.add(1215, "resize_running", "supervisor", {"generation": 2, "pause_s": 0.8}, at("13:20:41"))


def _shrink() -> DecisionRow:
    evidence = {
        "reports_from": 9,
        "reports_to": 4,
        "last_report_age_s": 30.0,
        "speedup_from": 3.1,
        "speedup_to": 1.922,
        "for_job": 1218,
        "for_gpus": 2,
        "idle_gpus": 0,
        "others": [{"job_id": 1218, "gpus_from": 0, "gpus_to": 2, "change": 1.0}],
        "passed_over": [{"mechanism": "requeue", "why": "its request does not name it"}],
    }
    return DecisionRow(
        *(1215, at("13:20:35"), 4, 2, 512, 256, Reason.SHRINK_FOR_JOB.value, 1.8, 0.61),
        evidence=evidence,
        alternatives=[{"gpus": 4, "batch": 512, "value": 3.1}, {"gpus": 1, "batch": 128, "value": 1.0}],
        mechanism="shrink",
        mode="act",
    )


def _growing(store: Store) -> None:
    store.jobs.upsert(job(1207, "alice", ALICE, name="chars", request="elastic:gpus=2-8,batch=256-1024"))
    store.allocations.note(1207, 1, (base(1207, "n3"),), 256, at("13:00:07"), step=0, samples=0)
    store.reports.submit(1207, [report("13:24:00", 2, 256, 410.5, 400)], at("13:24:01")).result()
    decision = DecisionRow(
        *(1207, at("13:24:30"), 2, 4, 256, 512, Reason.GROW_IDLE.value, 2.0, None),
        evidence={"idle_gpus": 2, "pause_s": 1.0, "pause_measured": False},
        mechanism="companion",
        mode="act",
    )
    store.decisions.save(at("13:24:30"), [decision])
    order = Resize(0, 1207, (base(1207, "n3"),), (Shape(1, 2),), 4, 512, Reason.GROW_IDLE.value, 120)
    made = store.resizes.begin(order, at("13:24:30"))
    resizing = DecisionRow(1207, at("13:24:40"), 2, 4, 256, 512, Reason.KEEP_RESIZING.value, None, None, mode="act")
    store.decisions.save(at("13:24:40"), [resizing])
    store.resizes.advance(made.id, ResizeState.SUBMITTED, "companion 1222 is pending", at("13:24:31"))


def _others(store: Store) -> None:
    store.jobs.upsert(job(1210, "alice", ALICE, name="old", start_time=at("10:00:00"), submit_time=at("09:59:00")))
    store.allocations.note(1210, 1, (base(1210, "n5"),), 256, at("10:00:10"), step=0, samples=0)
    store.jobs.end(1210, "COMPLETED", at("11:00:10"))
    waiting = {"state": "PENDING", "start_time": None, "reason": Reason.WAITING.value}
    store.jobs.upsert(job(1218, "bob", BOB, name="secret", request="elastic:gpus=2-4,batch=128-256", **waiting))
    evidence = {"for_gpus": 2, "slurm_reason": "Resources", "next": "elastic jobs give up 2 GPUs for it"}
    store.decisions.save(
        at("13:20:35"),
        [DecisionRow(1218, at("13:20:35"), 0, 2, 0, 0, Reason.WAITING.value, None, None, evidence, mode="act")],
    )
    store.jobs.upsert(
        job(
            1220,
            "bob",
            BOB,
            request="elastic:gpus=8-2,batch=128",
            managed=False,
            reason=Reason.MALFORMED.value,
            detail="gpus=8-2 has its minimum above its maximum; accepted: gpus=MIN-MAX, MIN <= MAX",
        )
    )
    store.jobs.upsert(job(1221, "alice", ALICE, name="bare", reason=Reason.KEEP_UNREGISTERED.value))


@pytest.fixture
def viewer() -> type[Viewer]:
    """Makes a viewer: viewer(uid, admin=False)."""
    return Viewer
