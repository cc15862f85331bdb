"""The line that says how far a long command is."""

from __future__ import annotations

import io
import os
import shutil

import pytest

from slurm_elastic.daemon.cli.side_by_side import BAR, EVERY_S, FIRST_S, Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """As a terminal."""
        return True


def test_a_bar_that_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing at first; then one line, drawn over itself no more often than it should be; nothing at the end."""
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((200, 24)))
    now, stream = [0.0], Terminal()
    with Progress("auto", "jobs have ended", stream, lambda: now[0]) as progress:
        progress.show(1, 4)
        assert stream.getvalue() == ""
        now[0] = FIRST_S + 61
        progress.show(2000, 4000)
        half = "#" * (BAR // 2) + "." * (BAR // 2)
        shown = f"auto [{half}] 2,000 of 4,000 jobs have ended, 1:02, about 1:02 left"
        assert stream.getvalue() == f"\r{shown}"
        now[0] += EVERY_S / 2
        progress.show(3000, 4000)
        assert "3,000" not in stream.getvalue()
    *_, blank, last = stream.getvalue().split("\r")
    assert blank.strip() == "" and len(blank) == len(shown) and not last


def test_nothing_in_a_file() -> None:
    """A log or a pipe gets no drawings."""
    now, stream = [0.0], io.StringIO()
    with Progress("auto", "jobs have ended", stream, lambda: now[0]) as progress:
        now[0] = 100.0
        progress.show(1, 2)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("columns", "bar"), [(200, BAR), (72, 12), (40, 0)])
def test_the_bar_gives_way_to_what_is_said_beside_it(columns: int, bar: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a narrow terminal it is shorter, or away; the line is never wrapped."""
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
    now, stream = [0.0], Terminal()
    with Progress("auto", "jobs have ended", stream, lambda: now[0]) as progress:
        now[0] = 60.0
        progress.show(500, 2000)
        line = stream.getvalue().strip("\r")
    assert len(line) < columns and line.count("#") + line.count(".") == bar
    assert ("about 3:00 left" in line) == (columns > 60)
