"""Times in Slurm's forms, in and out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from slurm_elastic.protocol.errors import ConfigError
from slurm_elastic.protocol.text.times import deadline_at, elapsed, format_time, parse_time, span


def local(text: str) -> float:
    """Unix seconds of a local time."""
    return datetime.fromisoformat(text).timestamp()


NOW = "2026-11-20T13:20:41"


@pytest.fixture(autouse=True, params=["UTC", "America/Los_Angeles"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test holds in any time zone."""
    monkeypatch.setenv("TZ", request.param)
    monkeypatch.delenv("SLURM_TIME_FORMAT", raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("text", ["now-3hours", "now-180minutes", "now-10800"])
def test_a_time_ago_counts_seconds_not_the_clock_on_the_wall(text: str) -> None:
    """Three hours before are three hours before, also on the day on which clocks are put forward by one."""
    now = 1_772_964_000.0  # 2026-03-08T03:00 in Los Angeles, an hour after 01:00 there
    assert parse_time(text, now) == now - 10_800


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("13:00", "2026-11-20T13:00:00"),
        ("9:05:07", "2026-11-20T09:05:07"),
        ("23:59", "2026-11-20T23:59:00"),
        ("1:30pm", "2026-11-20T13:30:00"),
        ("12:00 AM", "2026-11-20T00:00:00"),
        ("1105", "2026-11-05T00:00:00"),
        ("110525", "2025-11-05T00:00:00"),
        ("11/05", "2026-11-05T00:00:00"),
        ("11.05.25", "2025-11-05T00:00:00"),
        ("11/05/25-08:30", "2025-11-05T08:30:00"),
        ("2026-11-19", "2026-11-19T00:00:00"),
        ("2026-11-19T07:08", "2026-11-19T07:08:00"),
        ("2026-11-19T07:08:09", "2026-11-19T07:08:09"),
        ("today", "2026-11-20T00:00:00"),
        ("yesterday", "2026-11-19T00:00:00"),
        ("Tomorrow", "2026-11-21T00:00:00"),
        ("Midnight", "2026-11-20T00:00:00"),
        ("noon", "2026-11-20T12:00:00"),
        ("teatime", "2026-11-20T16:00:00"),
        ("now", NOW),
        ("now-1hour", "2026-11-20T12:20:41"),
        ("now-90", "2026-11-20T13:19:11"),
        ("now-2days", "2026-11-18T13:20:41"),
        ("now+1week", "2026-11-27T13:20:41"),
    ],
)
def test_every_form_that_sacct_accepts_is_read(text: str, means: str) -> None:
    """What an admin types for sacct -S works here, with the same meaning."""
    assert parse_time(text, local(NOW)) == local(means)


def test_before_the_epoch_is_ever(zone: None) -> None:
    """A window that began before there were jobs is no error, as with sacct."""
    assert parse_time("now-100000weeks", local(NOW)) == 0


NO_TIMES = (
    "",
    "yesterdayish",
    "25:00",
    "13:60",
    "0:30pm",
    "2026-13-01",
    "2026-02-30",
    "1345",
    "now-",
    "now-1fortnight",
    "now-999999999weeks",
    "2026-11-19T",
    "12345",
)


@pytest.mark.parametrize("text", NO_TIMES)
def test_what_is_no_time_is_refused_with_the_forms(text: str) -> None:
    """A mistyped time is an error that lists the forms, never another time."""
    with pytest.raises(ConfigError, match=r"accepted: HH:MM\[:SS\]"):
        parse_time(text, local(NOW))


@pytest.mark.parametrize(
    ("setting", "at", "shown"),
    [
        (None, NOW, "2026-11-20T13:20:41"),
        ("standard", NOW, "2026-11-20T13:20:41"),
        ("%H.%M", NOW, "13.20"),
        ("relative", "2026-11-20T09:00:00", "09:00:00"),
        ("relative", "2026-11-19T09:00:00", "Ystday 09:00"),
        ("relative", "2026-11-21T09:00:00", "Tomorr 09:00"),
        ("relative", "2026-11-24T09:00:00", "Tue 09:00"),
        ("relative", "2026-11-03T09:00:00", "3 Nov 09:00"),
        ("relative", "2025-01-03T09:00:00", "3 Jan 2025"),
    ],
)
def test_slurm_time_format_is_honoured(
    setting: str | None, at: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same setting gives the same text as in squeue."""
    if setting is not None:
        monkeypatch.setenv("SLURM_TIME_FORMAT", setting)
    assert format_time(local(at), local(NOW)) == shown


def test_an_unknown_time_is_empty() -> None:
    """No time is invented for what has none."""
    assert format_time(None, local(NOW)) == ""
    assert elapsed(None) == ""


@pytest.mark.parametrize(
    ("seconds", "long", "short"),
    [
        (0, "00:00:00", "0:00"),
        (754, "00:12:34", "12:34"),
        (3723, "01:02:03", "1:02:03"),
        (180123, "2-02:02:03", "2-02:02:03"),
    ],
)
def test_durations_look_like_sacct_and_squeue(seconds: float, long: str, short: str) -> None:
    """[D-]HH:MM:SS in the accounting, squeue's short form in the status."""
    assert (elapsed(seconds), elapsed(seconds, short=True)) == (long, short)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.84, "0.84 s"), (45, "45 s"), (600, "10 min"), (12600, "3.5 h"), (259200, "3 days")]
)
def test_a_span_reads_well_in_a_sentence(seconds: float, shown: str) -> None:
    """A pause of a second and a cooldown of minutes each have their unit."""
    assert span(seconds) == shown


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("now+90", "2026-11-27T12:01:30"),
        ("now+1minute", "2026-11-27T12:01:00"),
        ("now+2hours", "2026-11-27T14:00:00"),
        ("now+2weeks", "2026-12-11T12:00:00"),
        ("20:00", "2026-11-27T20:00:00"),
        ("12:00", "2026-11-28T12:00:00"),
        ("8:00:30", "2026-11-28T08:00:30"),
        ("2026-11-27", "2026-11-27T00:00:00"),
        ("2026-12-31T8:00", "2026-12-31T08:00:00"),
    ],
)
def test_a_deadline_counts_from_the_submission(text: str, due: str) -> None:
    """A clock alone is the next such; a date may have passed, which is for others to say; the furthest can be shown."""
    submitted = datetime(2026, 11, 27, 12).timestamp()
    assert datetime.fromtimestamp(deadline_at(text, submitted)) == datetime.fromisoformat(due)
    assert datetime.fromtimestamp(deadline_at("now+999999999weeks", submitted)).year > 5000
