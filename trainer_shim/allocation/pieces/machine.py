"""What one job does about what happens to it: events in, actions out.

Pure: no clock, no I/O, no process; `now` is an argument, and the driver carries out what it returns. Here: the
dispatch. The parts share the context and know nothing of each other; a framework adds its own to PARTS.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic

from .actions import Action, QuitAgent
from .events import AgentUp, Event, Started
from .holding import Context, Part

Call = tuple[Callable[[Any], None], Any]


class Machine(Generic[Context]):
    """`start`, `handle` and `tick` return the actions to carry out, in order."""

    def __init__(self, context: Context, parts: Sequence[Callable[[Context], Part[Any]]]) -> None:
        """parts: in the order in which those that subscribe to the same event take it."""
        self.context = context
        self._handlers: dict[type[Any], list[Callable[[Any], None]]] = {}
        self.parts = [part(context) for part in parts]
        for part in self.parts:
            for kind, handler in part.handlers().items():
                self._handlers.setdefault(kind, []).append(handler)

    def start(self, now: float) -> list[Action]:
        self.context.now = now
        self._dispatch(Started())
        return self.context.take_actions()

    def handle(self, event: Event, now: float) -> list[Action]:
        self.context.now = now
        if not self.context.ended:
            self._dispatch(event)
        elif isinstance(event, AgentUp):
            self.context.do(QuitAgent(event.agent))
        return self.context.take_actions()

    def tick(self, now: float) -> list[Action]:
        """Let the timers that are due go off."""
        self.context.now = now
        for timer in self.context.timers.take_due(now):
            if not self.context.ended:
                self._dispatch(timer)
        return self.context.take_actions()

    def deadline(self) -> float | None:
        """When `tick` is next needed."""
        return self.context.timers.next_due()

    def _dispatch(self, event: object) -> None:
        """Depth first: what a handler emits comes before what waits already, in the order of emission."""
        pending = deque(self._calls([event]))
        while pending:
            handler, taken = pending.popleft()
            handler(taken)
            pending.extendleft(reversed(self._calls(self.context.take_emitted())))

    def _calls(self, events: list[Any]) -> list[Call]:
        return [(handler, event) for event in events for handler in self._handlers.get(type(event), ())]
