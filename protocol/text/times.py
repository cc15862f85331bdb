"""Times as Slurm's commands read and print them.

Promise: every form that sacct's -S and -E accept, SLURM_TIME_FORMAT as squeue honours it, durations as [D-]HH:MM:SS.
Limit: local time of the machine that the command runs on, as in Slurm; no time zones in the input.
"""

import os
import re
from datetime import datetime, timedelta
from functools import lru_cache

from slurm_elastic.protocol.errors import ConfigError

STANDARD = "%Y-%m-%dT%H:%M:%S"
ACCEPTED = (
    "HH:MM[:SS], MMDD[YY], MM/DD[/YY], YYYY-MM-DD[THH:MM[:SS]], today, yesterday, midnight, noon, "
    "now[{+|-}COUNT[UNIT]] such as now-1day"
)

_NAMED_DAYS = {"yesterday": -1, "tomorrow": 1}
_NAMED_HOURS = {"today": 0, "midnight": 0, "elevenses": 11, "noon": 12, "fika": 15, "teatime": 16}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604_800}
FOREVER = 1e11
"""The latest deadline: a few thousand years, which can be printed."""
_UNIT_WORDS = re.compile(r"(s|sec|secs|second|seconds|m|min|mins|minute|minutes|h|hour|hours|d|day|days|w|week|weeks)?")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*([ap]m)?")
_STATS_AT = re.compile(r"^sdiag output at .*\((\d+)\)\s*$", re.MULTILINE)
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")


def parse_time(text: str, now: float) -> float:
    """Unix seconds of a time in one of Slurm's forms.

    A clock without a date is today's, a date without a year this year's: what lies in the past is asked for, as
    with sacct. Raises ConfigError naming the text and the accepted forms.
    """
    word = text.strip().lower()
    here = datetime.fromtimestamp(now)
    try:
        moment = _relative(word, now) or _named(word, here) or _clock_only(word, here) or _dated(word, here)
    except (ValueError, OverflowError, OSError):
        moment = None
    if moment is None:
        raise ConfigError(f"time '{text}' is not one of Slurm's forms; accepted: {ACCEPTED}")
    return max(0.0, moment.timestamp())


@lru_cache(maxsize=1 << 12)
def deadline_at(text: str, submitted: float) -> float:
    """Unix seconds of a request's `deadline=`, of a job submitted then; a clock without a date is the next such."""
    if text.startswith("now+"):
        count, unit = re.split("(?![0-9])", text[4:] + "s", maxsplit=1)
        return min(submitted + int(count) * _UNITS[unit[0]], FOREVER)
    at = parse_time(text, submitted)
    if at <= submitted and "-" not in text:
        at = (datetime.fromtimestamp(at) + timedelta(days=1)).timestamp()
    return at


def check_window(start: float, end: float | None, now: float) -> None:
    """Raise ConfigError for a time that ends before it begins, in which there is nothing; without an end it is now."""
    if start > (now if end is None else end):
        first, last = (datetime.fromtimestamp(at).strftime(STANDARD) for at in (start, now if end is None else end))
        until = f"now ({last})" if end is None else f"--endtime {last}"
        raise ConfigError(f"--starttime {first} lies after {until}; accepted: a start before the end")


def _relative(word: str, now: float) -> datetime | None:
    match = re.fullmatch(r"now(?:([+-])(\d{1,9})(\w*))?", word)
    if not match:
        return None
    sign, count, unit = match.groups()
    if sign is None:
        return datetime.fromtimestamp(now)
    if not _UNIT_WORDS.fullmatch(unit):
        return None
    # In seconds that pass, as sacct counts them, not by the clock on the wall, which jumps twice a year.
    seconds = int(count) * _UNITS[(unit or "s")[0]]
    return datetime.fromtimestamp(now - seconds if sign == "-" else now + seconds)


def _named(word: str, now: datetime) -> datetime | None:
    days, hour = _NAMED_DAYS.get(word), _NAMED_HOURS.get(word)
    if days is not None:  # by the clock on the wall: a day may have 23 hours
        now, hour = now + timedelta(days=days), 0
    return None if hour is None else now.replace(hour=hour, minute=0, second=0, microsecond=0)


def _clock_only(word: str, now: datetime) -> datetime | None:
    clock = _clock(word)
    return None if clock is None else now.replace(hour=clock[0], minute=clock[1], second=clock[2], microsecond=0)


def _clock(word: str) -> tuple[int, int, int] | None:
    match = _CLOCK.fullmatch(word)
    if not match:
        return None
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if match[4]:
        if not 1 <= hour <= 12:
            raise ValueError(word)
        hour = hour % 12 + (12 if match[4] == "pm" else 0)
    return hour, minute, second


def _dated(word: str, now: datetime) -> datetime | None:
    iso = re.fullmatch(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[t ](.+))?", word)
    if iso:
        return _at(int(iso[1]), int(iso[2]), int(iso[3]), iso[4])
    packed = re.fullmatch(r"(\d{2})(\d{2})(\d{2})?", word)
    marked = re.fullmatch(r"(\d{1,2})([/.])(\d{1,2})(?:\2(\d{2}))?(?:-(.+))?", word)
    if packed:
        month, day, year, clock = packed[1], packed[2], packed[3], None
    elif marked:
        month, day, year, clock = marked[1], marked[3], marked[4], marked[5]
    else:
        return None
    return _at(2000 + int(year) if year else now.year, int(month), int(day), clock)


def _at(year: int, month: int, day: int, clock_text: str | None) -> datetime | None:
    clock = (0, 0, 0) if clock_text is None else _clock(clock_text)
    return None if clock is None else datetime(year, month, day, *clock)


def format_time(at: float | None, now: float, default: str = "standard") -> str:
    """A time as SLURM_TIME_FORMAT wants it: `standard`, `relative`, or a strftime format; `default` when it is unset.

    Empty for None.
    """
    if at is None:
        return ""
    chosen = os.environ.get("SLURM_TIME_FORMAT") or default
    moment = datetime.fromtimestamp(at)
    if chosen == "standard":
        return moment.strftime(STANDARD)
    if chosen == "relative":
        return moment.strftime(_relative_format(moment, datetime.fromtimestamp(now)))
    return moment.strftime(chosen)


def _relative_format(moment: datetime, now: datetime) -> str:
    """The thresholds of Slurm's own SLURM_TIME_FORMAT=relative."""
    days = (moment.date() - now.date()).days
    if days == 0:
        return "%H:%M:%S"
    if days == -1:
        return "Ystday %H:%M"
    if days == 1:
        return "Tomorr %H:%M"
    if abs(days) > 365:
        return "%-d %b %Y"
    if days < -1 or days > 6:
        return "%-d %b %H:%M"
    return "%a %H:%M"


def duration_s(text: str) -> int:
    """Seconds of Slurm's [days-][hours:]minutes:seconds. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 1-02:03:04")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def slurms_time(stats: str) -> float | None:
    """slurmctld's time from what sdiag prints; None: it does not say."""
    found = _STATS_AT.search(stats)
    return float(found[1]) if found else None


def elapsed(seconds: float | None, short: bool = False) -> str:
    """A duration as sacct prints it, [D-]HH:MM:SS; `short` as squeue does, 12:34. Empty for None."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, second = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{second:02}"
    if short:
        return f"{hours}:{minutes:02}:{second:02}" if hours else f"{minutes}:{second:02}"
    return f"{hours:02}:{minutes:02}:{second:02}"


def span(seconds: float) -> str:
    """A duration in words for a sentence: 0.8 s, 45 s, 12 min, 3.5 h, 2 days."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"
