"""Carries actions out: an event before each, its outcome after, and memory of what Slurm refused.

Promise: what Slurm refused is not asked again before its backoff is over, and what it took without any effect ever less
often; when slurmctld does not answer, nothing is concluded and nothing counted. The rest of a round's actions then
waits for the next round, as it does when a round has asked for long. `refusals` says whom a refusal concerns; what
concerns all jobs trips it: it changes nothing for a while, then tries one action.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any

from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import EventKind
from slurm_elastic.protocol.errors import SlurmError, SlurmUnreachable, StoreError
from slurm_elastic.protocol.messages import Resize

from ..slurm.commands import says_ended
from ..slurm.model import Job, SlurmClient
from .action import Act, Action, Advance, Close
from .refusals import ALL, Concerned, Refusals

log = logging.getLogger(__name__)

AGAIN_S = 0.5
"""Before the same is asked again that Slurm has taken; twice as long each time, up to a minute."""
ROUND_ASKS_S = 20.0
"""How long one round goes on asking Slurm; the last of it may take as long as one call does."""
ROUND_ASKS = 64
"""How often one round asks Slurm at most, beside its look at jobs and nodes."""
_NO_JOBS: Mapping[int, Job] = MappingProxyType({})
_NO_RESIZES: Mapping[int, int] = MappingProxyType({})


@dataclass(slots=True)
class _Refusal:
    count: int
    until: float
    sentence: str


class Executor:
    """One per daemon; not thread-safe, the rounds use it one after the other."""

    def __init__(
        self,
        client: SlurmClient,
        store: Store,
        clock: Callable[[], float],
        backoff_s: float = 60.0,
        trip_after: int = 5,
        trip_s: float = 600.0,
        ticks: Callable[[], float] = time.monotonic,
        notify: Callable[[int], object] = lambda job_id: None,
    ) -> None:
        """ticks: a clock that cannot be set. notify: called with the job's id once its resize has begun, or is over."""
        self.client, self.store, self.clock, self._notify = client, store, clock, notify
        self.backoff_s, self._ticks = backoff_s, ticks
        self._asks_until, self._asks_left = ticks() + ROUND_ASKS_S, ROUND_ASKS
        self.refusals = Refusals(backoff_s, trip_after, trip_s)
        self.tripped = ""
        """Why nothing is changed for now; empty while all is well."""
        self._refused: dict[tuple[object, ...], _Refusal] = {}
        self._taken: dict[tuple[object, ...], tuple[float, float]] = {}
        """What Slurm took: until when it is not asked again, and how long that was."""
        self._not_begun: Mapping[int, str] = {}

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
    ) -> list[Action]:
        """Carry the actions out; those that changed something. Without `act` resizes are closed, Slurm is left alone.

        `jobs`: Slurm's, by id, which say whom a refusal concerns. `resizes`: the open resize's number by job id, for
        the log. All resizes that begin one after the other are on the disk before a supervisor can see one.
        """
        done: list[Action] = []
        for begins, group in groupby(actions, lambda action: isinstance(action, Resize)):
            if begins:
                done += self._begin([action for action in group if isinstance(action, Resize)], act)
                continue
            for action in group:
                if (isinstance(action, Close) or (act and self._may_ask())) and self._do(action, jobs, resizes):
                    done.append(action)
        return done

    def _may_ask(self) -> bool:
        return not self.tripped and self._asks_left > 0 and self._ticks() < self._asks_until

    def _do(self, action: Action, jobs: Mapping[int, Job], resizes: Mapping[int, int]) -> bool:
        """Carry one out; whether it changed something."""
        if isinstance(action, Act):
            return self._ask(action, jobs, resizes)
        if isinstance(action, Close):
            self._close(action)
        elif isinstance(action, Advance):
            self.store.resizes.advance(action.resize, action.state, at=self.clock())
        return True

    def _close(self, action: Close) -> None:
        now = self.clock()
        detail: dict[str, object] = {"resize": action.resize, "state": action.state, "detail": action.detail}
        self.store.events.add(action.job_id, EventKind.of(action.state), "selasticd", detail, now)
        self.store.resizes.advance(action.resize, action.state, action.detail, at=now)
        why = f": {action.detail}" if action.detail else ""
        log.info(
            "job %d: resize %d %s%s", action.job_id, action.resize, action.state, why,
            extra={"JOB": action.job_id, "RESIZE": action.resize},
        )  # fmt: skip
        self._notify(action.job_id)

    def _begin(self, begins: Sequence[Resize], act: bool) -> list[Action]:
        """Begin resizes; those that have begun."""
        if not act or self.tripped:
            return []
        now = self.clock()
        try:
            rows, refused = self.store.resizes.begin_all(begins, now)
        except StoreError as error:
            log.warning("no resize begins: %s", error)
            return []
        begun = {row.job_id: row for row in rows}
        details: dict[int, dict[str, Any]] = {
            job_id: {"resize": row.id, "gpus": row.gpus, "batch": row.batch, "reason": row.reason}
            for job_id, row in begun.items()
        }
        self.store.events.add_all(details, EventKind.RESIZE_ISSUED, "selasticd", now)
        for job_id, row in begun.items():
            about = {"JOB": job_id, "RESIZE": row.id}
            log.info("job %d: resize %d to %d GPUs begins", job_id, row.id, row.gpus, extra=about)
            self._notify(job_id)
        self._note_not_begun(refused, now)
        return [one for one in begins if one.job_id in begun]

    def _note_not_begun(self, refused: Mapping[int, str], now: float) -> None:
        """Say why resizes have not begun: once of each job, as long as it is the same in every round."""
        fresh = {job_id: {"detail": why} for job_id, why in refused.items() if self._not_begun.get(job_id) != why}
        self._not_begun = refused
        for job_id, detail in fresh.items():
            log.warning("job %d: no resize begins: %s", job_id, detail["detail"], extra={"JOB": job_id})
        self.store.events.add_all(fresh, EventKind.NOT_BEGUN, "selasticd", now)

    def _ask(self, action: Act, jobs: Mapping[int, Job], resizes: Mapping[int, int]) -> bool:
        key, now, subject = action.question(), self.clock(), action.subject
        concerned = Concerned.of(subject, action.owner(jobs))
        before = self._refused.get(key)
        until, waited = self._taken.get(key, (0.0, 0.0))
        if now < until or (before is not None and now < before.until):
            return False
        if self.refusals.wide(action.kind, concerned, now) is not None:
            return False
        self._asks_left -= 1
        self.store.events.add(subject.job_id, action.kind, "selasticd", asdict(action), now)
        about = {"JOB": subject.job_id, "RESIZE": resizes.get(subject.job_id, 0)}
        log.info("%s: %s", subject.words, action.sentence(), extra=about)
        try:
            action.ask(self.client)
        except SlurmUnreachable as error:
            silent = "%s: Slurm does not answer, looking again next round: %s"
            log.warning(silent, subject.words, error, extra=about)
            self._asks_until = self._ticks()
            return False
        except SlurmError as error:
            self._note(key, action, concerned, str(error), about)
            for following in action.if_refused(str(error)):
                self._do(following, jobs, resizes)
            return False
        self.refusals.taken(action.kind, concerned)
        self._refused.pop(key, None)
        # Long quiet, it is another occasion: a job may be put back at the same size twice.
        wait = min(60.0, 2 * waited) if waited and now < until + waited + 60.0 else AGAIN_S
        self._taken = {k: entry for k, entry in self._taken.items() if entry[0] + 120.0 > now}
        self._taken[key] = (now + wait, wait)
        return True

    def _note(
        self, key: tuple[object, ...], action: Act, concerned: Concerned, sentence: str, about: Mapping[str, int]
    ) -> None:
        now = self.clock()
        count = self._refused[key].count + 1 if key in self._refused else 1
        wait = min(3600.0, self.backoff_s * 2 ** (count - 1))
        self._refused = {k: refusal for k, refusal in self._refused.items() if refusal.until + 7200 > now}
        self._refused[key] = _Refusal(count, now + wait, sentence)
        detail: dict[str, object] = {"action": asdict(action), "error": sentence, "again_in_s": wait}
        self.store.events.add(action.subject.job_id, EventKind.REFUSED, "selasticd", detail, now)
        words = "%s: refused (%s), trying again in %.0f s: %s"
        log.warning(words, action.subject.words, action.sentence(), wait, sentence, extra=about)
        if says_ended(sentence):
            return
        _, wide = self.refusals.refused(action.kind, concerned, sentence, now)
        if wide is None:
            return
        if wide.scope == ALL:
            self.tripped = f"jobs of several accounts and partitions were refused in a row, the last one: {sentence}"
            return
        rest_s = round(wide.until - now)
        why: dict[str, object] = {"action": action.kind, "scope": wide.scope, "error": sentence, "again_in_s": rest_s}
        self.store.events.add(0, EventKind.RESTS, "selasticd", why, now)
        log.warning("%s is not tried for %s for %d s: %s", action.kind, wide.scope, rest_s, sentence)
