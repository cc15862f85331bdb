"""What the tests of whole runs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_run import Run
from small_training import TRAIN


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """start("--nproc", "2", "train.py", ...) -> a running supervisor; whatever is left is killed after the test."""
    runs: list[Run] = []
    (tmp_path / "train.py").write_text(TRAIN)

    def start_one(*words: str, env: dict[str, str] | None = None, out: str = "out.txt") -> Run:
        runs.append(Run(tmp_path, *words, env=env, out=out))
        return runs[-1]

    yield start_one
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
        run.out.close()
