"""What the supervisor of one job does about what happens to it: events in, actions out.

Pure: no clock, no I/O, no process; `now` is an argument, and the driver carries out what it returns. It never
gambles with the training: until a new world has done its first step the pieces of the old one are what the job uses,
and every doubt ends in a restart from the last checkpoint, a bounded number of times. Here: the dispatch. The parts
share the context and know nothing of each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ...allocation.pieces.events import AgentUp, Event
from .actions import Action, QuitAgent
from .checkpoints import Checkpoints
from .context import Mode, SupervisorContext
from .events import Started
from .job_end import JobEnd
from .nodes import Nodes
from .resize import Resizes
from .restarts import Restarts
from .roll_back import RollBack
from .timers import Timer
from .warm_up import WarmUp
from .worker_messages import Hangs, WorkerMessages

Call = tuple[Callable[[Any], None], Any]
PARTS = (WorkerMessages, Nodes, WarmUp, RollBack, Resizes, Restarts, Checkpoints, Hangs, JobEnd)
"""In the order in which those that subscribe to the same event take it."""


class Machine:
    """`start`, `handle` and `tick` return the actions to carry out, in order."""

    def __init__(self, context: SupervisorContext) -> None:
        self.context = context
        self._handlers: dict[type[Any], list[Callable[[Any], None]]] = {}
        self.parts = [part(context) for part in PARTS]
        for part in self.parts:
            for kind, handler in part.handlers().items():
                self._handlers.setdefault(kind, []).append(handler)

    def start(self, now: float) -> list[Action]:
        self.context.now = now
        self._dispatch(Started())
        return self.context.take_actions()

    def handle(self, event: Event, now: float) -> list[Action]:
        self.context.now = now
        if self.context.mode is not Mode.ENDED:
            self._dispatch(event)
        elif isinstance(event, AgentUp):
            self.context.do(QuitAgent(event.agent))
        return self.context.take_actions()

    def tick(self, now: float) -> list[Action]:
        """Let the timers that are due go off."""
        self.context.now = now
        for timer in self.context.timers.take_due(now):
            if self.context.mode is not Mode.ENDED:
                self._dispatch(timer)
        return self.context.take_actions()

    def deadline(self) -> float | None:
        """When `tick` is next needed."""
        return self.context.timers.next_due()

    def _dispatch(self, event: Event | Timer | Started) -> None:
        """Depth first: what a handler emits comes before what waits already, in the order of emission."""
        pending = deque(self._calls([event]))
        while pending:
            handler, taken = pending.popleft()
            handler(taken)
            pending.extendleft(reversed(self._calls(self.context.take_emitted())))

    def _calls(self, events: list[Any]) -> list[Call]:
        return [(handler, event) for event in events for handler in self._handlers[type(event)]]
