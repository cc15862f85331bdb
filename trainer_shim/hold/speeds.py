"""How fast a program is, and how much waits for it: where the figures come from, and what selasticd hears of them.

A source is a file, an address of Prometheus metrics (http://HOST:PORT/metrics#NAME), or what `selastic tell` says.
Promise: what cannot be read is no figure, and no error: the program may not have written it yet.
Limit: one figure for the whole job; the first seconds at a new size are left out.
"""

import http.client
import math
import re
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_elastic.protocol.errors import ConfigError
from slurm_elastic.protocol.messages import STALLED, STEPS_AGAIN, Report

from ..allocation.pieces import events
from ..allocation.pieces.actions import Action
from ..allocation.pieces.events import Event
from ..allocation.pieces.holding import Handlers, Part
from ..allocation.pieces.table import Change
from .joins import Held

TIMEOUT_S = 5.0
MOST_READ = 1 << 22
"""Bytes of a source."""
SPEEDS = (1e-6, 1e6)
"""Of one GPU, in units a second: what is believed."""
UNSETTLED = 2.0
"""Report intervals at a new size that are left out."""


@dataclass(frozen=True, slots=True)
class Figure(Event):
    """The program does so much a second."""

    per_s: float


@dataclass(frozen=True, slots=True)
class Backlog(Event):
    """So many tasks wait."""

    tasks: float


@dataclass(frozen=True, slots=True)
class SendReport(Action):
    report: Report


class Speeds(Part[Held]):
    """The part of the machine that reports, and gives everything back where nothing waits."""

    def __init__(self, context: Held) -> None:
        super().__init__(context)
        self._generation, self._since = -1, 0.0
        self._samples, self._step, self._last = 0.0, 0, 0.0
        self._idle = False
        self._idle_at = -1
        """The generation at which that was said."""

    def handlers(self) -> Handlers:
        return {
            events.Registered: self._registered,
            events.BeginWaitingResize: lambda event: self._give(),
            Figure: self._figure,
            Backlog: self._backlog,
        }

    def _registered(self, event: events.Registered) -> None:
        self._context.report_every_s = event.grant.report_interval_s

    def _figure(self, event: Figure) -> None:
        context = self._context
        gpus, now = sum(piece.gpus for piece in context.pieces), context.now
        if context.generation != self._generation:
            self._generation, self._since = context.generation, now
        passed, self._last = min(now - self._last, 60.0) if self._last else 0.0, now
        if not SPEEDS[0] <= event.per_s / gpus <= SPEEDS[1]:
            return
        self._samples += event.per_s * passed
        if not now - self._since >= UNSETTLED * context.report_every_s > 0:
            return
        self._step += 1
        nodes = sum(len(piece.nodes) for piece in context.pieces)
        step_s = gpus / event.per_s  # in which each GPU does one unit
        report = Report(
            *(context.generation, 0.0, gpus, nodes, gpus, 1, 1, 1, step_s, step_s, event.per_s),
            *(self._step, round(self._samples)),
        )
        context.do(SendReport(replace(report, unit=context.unit)))

    def _backlog(self, event: Backlog) -> None:
        idle = event.tasks <= 0
        if self._idle and not idle:
            self._context.tell(0, STEPS_AGAIN)
            self._idle_at = -1
        self._idle = idle
        self._give()

    def _give(self) -> None:
        """What is not the base's goes back; selasticd adds nothing to what does nothing."""
        context = self._context
        if self._idle and self._idle_at != context.generation:
            self._idle_at = context.generation
            context.tell(0, STALLED, "nothing waits for it (--backlog)")
        keep = tuple(piece for piece in context.pieces if piece.kind != "companion")
        if self._idle and context.settled and not context.over and context.change is None and keep != context.pieces:
            context.change = Change(0, keep, 0, 0.0, "nothing waits")
            context.emit(events.PiecesLeaving(context.leaving, "nothing waits"))


def follow(where: str, every_s: Callable[[], float], found: Callable[[float], None]) -> None:
    """Read a source now and then, in a thread of its own, and hand on what is found there."""
    read = reader(where)

    def work() -> None:
        while True:
            value = read()
            if value is not None and 0 <= value < math.inf:
                found(value)
            time.sleep(every_s() or 1.0)

    threading.Thread(target=work, name="selastic-figures", daemon=True).start()


def reader(where: str) -> Callable[[], float | None]:
    """What reads this source; None where there is no figure. Raises ConfigError for what is no source."""
    if where.startswith(("http://", "https://")):
        url, _, name = where.partition("#")
        if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name):
            raise ConfigError(f"{where} names no metric; accepted: http://HOST:PORT/metrics#NAME")
        return _of_metrics(url, name)
    if where.startswith("~") or "://" in where:
        raise ConfigError(f"{where} is no source; accepted: the path of a file, or http://HOST:PORT/metrics#NAME")
    return lambda: _of_file(Path(where))


def _of_file(path: Path) -> float | None:
    try:
        with path.open() as file:
            return float(file.read(MOST_READ).split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _of_metrics(url: str, name: str) -> Callable[[], float | None]:
    """Reads a gauge as it is; of a counter, by its name, what it grows by in a second."""
    seen: tuple[float, float] | None = None
    """When a counter was read last, and what it was."""

    def read() -> float | None:
        nonlocal seen
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                value = metric(answer.read(MOST_READ).decode(errors="replace"), name)
        except (OSError, ValueError, http.client.HTTPException):
            return None
        if value is None or not name.endswith("_total"):
            return value
        before, seen = seen, (time.monotonic(), value)
        if before is None:
            return None
        passed, grown = seen[0] - before[0], value - before[1]
        return grown / passed if passed > 0 and grown >= 0 else None

    return read


def metric(text: str, name: str) -> float | None:
    """The sum of a metric over all its labels, in Prometheus' text format; None where it is not there."""
    found = re.findall(rf"^{name}(?:\{{[^\n]*\}})?[ \t]+(\S+)", text, re.MULTILINE)
    return sum(map(float, found)) if found else None
