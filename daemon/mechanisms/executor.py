"""Carries actions out: an event before each, its outcome after, and memory of what Slurm refused.

Promise: what Slurm refused is not asked again before its backoff is over, and what it took without any effect ever less
often; when slurmctld does not answer, nothing is concluded and nothing counted; several refusals in a row trip it: it
changes nothing for a while, then tries one action, and only when Slurm takes that does it go on as before.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Protocol

from slurm_elastic.protocol.errors import SlurmError, SlurmRefused, SlurmUnreachable

from ..capacity.requeue_placement import reservation_of
from ..slurm.model import Size
from .actions import Act, Action, Advance, Cancel, Close, Free, Requeue, Resume, Shrink

log = logging.getLogger(__name__)

AGAIN_S = 0.5
"""Before the same is asked again that Slurm has taken; twice as long each time, up to a minute."""
RESERVED_MIN = 10
"""Minutes after which Slurm ends a reservation that no daemon was left to end; jobs in it run on."""


class Client(Protocol):
    """What it needs of Slurm."""

    def shrink(self, job_id: int, nodes: tuple[str, ...]) -> None: ...

    def cancel(self, job_id: int) -> None: ...

    def requeue(self, job_id: int) -> None: ...

    def resize_waiting(self, job_id: int, size: Size, reservation: str = "") -> None: ...

    def reserve(self, name: str, nodes: tuple[str, ...], user: str, minutes: int) -> None: ...

    def unreserve(self, name: str, job_id: int = 0) -> None: ...


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
        trip_s: float = 600.0,
    ) -> None:
        self.client, self.store, self.clock = client, store, clock
        self.backoff_s, self.trip_after, self.trip_s = backoff_s, trip_after, trip_s
        self.failures = 0
        """Refused actions in a row."""
        self.tripped = ""
        """Why nothing is changed for now; empty while all is well."""
        self._trips, self._until = 0, 0.0
        self._refused: dict[tuple[object, ...], _Refusal] = {}
        self._taken: dict[tuple[object, ...], tuple[float, float]] = {}
        """What Slurm took: until when it is not asked again, and how long that was."""

    def recover(self) -> bool:
        """Try again when the time for it has come, with the first action that is refused tripping it anew."""
        if not self.tripped or self.clock() < self._until:
            return False
        self.tripped, self.failures = "", self.trip_after - 1
        log.warning("actions are tried again after %d refusals in a row", self.trip_after)
        return True

    def run(self, actions: Iterable[Action], act: bool) -> int:
        """Carry the actions out; how many changed something. Without `act` resizes are closed, Slurm is left alone."""
        done = 0
        for action in actions:
            if isinstance(action, Close):
                self._close(action)
                done += 1
            elif isinstance(action, Advance):
                if act and not self.tripped:
                    self.store.move_intent(action.intent, action.state, at=self.clock())
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

    def _ask(self, action: Act) -> bool:
        key, now = _key(action), self.clock()
        before = self._refused.get(key)
        until, waited = self._taken.get(key, (0.0, 0.0))
        if now < until or (before is not None and now < before.until):
            return False
        self.store.add_event(action.job_id, type(action).__name__.lower(), "selasticd", asdict(action), now)
        log.info("job %d: %s", action.job_id, _sentence(action))
        try:
            self._tell(action)
        except SlurmUnreachable as error:
            log.warning("job %d: Slurm does not answer, looking again next round: %s", action.job_id, error)
            return False
        except SlurmError as error:
            self._note(key, action, str(error))
            if isinstance(action, Requeue | Resume) and action.intent:
                # What was done before it stays, but for the nodes kept; what fits is looked at anew in the next round.
                self._ask(Free(action.job_id, action.slurm_job_id, "its resize was refused"))
                self._close(Close(action.job_id, action.intent, "failed", str(error)))
            return False
        self.failures = self._trips = 0
        self._refused.pop(key, None)
        # Long quiet, it is another occasion: a job may be put back at the same size twice.
        wait = min(60.0, 2 * waited) if waited and now < until + waited + 60.0 else AGAIN_S
        self._taken = {k: entry for k, entry in self._taken.items() if entry[0] + 120.0 > now}
        self._taken[key] = (now + wait, wait)
        return True

    def _tell(self, action: Act) -> None:
        """Ask Slurm for it. Raises SlurmError."""
        client, slurm_id = self.client, action.slurm_job_id
        if isinstance(action, Shrink):
            client.shrink(slurm_id, action.nodes)
        elif isinstance(action, Cancel):
            client.cancel(slurm_id)
        elif isinstance(action, Requeue):
            self._keep_nodes(action)
            client.requeue(slurm_id)
        elif isinstance(action, Resume):
            client.resize_waiting(slurm_id, action.size, reservation_of(slurm_id) if action.intent else "")
        else:
            # Whoever may not make reservations may not end one either, and then there is none.
            with contextlib.suppress(SlurmRefused):
                client.unreserve(reservation_of(slurm_id), slurm_id)

    def _keep_nodes(self, action: Requeue) -> None:
        """Where the site does not let us, another job may take them in the seconds in which nobody has them."""
        try:
            self.client.reserve(reservation_of(action.slurm_job_id), action.nodes, action.user, RESERVED_MIN)
        except SlurmRefused as error:
            log.info("job %d is put back without its nodes being kept for it: %s", action.job_id, error)

    def _note(self, key: tuple[object, ...], action: Act, sentence: str) -> None:
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
        if self.failures >= self.trip_after and not self.tripped:
            self._until = now + min(86400.0, self.trip_s * 2**self._trips)
            self._trips += 1
            self.tripped = f"{self.failures} actions in a row were refused, the last one: {sentence}"


def _key(action: Act) -> tuple[object, ...]:
    """Two actions with one key are one question to Slurm."""
    what = action.nodes if isinstance(action, Shrink) else action.size if isinstance(action, Resume) else None
    return (type(action), action.slurm_job_id, what)


def _sentence(action: Act) -> str:
    words = {Shrink: "shrink", Cancel: "cancel", Requeue: "requeue", Resume: "resume", Free: "free the nodes of"}
    text = f"{words[type(action)]} {action.slurm_job_id}"
    if isinstance(action, Shrink):
        text += f" to {','.join(action.nodes)}"
    elif isinstance(action, Resume):
        text += f" at {action.size.nodes} x {action.size.gpus_per_node} GPUs"
    return f"{text}: {action.why}"


def _because(detail: str) -> str:
    return f": {detail}" if detail else ""
