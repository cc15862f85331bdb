"""What a supervisor does with every resize, and a worker with every checkpoint, leaves no cycle of Python objects:
nobody collects those for long in a process with so many older ones, and its memory grows meanwhile."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from socket_job import job

from slurm_elastic.protocol.version import version
from slurm_elastic.trainer_shim.allocation import job_dir
from slurm_elastic.trainer_shim.allocation.pieces.actions import Action
from slurm_elastic.trainer_shim.checkpoint import files


def record(place: Path) -> None:
    job_dir.write(place, job_dir.Run(("train.py",), "a", 3))


def say_the_release(place: Path) -> None:
    version()


def seal(place: Path) -> None:
    progress = {"step": 3, "samples": 9, "finished": False}
    (place / ".partial").mkdir()
    files.seal(place, place / ".partial", {"format": 1, "progress": progress}, {})


@pytest.mark.parametrize("work", [record, say_the_release, seal])
def test_it_leaves_nothing_for_the_garbage_collector(work: Callable[[Path], None], tmp_path: Path) -> None:
    work(tmp_path)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            work(tmp_path)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_deadline_that_has_passed_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resize is over long before what is due in an hour: timers are not more after it, and none fires twice."""
    with job() as made:
        supervisor, due, fired = made.supervisor, [time.monotonic() + 3600], []
        monkeypatch.setattr(made.machine, "deadline", lambda: due[-1])

        def tick(now: float) -> list[Action]:
            fired.append(now)
            assert due.pop() <= now
            return []

        monkeypatch.setattr(made.machine, "tick", tick)
        before = len(supervisor._loop._timers)
        for number in range(1, 31):
            due.extend(time.monotonic() + seconds for seconds in (0.002, 0.001))
            supervisor._perform([])
            made.until(lambda: len(due) == 1)
            assert len(fired) == 2 * number
        assert len(supervisor._loop._timers) <= before + 1
