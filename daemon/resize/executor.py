"""Carries actions out: an event before each, its outcome after, and memory of what Slurm refused.

Promise: what Slurm refused is not asked again before its backoff is over; when slurmctld does not answer, nothing is
concluded and nothing counted; several refusals in a row trip it, and it changes nothing more until told to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Protocol

from slurm_elastic.trainer_shim.errors import SlurmError, SlurmUnreachable

from .rules import Action, Cancel, Close, Shrink

log = logging.getLogger(__name__)


class Client(Protocol):
    """What it needs of Slurm."""

    def shrink(self, job_id: int, nodes: tuple[str, ...]) -> None: ...

    def cancel(self, job_id: int) -> None: ...


class Records(Protocol):
    """What it needs of the store."""

    def add_event(self, job_id: int, kind: str, who: str, detail: dict[str, object], at: float) -> object: ...

    def move_intent(self, intent_id: int, state: str, detail: str = "", at: float | None = None) -> object: ...


@dataclass(slots=True)
class _Refusal:
    count: int
    until: float
    sentence: str


class Executor:
    """One per daemon; not thread-safe, the rounds use it one after the other."""

    def __init__(
        self,
        client: Client,
        store: Records,
        clock: Callable[[], float],
        backoff_s: float = 60.0,
        trip_after: int = 5,
    ) -> None:
        self.client, self.store, self.clock = client, store, clock
        self.backoff_s, self.trip_after = backoff_s, trip_after
        self.failures = 0
        """Refused actions in a row."""
        self.tripped = ""
        """Why nothing is changed any more; empty while all is well."""
        self._refused: dict[tuple[object, ...], _Refusal] = {}

    def run(self, actions: Iterable[Action], act: bool) -> int:
        """Carry the actions out; how many changed something. Without `act` resizes are closed, Slurm is left alone."""
        done = 0
        for action in actions:
            if isinstance(action, Close):
                self._close(action)
                done += 1
            elif act and not self.tripped and self._ask(action):
                done += 1
        return done

    def _close(self, action: Close) -> None:
        now = self.clock()
        detail: dict[str, object] = {"resize": action.intent, "state": action.state, "detail": action.detail}
        self.store.add_event(action.job_id, f"resize_{action.state}", "selasticd", detail, now)
        self.store.move_intent(action.intent, action.state, action.detail, at=now)
        log.info("job %d: resize %d %s%s", action.job_id, action.intent, action.state, _because(action.detail))

    def _ask(self, action: Shrink | Cancel) -> bool:
        key, now = _key(action), self.clock()
        before = self._refused.get(key)
        if before is not None and now < before.until:
            return False
        kind = "shrink" if isinstance(action, Shrink) else "cancel"
        self.store.add_event(action.job_id, kind, "selasticd", asdict(action), now)
        log.info("job %d: %s", action.job_id, _sentence(action))
        try:
            if isinstance(action, Shrink):
                self.client.shrink(action.slurm_job_id, action.nodes)
            else:
                self.client.cancel(action.slurm_job_id)
        except SlurmUnreachable as error:
            log.warning("job %d: Slurm does not answer, looking again next round: %s", action.job_id, error)
            return False
        except SlurmError as error:
            self._note(key, action, str(error))
            return False
        self.failures = 0
        self._refused.pop(key, None)
        return True

    def _note(self, key: tuple[object, ...], action: Shrink | Cancel, sentence: str) -> None:
        now = self.clock()
        count = self._refused[key].count + 1 if key in self._refused else 1
        wait = min(3600.0, self.backoff_s * 2 ** (count - 1))
        self._refused = {k: refusal for k, refusal in self._refused.items() if refusal.until + 7200 > now}
        self._refused[key] = _Refusal(count, now + wait, sentence)
        detail: dict[str, object] = {"action": asdict(action), "error": sentence, "again_in_s": wait}
        self.store.add_event(action.job_id, "refused", "selasticd", detail, now)
        log.warning(
            "job %d: refused (%s), trying again in %.0f s: %s", action.job_id, _sentence(action), wait, sentence
        )
        self.failures += 1
        if self.failures >= self.trip_after:
            self.tripped = f"{self.failures} actions in a row were refused, the last one: {sentence}"


def _key(action: Shrink | Cancel) -> tuple[object, ...]:
    if isinstance(action, Shrink):
        return ("shrink", action.slurm_job_id, action.nodes)
    return ("cancel", action.slurm_job_id)


def _sentence(action: Shrink | Cancel) -> str:
    if isinstance(action, Shrink):
        return f"shrink {action.slurm_job_id} to {','.join(action.nodes)}: {action.why}"
    return f"cancel {action.slurm_job_id}: {action.why}"


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""
