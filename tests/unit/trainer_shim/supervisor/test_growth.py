"""What a supervisor does with every resize, and a worker with every checkpoint, leaves no cycle of Python objects:
nobody collects those for long in a process with so many older ones, and its memory grows meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_elastic.protocol.version import version
from slurm_elastic.trainer_shim.checkpoint import files
from slurm_elastic.trainer_shim.supervisor import job_dir


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
