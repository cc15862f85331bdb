"""A disk that stays full says so once in a while, not with every report."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from slurm_elastic.daemon.selasticd import systemd
from slurm_elastic.daemon.selasticd.systemd import REPEAT_S, Repeats


class Kept(logging.Handler):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        self.lines.append(record.getMessage())


class Said:
    """A logger whose lines pass the filter, and its clock."""

    def __init__(self, logger: logging.Logger) -> None:
        self.logger, self.now, self._kept = logger, 0.0, Kept()
        self._kept.addFilter(Repeats(lambda: self.now))
        logger.addHandler(self._kept)
        logger.propagate = False
        logger.setLevel(logging.INFO)

    @property
    def lines(self) -> list[str]:
        """What was written."""
        return self._kept.lines


@pytest.fixture
def said() -> Iterator[Said]:
    """A logger of its own."""
    logger = logging.getLogger("test_repeated_lines")
    yield Said(logger)
    logger.handlers.clear()


def test_a_warning_that_comes_again_is_counted(said: Said) -> None:
    """Written at once, then not until its time is over; then with the number of those that were left out."""
    for _ in range(5):
        said.logger.warning("the disk is %s", "full")
        said.logger.warning("the disk is %s", "slow")
        said.now += 1
    assert said.lines == ["the disk is full", "the disk is slow"]
    said.now = REPEAT_S
    said.logger.warning("the disk is %s", "full")
    assert said.lines[2:] == ["the disk is full (4 more times in the last 600 s)"]
    said.logger.warning("the disk is %s", "full")
    assert len(said.lines) == 3


def test_what_is_no_warning_is_always_written(said: Said) -> None:
    """Decisions repeat rightly."""
    for _ in range(2):
        said.logger.info("job 5: 4 GPUs")
    assert len(said.lines) == 2


def test_different_tracebacks_under_one_text_are_all_written(said: Said) -> None:
    """What has failed counts too, not just the text over it."""
    for error in (ValueError("a"), ValueError("b"), ValueError("a")):
        said.logger.error("a round failed", exc_info=error)
    assert len(said.lines) == 2


def test_the_daemons_handler_has_the_filter() -> None:
    """Whatever the log goes to."""
    assert any(isinstance(each, Repeats) for each in systemd.handler({}).filters)
