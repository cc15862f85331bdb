"""What the tests of whole runs share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon
from local_run import Run, Start
from training import TRAIN


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start("--nproc 2", 100, 2) -> a running supervisor; whatever is left is killed after the test."""
    (tmp_path / "train.py").write_text(TRAIN)
    with contextlib.ExitStack() as ends:

        def start_one(
            words: str,
            *numbers: float,
            script: str = "train.py",
            alone: bool = False,
            env: dict[str, str] | None = None,
            out: str = "out.txt",
            port: int = 0,
        ) -> Run:
            daemon = None if alone else ends.enter_context(FakeDaemon(port))
            options = [*words.split(), *(["--no-daemon"] if alone else []), "--audit", "audit"]
            run = Run(tmp_path, *options, script, *map(str, numbers), env=env, out=out, daemon=daemon)
            ends.callback(run.close)
            run.samples, run.epochs = (int(number) for number in (*numbers, 0, 1)[:2])
            return run

        yield start_one
