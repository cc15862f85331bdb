"""Lines that cannot be written are counted and told; nobody waits for a disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from waiting import wait_until

from slurm_elastic.trainer_shim.control import background_writer
from slurm_elastic.trainer_shim.control.background_writer import BackgroundWriter, GuardedOutput


def test_lost_lines_are_counted_and_told_once(tmp_path: Path) -> None:
    """Where its folder cannot be made nothing is written; once it can, their number and the reason come first."""
    (tmp_path / "logs").write_text("a file in the way")
    output = GuardedOutput(tmp_path / "logs" / "a.log")
    output.write(b"one\ntwo\n")
    output.write(b"three\n")
    (tmp_path / "logs").unlink()
    output.write(b"four\n")
    output.write(b"five\n")
    output.close()
    told = "selastic: 3 lines could not be written here (File exists)"
    assert (tmp_path / "logs" / "a.log").read_text().splitlines() == [told, "four", "five"]


def test_what_is_lost_at_the_end_is_told_at_the_end(tmp_path: Path) -> None:
    """No line comes any more that could bring the notice along."""
    (tmp_path / "logs").write_text("a file in the way")
    output = GuardedOutput(tmp_path / "logs" / "a.log")
    output.write(b"one\n")
    (tmp_path / "logs").unlink()
    output.close()
    assert "1 line could not be written" in (tmp_path / "logs" / "a.log").read_text()


def test_nobody_waits_for_a_disk_that_does_not_answer(tmp_path: Path) -> None:
    """Opening a pipe waits for a reader: meanwhile lines are taken up to a bound, the others counted; work that is to
    be waited for is not waited for."""
    place = tmp_path / "pipe"
    os.mkfifo(place)
    writer, done = BackgroundWriter(), threading.Event()
    line = b"x" * ((1 << 16) - 1) + b"\n"
    taken = background_writer.MAX_WAITING // len(line)
    for _ in range(taken + 5):
        writer.append(place, line)
    writer.do(done.set, lambda error: None, 600)
    assert not done.is_set()
    with place.open("rb") as pipe:
        assert sum(1 for _ in zip(range(taken), pipe, strict=False)) == taken
        assert done.wait(60)
        writer.append(place, b"after\n")
        assert pipe.readline() == b"selastic: 5 lines could not be written here (the disk is too slow)\n"
        assert pipe.readline() == b"after\n"
        writer.close(60)


def test_work_that_fails_is_told(tmp_path: Path) -> None:
    """The error of a write reaches who asked for it, and the next one is tried."""
    writer, failed = BackgroundWriter(), []
    writer.do(lambda: (tmp_path / "no" / "file").write_text("x") and None, failed.append, 60)
    wait_until(lambda: failed)
    assert isinstance(failed[0], FileNotFoundError)
    writer.append(tmp_path / "yes", b"x\n")
    writer.close(60)
    assert (tmp_path / "yes").read_bytes() == b"x\n"
