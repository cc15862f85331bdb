"""Carries actions out: an event before each, its outcome after, and memory of what Slurm refused.

Promise: what Slurm refused is not asked again before its backoff is over, and what it took without any effect ever less
often; when slurmctld does not answer, nothing is concluded and nothing counted. The rest of a round's actions then
waits for the next round, as it does when a round has asked for long. `refusals` says whom a refusal concerns; what
concerns all jobs trips it: it changes nothing for a while, then tries one action.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Protocol

from slurm_elastic.protocol.errors import SlurmError, SlurmUnreachable
from slurm_elastic.protocol.event_kind import EventKind
from slurm_elastic.protocol.resize_state import ResizeState

from ..slurm.commands import says_ended
from ..slurm.model import Job
from .action import Act, Action, Close, SlurmWrites
from .refusals import ALL, Refusals, Submitted

log = logging.getLogger(__name__)

AGAIN_S = 0.5
"""Before the same is asked again that Slurm has taken; twice as long each time, up to a minute."""
ROUND_ASKS_S = 20.0
"""How long one round goes on asking Slurm; the last of it may take as long as one call does."""
ROUND_ASKS = 64
"""How often one round asks Slurm at most, beside its look at jobs and nodes."""
_NO_JOBS: Mapping[int, Job] = MappingProxyType({})
_NO_RESIZES: Mapping[int, int] = MappingProxyType({})


class Records(Protocol):
    """What it needs of the store."""

    def add_event(self, job_id: int, kind: EventKind, who: str, detail: dict[str, object], at: float) -> object: ...

    def advance_resize(
        self, resize_id: int, state: ResizeState, detail: str = "", at: float | None = None
    ) -> object: ...


@dataclass(slots=True)
class _Refusal:
    count: int
    until: float
    sentence: str


class Executor:
    """One per daemon; not thread-safe, the rounds use it one after the other."""

    def __init__(
        self,
        client: SlurmWrites,
        store: Records,
        clock: Callable[[], float],
        backoff_s: float = 60.0,
        trip_after: int = 5,
        trip_s: float = 600.0,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """ticks: a clock that cannot be set."""
        self.client, self.store, self.clock = client, store, clock
        self.backoff_s, self._ticks = backoff_s, ticks
        self._asks_until, self._asks_left = ticks() + ROUND_ASKS_S, ROUND_ASKS
        self.refusals = Refusals(backoff_s, trip_after, trip_s)
        self.tripped = ""
        """Why nothing is changed for now; empty while all is well."""
        self._refused: dict[tuple[object, ...], _Refusal] = {}
        self._taken: dict[tuple[object, ...], tuple[float, float]] = {}
        """What Slurm took: until when it is not asked again, and how long that was."""

    def begin_round(self) -> None:
        """Slurm may be asked again, for a while and so many times."""
        self._asks_until, self._asks_left = self._ticks() + ROUND_ASKS_S, ROUND_ASKS

    def recover(self) -> bool:
        """Try again when the time for it has come, with the first action that is refused tripping it again."""
        if not self.tripped or self.refusals.of_all(self.clock()) is not None:
            return False
        self.tripped = ""
        log.warning("actions are tried again after too many refusals")
        return True

    def run(
        self,
        actions: Iterable[Action],
        act: bool,
        jobs: Mapping[int, Job] = _NO_JOBS,
        resizes: Mapping[int, int] = _NO_RESIZES,
    ) -> int:
        """Carry the actions out; how many changed something. Without `act` resizes are closed, Slurm is left alone.

        `jobs`: Slurm's, by id, which say whom a refusal concerns. `resizes`: the open resize's number by job id, for
        the log.
        """
        done = 0
        for action in actions:
            if isinstance(action, Close) or (act and self._may_ask()):
                done += self._do(action, jobs, resizes)
        return done

    def _may_ask(self) -> bool:
        return not self.tripped and self._asks_left > 0 and self._ticks() < self._asks_until

    def _do(self, action: Action, jobs: Mapping[int, Job], resizes: Mapping[int, int]) -> bool:
        """Carry one out; whether it changed something."""
        if isinstance(action, Act):
            return self._ask(action, jobs, resizes)
        if isinstance(action, Close):
            self._close(action)
        else:
            self.store.advance_resize(action.resize, action.state, at=self.clock())
        return True

    def _close(self, action: Close) -> None:
        now = self.clock()
        detail: dict[str, object] = {"resize": action.resize, "state": action.state, "detail": action.detail}
        self.store.add_event(action.job_id, EventKind.of(action.state), "selasticd", detail, now)
        self.store.advance_resize(action.resize, action.state, action.detail, at=now)
        log.info(
            "job %d: resize %d %s%s", action.job_id, action.resize, action.state, _because(action.detail),
            extra={"JOB": action.job_id, "RESIZE": action.resize},
        )  # fmt: skip

    def _ask(self, action: Act, jobs: Mapping[int, Job], resizes: Mapping[int, int]) -> bool:
        key, now, whose = action.question(), self.clock(), _whose(action, jobs)
        before = self._refused.get(key)
        until, waited = self._taken.get(key, (0.0, 0.0))
        if now < until or (before is not None and now < before.until):
            return False
        if self.refusals.wide(action.kind, whose, now) is not None:
            return False
        self._asks_left -= 1
        self.store.add_event(action.job_id, action.kind, "selasticd", asdict(action), now)
        about = {"JOB": action.job_id, "RESIZE": resizes.get(action.job_id, 0)}
        log.info("job %d: %s", action.job_id, action.sentence(), extra=about)
        try:
            action.ask(self.client)
        except SlurmUnreachable as error:
            silent = "job %d: Slurm does not answer, looking again next round: %s"
            log.warning(silent, action.job_id, error, extra=about)
            self._asks_until = self._ticks()
            return False
        except SlurmError as error:
            self._note(key, action, whose, str(error), about)
            for following in action.if_refused(str(error)):
                self._do(following, jobs, resizes)
            return False
        self.refusals.taken(action.kind, whose)
        self._refused.pop(key, None)
        # Long quiet, it is another occasion: a job may be put back at the same size twice.
        wait = min(60.0, 2 * waited) if waited and now < until + waited + 60.0 else AGAIN_S
        self._taken = {k: entry for k, entry in self._taken.items() if entry[0] + 120.0 > now}
        self._taken[key] = (now + wait, wait)
        return True

    def _note(
        self, key: tuple[object, ...], action: Act, whose: Submitted, sentence: str, about: Mapping[str, int]
    ) -> None:
        now = self.clock()
        count = self._refused[key].count + 1 if key in self._refused else 1
        wait = min(3600.0, self.backoff_s * 2 ** (count - 1))
        self._refused = {k: refusal for k, refusal in self._refused.items() if refusal.until + 7200 > now}
        self._refused[key] = _Refusal(count, now + wait, sentence)
        detail: dict[str, object] = {"action": asdict(action), "error": sentence, "again_in_s": wait}
        self.store.add_event(action.job_id, EventKind.REFUSED, "selasticd", detail, now)
        words = "job %d: refused (%s), trying again in %.0f s: %s"
        log.warning(words, action.job_id, action.sentence(), wait, sentence, extra=about)
        if says_ended(sentence):
            return
        _, wide = self.refusals.refused(action.kind, whose, sentence, now)
        if wide is None:
            return
        if wide.scope == ALL:
            self.tripped = f"jobs of several accounts and partitions were refused in a row, the last one: {sentence}"
            return
        rest_s = round(wide.until - now)
        why: dict[str, object] = {"action": action.kind, "scope": wide.scope, "error": sentence, "again_in_s": rest_s}
        self.store.add_event(0, EventKind.RESTS, "selasticd", why, now)
        log.warning("%s is not tried for %s for %d s: %s", action.kind, wide.scope, rest_s, sentence)


def _whose(action: Act, jobs: Mapping[int, Job]) -> Submitted:
    """Whom a refusal of it concerns."""
    return Submitted.of(action.job_id, jobs.get(action.slurm_job_id) or jobs.get(action.job_id))


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""
