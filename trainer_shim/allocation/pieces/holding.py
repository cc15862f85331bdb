"""What a job holds, as its parts and a framework see it: the table of its nodes, the change under way, and what can be
done about them.

Pure. A part reads and changes the state here, and adds actions; it never calls another part. Where another part has to
act it emits an event, which the machine dispatches within the same call. A framework derives its own context from this
one, says with `settled` and `over` when pieces may change, and answers PiecesReady and PiecesLeaving with `begin` and
`go_over`, or with `undo`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from slurm_elastic.protocol.codec import VERSION
from slurm_elastic.protocol.messages import FINISHED, Happening, Piece, Registration, Unreached

from . import actions, events
from .events import AgentsTimer, CompanionTimer, Timer
from .table import ADDED, ALONE, IN_USE, THERE, Change, NodeKey, NodeTable, State, joined, nodes_of

Handlers = Mapping[type[Any], Callable[[Any], None]]
"""What a part does about each kind of event that it subscribes to."""


MOST_NAMED = 3
"""What a sentence names of many."""


def some(names: Sequence[str]) -> str:
    """The first of them, and how many more."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


@dataclass(frozen=True, slots=True)
class Limits:
    agents_s: float = 120.0
    """From starting the agents to their connection; nodes that stay silent longer are left out."""
    warm_up_s: float = 900.0
    """From a companion's grant to its being ready for use, where selasticd does not end it sooner (warm_up_s)."""
    end_s: float = 25.0
    """From Slurm's SIGTERM to the end of the job, a little less than to its SIGKILL."""


class Timers:
    """When each of them is due."""

    def __init__(self) -> None:
        self._due: dict[Timer, float] = {}

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._due

    def set(self, timer: Timer, due: float) -> None:
        self._due[timer] = due

    def cancel(self, timer: Timer) -> None:
        self._due.pop(timer, None)

    def cancel_every(self, kind: type[Timer]) -> None:
        for timer in [timer for timer in self._due if isinstance(timer, kind)]:
            del self._due[timer]

    def clear(self) -> None:
        self._due.clear()

    def next_due(self) -> float | None:
        return min(self._due.values(), default=None)

    def take_due(self, now: float) -> Iterator[Timer]:
        """The timers due at `now`, each cancelled as it is given; not those that an earlier one has cancelled."""
        for timer in [timer for timer, due in self._due.items() if due <= now]:
            if self._due.get(timer, now + 1.0) <= now:
                del self._due[timer]
                yield timer


class Holding:
    def __init__(self, pieces: tuple[Piece, ...], limits: Limits | None = None) -> None:
        """pieces: the base first, its batch host first."""
        self.limits = limits or Limits()
        self.now = 0.0
        self.timers = Timers()
        self.nodes = NodeTable()
        for piece in pieces:
            for key in nodes_of([piece]):
                self.nodes.begin(key, piece, State.AWAITED)
        self.batch_host: NodeKey = nodes_of(pieces)[0]
        self.change: Change | None = None
        self.settled = False
        """A change of pieces may begin."""
        self.over = False
        """None begins any more."""
        self.ended = False
        """Nothing is handled any more."""
        self.refused: dict[int, str] = {}
        """By a size in GPUs: why the framework cannot have it."""
        self.ending = self.stopping = False
        """The job is about to be killed; it is to end by itself as soon as its state is saved."""
        self.generation = self.batch = 0
        """What selasticd is told of with the pieces; a framework without them leaves them."""
        self._launches = 0
        self._actions: list[actions.Action] = []
        self._emitted: list[Any] = []

    # --- out --------------------------------------------------------------------------------------------------

    def do(self, action: actions.Action) -> None:
        self._actions.append(action)

    def emit(self, event: object) -> None:
        """Have an event dispatched after the handler that runs now, before anything that waits already."""
        self._emitted.append(event)

    def take_actions(self) -> list[actions.Action]:
        taken, self._actions = self._actions, []
        return taken

    def take_emitted(self) -> list[Any]:
        taken, self._emitted = self._emitted, []
        return taken

    def tell(
        self, resize_id: int, what: str, detail: str = "", unreached: tuple[Unreached, ...] = (), **figures: Any
    ) -> None:
        """Something that has happened, for the daemon, with what is in use now. figures: other fields of it."""
        known = resize_id if resize_id < ALONE else 0
        said = Happening(known, what, self.generation, self.pieces, self.batch, detail=detail, unreached=unreached)
        self.do(actions.Tell(replace(said, **figures)))

    def register(self, **figures: Any) -> None:
        """selasticd hears what is in use now. figures: other fields of Registration."""
        now = Registration(VERSION, self.generation, self.pieces, self.batch)
        self.do(actions.UpdateRegistration(replace(now, **figures)))

    # --- what there is ----------------------------------------------------------------------------------------

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self.nodes.pieces(*IN_USE)

    @property
    def coming_pieces(self) -> tuple[Piece, ...]:
        """Those in use once the change under way is done."""
        if self.change is None:
            return self.pieces
        return joined([*self.change.keep, *self.nodes.pieces(*ADDED)])

    @property
    def leaving(self) -> frozenset[NodeKey]:
        """Nodes in use that the change does without."""
        return frozenset(self.nodes.of(*IN_USE)).difference(nodes_of(self.change.keep) if self.change else ())

    @property
    def awaited(self) -> list[NodeKey]:
        return self.nodes.of(State.AWAITED)

    def available(self, key: NodeKey) -> bool:
        """Whether this node's agent is there, and not quitting."""
        return self.nodes.state(key) in THERE

    def joins(self, key: NodeKey) -> bool:
        """Whether the change under way adds this node."""
        return self.nodes.state(key) in ADDED

    # --- agents -----------------------------------------------------------------------------------------------

    def launch(self, piece: Piece) -> None:
        """Start one agent on each node of this piece."""
        self._launches += 1
        for key in nodes_of([piece]):
            self.nodes.rows[key].launch = self._launches
        self.do(actions.LaunchAgents(piece, self._launches))

    def expect_agents(self) -> None:
        self.timers.set(AgentsTimer(), self.now + self.limits.agents_s)

    def quit(self, keys: Iterable[NodeKey]) -> None:
        """These nodes are used no more."""
        for key in keys:
            if self.available(key):
                self.nodes.move(key, State.LEAVING)
                self.do(actions.QuitAgent(key))
            elif self.nodes.state(key) in (State.STARTING, State.LOST):
                self.nodes.leave(key)

    def lose(self, key: NodeKey) -> None:
        """An agent's connection is gone, and with it all that ran on its node."""
        state, why = self.nodes.state(key), f"node {key[1]} of job {key[0]} was lost"
        if state is State.USED:
            self.nodes.move(key, State.LOST)
            self.emit(events.PiecesGone(frozenset({key}), why, joins=False))
            return
        if state in (State.TRYING, State.READY, State.LEAVING):
            self.nodes.leave(key)
        self.emit(events.NodeLeft(key))
        if state in (State.TRYING, State.READY):
            self.lose_added({key}, f"{why} before its workers' first step")

    def lose_added(self, keys: Iterable[NodeKey], why: str, unreached: tuple[Unreached, ...] = ()) -> None:
        """What the change adds does not come. Where there is a way back it is undone, else the framework decides."""
        if self.change is None or not self.change.agreed:
            self.undo(why, unreached=unreached)
            return
        gone = frozenset(keys)
        self.quit(gone)
        for job_id in {job_id for job_id, _ in gone} - {job_id for job_id, _ in self.nodes.rows}:
            self.do(actions.CancelCompanion(job_id))
        self.emit(events.PiecesGone(gone, why, joins=True))

    def do_without_lost(self) -> None:
        """Reduce the pieces to what is there or awaited. The batch host always stays: its agent is started again."""
        if self.nodes.state(self.batch_host) is State.LOST:
            self.nodes.move(self.batch_host, State.AWAITED)
            self.expect_agents()
            self.launch(replace(self.pieces[0], nodes=self.pieces[0].nodes[:1]))
        self.leave_out_lost()

    def leave_out_lost(self) -> None:
        """The same, but for the batch host."""
        for piece in self.nodes.pieces(State.LOST):
            for key in nodes_of([piece]):
                if key != self.batch_host:
                    self.nodes.leave(key)
            if piece.kind == "companion" and piece.slurm_job_id not in self.nodes.jobs():
                # Perhaps it is only cut off: nobody else ends it soon.
                self.do(actions.CancelCompanion(piece.slurm_job_id))

    # --- changes ----------------------------------------------------------------------------------------------

    def begin(self) -> Change:
        """The framework goes over to what is coming: the change is not taken back any more without asking it."""
        assert self.change is not None
        self.change.begun = True
        self.timers.cancel(CompanionTimer())
        if self.nodes.of(State.READY):
            self.tell(self.change.id, "ready")
        return self.change

    def go_over(self) -> frozenset[NodeKey]:
        """The framework has gone over to `coming_pieces`: that is in use now. Returns the nodes that were left, whose
        agents are told to quit. selasticd gives them back to Slurm; what Slurm itself takes away it gets at once."""
        change, left = self.change, self.leaving
        for key in self.nodes.of(State.READY):
            self.nodes.move(key, State.USED)
        self.use_without(left)
        if change is not None and not change.id:
            for job_id in sorted({job_id for job_id, _ in left} - self.nodes.jobs()):
                self.do(actions.CancelCompanion(job_id))
        self._over()
        return left

    def use_without(self, left: Iterable[NodeKey]) -> None:
        """These nodes are in use no more."""
        self.quit(sorted(left))
        self.retain()

    def late(self) -> list[str]:
        """The names of what the change adds and is not ready."""
        return [node for _, node in self.nodes.of(State.STARTING, State.TRYING)]

    def undo(self, why: str, phase: str = "failed", unreached: tuple[Unreached, ...] = ()) -> None:
        """Undo the change under way, if there is one: the job goes on with the pieces that it has."""
        change = self.change
        if change is None:
            return
        if phase == "failed":
            why = self.refused.get(sum(piece.gpus for piece in self.coming_pieces), why)
        self._over()
        self.quit(self.nodes.of(*ADDED))
        for key in self.nodes.of(State.ASKED, State.GRANTED):
            del self.nodes.rows[key]
        if change.asked:
            self.do(actions.DropCompanions(change.id))
        self.retain()
        if change.id:
            self.tell(change.id, phase, why, unreached)
            self.do(actions.Print(f"resize {change.id} {phase}: {why}"))
        self.emit(events.ChangeUndone(change, why))

    def close(self, code: int, **figures: Any) -> None:
        """End the job with this exit code; nothing is handled any more. figures: of what says so."""
        self.ended = True
        self.undo("the job is ending", "withdrawn")
        self.timers.clear()
        self.tell(0, FINISHED, f"exit code {code}", exit_code=code, **figures)
        self.quit(self.nodes.of(*THERE))
        self.do(actions.Exit(code))

    def retain(self) -> None:
        """Forget the companions that are not in use any more: a job may have thousands of them, one after another."""
        self.nodes.forget(State.LEFT)
        self.do(actions.RetainJobs(self.nodes.jobs()))

    def _over(self) -> None:
        self.change = None
        self.timers.cancel(CompanionTimer())


Context = TypeVar("Context", bound=Holding)


class Part(ABC, Generic[Context]):
    """One part of the machine."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @abstractmethod
    def handlers(self) -> Handlers:
        """What it subscribes to."""
