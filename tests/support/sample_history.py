"""An afternoon of a small cluster in a real store: three jobs over three hours, one of them with a hostile name,
resized by a daemon that acts, or left alone by one that only advises. What page and advice are tested on.
"""

from __future__ import annotations

from slurm_elastic.db.rows import DecisionRow, JobRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.messages import Piece, Report

START = 1_790_000_000.0
END = START + 3 * 3600
ALICE, BOB = 1000, 1001
HOSTILE = '<script>alert("x")</script>&amp;]]>'


def rate(gpus: int, per_gpu: float = 200.0, serial: float = 0.03) -> float:
    """Samples/s by Amdahl's law."""
    return per_gpu * gpus / (1 + serial * (gpus - 1))


def acted(store: Store) -> None:
    """The daemon acts: chars grows, gives way to an ordinary job and grows again; the others come and go."""
    _job(store, 11, "alice", ALICE, "chars", START)
    _job(store, 12, "bob", BOB, HOSTILE, START + 1800)
    _job(store, 13, "alice", ALICE, "vit-large", START + 4000)
    chars = [(0, 4, ""), (600, 24, "grow_idle"), (1900, 16, "shrink_for_elastic"), (5000, 8, "shrink_for_job"),
             (7000, 20, "grow_idle")]  # fmt: skip
    _course(store, 11, START, chars, END - 600)
    _course(store, 12, START + 1800, [(0, 4, ""), (900, 8, "grow_share"), (6000, 4, "shrink_share")], END)
    _course(store, 13, START + 4000, [(0, 2, ""), (700, 4, "grow_idle")], END)
    store.jobs.end(11, "COMPLETED", END - 600)
    for seconds, held, gpus in ((0, 4, 32), (5000, 8, 24), (7000, 4, 32)):
        evidence: dict[str, object] = {"pool": "p", "capacity_gpus": gpus}
        store.decisions.save(START + seconds, [_decision(12, START + seconds, held, held, evidence)])


def advised(store: Store) -> None:
    """The daemon advises: 11 keeps 4 GPUs all the time, though it might have had 16 for two hours and 8 for one."""
    _job(store, 11, "alice", ALICE, "chars", START)
    _job(store, 12, "bob", BOB, "digits", START)
    _course(store, 11, START, [(0, 4, "")], END)
    speeds = {"speedup_from": 2.0, "speedup_to": 6.0, "pause_s": 1.0}
    fewer = {"speedup_from": 2.0, "speedup_to": 1.0, "pause_s": 1.0}
    room = fewer | {"for_jobs": [{"job_id": 99, "gpus": 2, "given": 2}]}
    store.decisions.save(
        START, [_decision(11, START, 4, 16, speeds), _decision(12, START, 8, 8, {"speedup_from": 3.0})]
    )
    later = START + 3600
    store.decisions.save(later, [_decision(11, later, 4, 16, speeds, reason="grow_share")])
    last = START + 7200
    store.decisions.save(
        last, [_decision(11, last, 4, 2, room, reason="shrink_for_job"), _decision(12, last, 8, 16, {})]
    )


def _job(store: Store, job_id: int, user: str, uid: int, name: str, at: float) -> None:
    request = "elastic:gpus=2-32,batch=64-4096"
    store.jobs.upsert(
        JobRow(job_id, user, uid, name, "lab", "gpu", request, True, "keep_best", "", at - 60, at, None, "RUNNING")
    )


def _course(store: Store, job_id: int, begin: float, sizes: list[tuple[int, int, str]], end: float) -> None:
    """Sizes (seconds after the beginning, GPUs, reason), a report each minute."""
    step = samples = 0
    for number, (after, gpus, reason) in enumerate(sizes, 1):
        at = begin + after
        until = begin + sizes[number][0] if number < len(sizes) else end
        pieces = (Piece(job_id, "base", tuple(f"n{i}" for i in range(-(-gpus // 4))), min(4, gpus)),)
        pause = 0.2 + 0.1 * number if number > 1 else 0.0
        store.allocations.note(job_id, number, pieces, 16 * gpus, at, pause, reason, step=step, samples=samples)
        reports = []
        for minute in range(1, int((until - at) // 60)):
            speed = rate(gpus) * (1 + 0.02 * ((minute * 7) % 5 - 2))
            steps = int(60 * speed / (16 * gpus))
            step, samples = step + steps, samples + steps * 16 * gpus
            reports.append(
                Report(number, at + 60 * minute, gpus, -(-gpus // 4), 16 * gpus, 16, 1, steps, 16 * gpus / speed,
                       17 * gpus / speed, speed, step, samples, 0)
            )  # fmt: skip
        store.reports.submit(job_id, reports, until).result()


def _decision(
    job_id: int, at: float, gpus: int, target: int, evidence: dict[str, object], reason: str = "grow_idle"
) -> DecisionRow:
    code = reason if gpus != target else "keep_best"
    mode = "act" if "pool" in evidence else "review"
    return DecisionRow(job_id, at, gpus, target, 64, 64, code, None, None, evidence, mechanism="companion", mode=mode)
