"""Log lines as journald gets them, on a socket of our own."""

from __future__ import annotations

import logging
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.daemon.selasticd.systemd import JournalHandler, handler, priority


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "journal"))
        listener.settimeout(30)
        yield listener


@pytest.fixture
def log(journald: socket.socket) -> Iterator[logging.Logger]:
    made = logging.Logger("selastic.test", logging.DEBUG)
    journal = JournalHandler(journald.getsockname())
    made.addHandler(journal)
    yield made
    journal.close()


def test_a_line_has_its_priority_and_what_it_is_about(journald: socket.socket, log: logging.Logger) -> None:
    """`journalctl -p warning` and `journalctl JOB=7` find it."""
    log.warning("job %d: resize %d failed", 7, 3, extra={"JOB": 7, "RESIZE": 3})
    fields = dict(line.split(b"=", 1) for line in journald.recv(65536).splitlines())
    assert fields[b"MESSAGE"] == b"job 7: resize 3 failed" and fields[b"PRIORITY"] == b"4"
    assert (fields[b"JOB"], fields[b"RESIZE"], fields[b"SYSLOG_IDENTIFIER"]) == (b"7", b"3", b"selasticd")
    assert b"USER" not in fields


def test_a_text_of_several_lines_stays_one_message(journald: socket.socket, log: logging.Logger) -> None:
    """A traceback, or a user's name with a line break in it, makes no field of its own."""
    log.error("one\nPRIORITY=0")
    name, _, rest = journald.recv(65536).partition(b"\n")
    (size,) = struct.unpack("<Q", rest[:8])
    assert name == b"MESSAGE" and rest[8 : 8 + size] == b"one\nPRIORITY=0"
    assert b"PRIORITY=3\n" in rest[8 + size :]


def test_a_journal_that_is_gone_loses_the_line_alone(
    journald: socket.socket, log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither an exception nor a complaint on standard error."""
    Path(journald.getsockname()).unlink()
    log.info("nobody hears this")
    log.info("nor this: %d", "no number")
    assert capsys.readouterr() == ("", "")


def test_a_log_that_is_redirected_stays_on_standard_error(
    journald: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd's variable is inherited by whatever a shell starts; only the very stream counts."""
    with (tmp_path / "log").open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        found = os.fstat(stream.fileno())
        address = journald.getsockname()
        for named, journal in ((f"{found.st_dev}:{found.st_ino}", True), ("1:2", False), ("", False)):
            made = handler({"JOURNAL_STREAM": named} if named else {}, address)
            assert isinstance(made, JournalHandler) is journal
            made.close()


@pytest.mark.parametrize(("level", "number"), [(logging.CRITICAL, 3), (35, 4), (logging.INFO, 6), (5, 7)])
def test_levels_have_priorities(level: int, number: int) -> None:
    """Between two levels the lower one counts."""
    assert priority(level) == number
