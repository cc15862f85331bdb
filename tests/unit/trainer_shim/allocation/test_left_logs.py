"""The logs of companions that a job has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.trainer_shim.allocation import job_dir
from slurm_elastic.trainer_shim.allocation.job_dir import KEPT, OLDER, TOGETHER, put_together


def test_old_logs_are_put_together_and_nothing_is_lost(tmp_path: Path) -> None:
    """Whatever the number of companions, the files are those of the base, of what is in use, and of the last few."""
    base = ["100.n1.0.log", "100.n1.0.2.log", "agents-100.log"]
    for name in base:
        (tmp_path / name).write_text("base")
    for number in range(101, 201):
        (tmp_path / f"{number}.n-2.x.0.log").write_text(f"worker of {number}\n")
        (tmp_path / f"agents-{number}.log").write_text(f"agent of {number}\n")
        put_together(tmp_path, {100, 101, number})
    left = range(200 - KEPT, 200)
    names = {f"{number}.n-2.x.0.log" for number in (101, *left, 200)}
    names |= {f"agents-{number}.log" for number in (101, *left, 200)}
    assert {path.name for path in tmp_path.iterdir()} == {*base, "left.log", *names}
    together = (tmp_path / "left.log").read_text()
    for number in range(102, 200 - KEPT):
        assert f"==> {number}.n-2.x.0.log <==\nworker of {number}\n" in together
        assert f"==> agents-{number}.log <==\nagent of {number}\n" in together


def test_what_was_put_together_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The youngest are kept, two files of a bounded size in all; so is the end of a log that alone is too long."""
    monkeypatch.setattr(job_dir, "MOST_BYTES", 1000)
    for number in range(100, 400):
        (tmp_path / f"{number}.n1.0.log").write_bytes(
            b"x" * (100_000 if number == 250 else 90) + f"<{number}>".encode()
        )
        put_together(tmp_path, set())
    kept = (tmp_path / OLDER).read_text() + (tmp_path / TOGETHER).read_text()
    assert len(kept) < 4 * 1000 and len(list(tmp_path.iterdir())) <= KEPT + 2
    youngest = range(400 - KEPT - 5, 400 - KEPT)
    assert all(f"<{number}>" in kept for number in youngest)
