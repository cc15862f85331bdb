"""The join commands of a job's nodes, and how its own command hears of nodes that come and go. Pure.

A change goes over when the join command is ready on every node that it adds, and has ended on those that it drops, or
their drain time is over. A node whose join command ends by itself, or whose agent is lost, is given back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slurm_elastic.protocol.messages import Piece

from ..allocation.pieces import events
from ..allocation.pieces.actions import Action, Print
from ..allocation.pieces.events import Event, Timer
from ..allocation.pieces.holding import Handlers, Holding, Limits, Part
from ..allocation.pieces.table import ADDED, IN_USE, NodeKey, State, nodes_of

SETTLED_S = 2.0
"""A join command that says nothing is ready when it has run so long."""
SIGTERM_CODE = 128 + 15


@dataclass(frozen=True, slots=True)
class HoldLimits(Limits):
    warm_up_s: float = 120.0
    drain_s: float = 60.0
    """What the leave command and the join command that is told to end have together."""
    says_ready: bool = False
    """The join command says when it is ready."""


@dataclass(frozen=True, slots=True)
class StartJoin(Action):
    """Start the join command on a node. index: of the node, 0 for the batch host. size: nodes of the whole job."""

    node: NodeKey
    name: str
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class StartLeave(Action):
    """Run the leave command here, for nodes that go, or are lost."""

    nodes: tuple[str, ...]
    lost: bool


@dataclass(frozen=True, slots=True)
class End(Action):
    """Tell a join command to end; without one the job's own command."""

    join: Join | None = None


class KillLeave(Action):
    """Kill the leave command for nodes that go."""

    __slots__ = ()


class CommandEnded(Timer, Event):
    """The job's own command has ended, or its time for that is over; `of`: its exit code."""


class JoinReady(Timer, Event):
    """The join command of this name has said so, or has run for a while."""


class LeaveEnded(Timer, Event):
    """The leave command for nodes that go has ended."""


class Drained(Timer):
    """The drain time is over."""


@dataclass(frozen=True, slots=True)
class JoinEnded(Event):
    """tail: the last lines that it wrote."""

    name: str
    how: str
    tail: tuple[str, ...] = ()


@dataclass(slots=True)
class Join:
    node: NodeKey
    name: str
    index: int
    ready: bool = False
    ending: bool = False


class Held(Holding):
    """What a job of `selastic hold` holds. Each GPU counts as a sample of the batch, which it has none of."""

    limits: HoldLimits

    def __init__(self, pieces: tuple[Piece, ...], limits: HoldLimits, generation: int, unit: str, program: str) -> None:
        super().__init__(pieces, limits)
        self.generation, self.unit, self.program = generation, unit, program
        self.report_every_s = 0.0
        self.joined: dict[NodeKey, Join] = {}

    @property
    def going(self) -> frozenset[NodeKey]:
        """Nodes in use that the change under way drains, or will."""
        return self.leaving if self.change is not None else frozenset()

    def late(self) -> list[str]:
        slow = [f"the join command on {join.node[1]}" for join in self.joined.values() if not join.ready]
        return [*super().late(), *slow]

    def tell(self, *given: Any, **figures: Any) -> None:
        self.batch = sum(piece.gpus for piece in self.pieces)
        super().tell(*given, **figures)

    def register(self, **figures: Any) -> None:
        self.batch = sum(piece.gpus for piece in self.pieces)
        super().register(unit=self.unit, program=self.program, **figures)


class Joins(Part[Held]):
    """The part of the machine that is `selastic hold`."""

    def __init__(self, context: Held) -> None:
        super().__init__(context)
        self._count = 0
        self._leaves = False
        """The leave command runs for nodes that go."""

    def handlers(self) -> Handlers:
        return {
            events.NodeUp: lambda event: self._up(event.node),
            events.NodesSettled: lambda event: self._settled(),
            events.NodeLeft: lambda event: self._forget(event.node),
            events.PiecesReady: lambda event: self._ready(),
            events.PiecesLeaving: lambda event: self._drain(),
            events.PiecesGone: lambda event: self._do_without(event.nodes, event.why),
            events.ChangeUndone: lambda event: self._undone(),
            events.RequeueAsked: self._requeue,
            events.BaseGone: lambda event: self._end(event.code),
            events.DirectoryTaken: lambda event: self._end(1),
            events.JobTerminating: self._terminating,
            CommandEnded: lambda event: self._end(event.of),
            JoinReady: self._said_ready,
            JoinEnded: self._ended,
            LeaveEnded: lambda event: self._left(),
            Drained: lambda event: self._drained(),
        }

    # --- nodes that come --------------------------------------------------------------------------------------

    def _settled(self) -> None:
        context = self._context
        if not context.awaited and not context.settled:
            context.settled = True
            context.register()
            context.emit(events.BeginWaitingResize())

    def _up(self, node: NodeKey) -> None:
        """Every node but the batch host, where the job's own command is, gets a join command."""
        context = self._context
        if node == context.batch_host:
            return
        self._forget(node)
        self._count += 1
        taken = {join.index for join in context.joined.values()}
        index = next(number for number in range(1, len(taken) + 2) if number not in taken)
        join = context.joined[node] = Join(node, f"{node[0]}.{node[1]}.{self._count}", index)
        context.do(StartJoin(node, join.name, index, len({*context.nodes.of(*IN_USE, *ADDED)} - context.going)))
        if not context.limits.says_ready:
            context.timers.set(JoinReady(join.name), context.now + SETTLED_S)

    def _forget(self, node: NodeKey) -> None:
        if (join := self._context.joined.pop(node, None)) is not None:
            self._context.timers.cancel(JoinReady(join.name))

    def _named(self, name: str) -> Join | None:
        return next((join for join in self._context.joined.values() if join.name == name), None)

    def _said_ready(self, event: JoinReady) -> None:
        if (join := self._named(event.of)) is not None:
            join.ready = True
            self._ready()

    def _ready(self) -> None:
        """With the last join command ready, and all hosts within reach, what leaves is drained, if anything does."""
        context, change = self._context, self._context.change
        added = context.nodes.of(*ADDED)
        if change is None or change.begun or context.nodes.of(State.ASKED) or added != context.nodes.of(State.READY):
            return
        if all(node in context.joined and context.joined[node].ready for node in added):
            self._drain()

    # --- nodes that go ----------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """From here on there is no way back: the program has been told."""
        context, change = self._context, self._context.begin()
        change.agreed = True
        if not context.going:
            self._go_over()
            return
        self._leaves = True
        context.timers.set(Drained(), context.now + context.limits.drain_s)
        context.do(StartLeave(names(context.going), lost=False))

    def _left(self) -> None:
        """The program has let go of the nodes: their join commands end."""
        if not self._leaves:
            return
        self._leaves = False
        for node in self._context.going & self._context.joined.keys():
            self._context.joined[node].ending = True
            self._context.do(End(self._context.joined[node]))
        self._go_over_if_drained()

    def _drained(self) -> None:
        """In any case: agents end what is left of the join commands."""
        context = self._context
        if self._leaves:
            context.do(KillLeave())
            context.do(Print(f"the leave command was not done in {context.limits.drain_s:.0f} s"))
            self._left()
        if context.change is not None:
            self._go_over()

    def _go_over_if_drained(self) -> None:
        context = self._context
        begun = context.change is not None and context.change.begun
        if begun and not self._leaves and context.going.isdisjoint(context.joined):
            self._go_over()

    def _go_over(self) -> None:
        context, change = self._context, self._context.change
        assert change is not None
        context.timers.cancel(Drained())
        for node in context.go_over():
            self._forget(node)
        self._now_in_use(change.id, change.reason)
        context.emit(events.BeginWaitingResize())

    def _now_in_use(self, change: int, why: str) -> None:
        context = self._context
        context.generation += 1
        context.register()
        context.tell(change, "running", why)
        context.do(Print(f"{len(nodes_of(context.pieces))} nodes, {sum(p.gpus for p in context.pieces)} GPUs"))

    # --- what is lost -----------------------------------------------------------------------------------------

    def _do_without(self, lost: frozenset[NodeKey], why: str) -> None:
        """The program is told of the nodes that it had; of the batch host only the agent is lost, and started again."""
        context, gone = self._context, lost - {self._context.batch_host}
        for node in gone:
            self._forget(node)
        context.do_without_lost()
        context.settled = not context.awaited
        if gone:
            context.do(Print(f"{why}: going on without it"))
            context.do(StartLeave(names(gone), lost=True))
            self._now_in_use(0, why)
            self._go_over_if_drained()

    def _ended(self, event: JoinEnded) -> None:
        """By itself it ends for a reason: its node is given back. Not where it was told to end."""
        context, join = self._context, self._named(event.name)
        if join is None:
            return
        self._forget(join.node)
        why = ": ".join([f"the join command on {join.node[1]} ended with {event.how}", *event.tail[-1:]])
        if join.node in context.going:
            self._go_over_if_drained()
        elif context.joins(join.node):
            context.lose_added({join.node}, why)
        else:
            context.use_without([join.node])
            self._do_without(frozenset([join.node]), why)

    def _undone(self) -> None:
        context = self._context
        for join in [join for join in context.joined.values() if join.node not in context.nodes.of(*IN_USE)]:
            context.do(End(join))
            self._forget(join.node)
        context.emit(events.BeginWaitingResize())

    def _requeue(self, event: events.RequeueAsked) -> None:
        if event.resize_id:
            self._context.tell(event.resize_id, "failed", "selastic hold keeps no state to start again from")

    # --- the end ----------------------------------------------------------------------------------------------

    def _terminating(self, event: events.JobTerminating) -> None:
        """Its own command decides, as long as Slurm lets it."""
        last = CommandEnded(SIGTERM_CODE)
        if event.stop and last not in self._context.timers:
            self._context.do(End())
            self._context.timers.set(last, self._context.now + event.deadline_s)

    def _end(self, code: int) -> None:
        self._context.over = True
        for join in self._context.joined.values():
            self._context.do(End(join))
        self._context.close(code)


def names(nodes: frozenset[NodeKey]) -> tuple[str, ...]:
    return tuple(sorted({node for _, node in nodes}))
