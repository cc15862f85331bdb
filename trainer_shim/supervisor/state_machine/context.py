"""What the parts of the supervisor's state machine share beside the nodes (allocation/pieces): workers, and worlds.

Pure. It never gambles with the training: until a new world has done its first step the pieces of the old one are what
the job uses, and every doubt ends in a restart from the last checkpoint, a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from slurm_elastic.protocol.bottleneck import Pace
from slurm_elastic.protocol.json_lines import LARGEST, Message
from slurm_elastic.protocol.messages import Piece, Unreached

from ...allocation.pieces.holding import Holding, Limits
from ...allocation.pieces.table import ADDED, Change, NodeKey, nodes_of
from . import actions, events
from .events import DisconnectedTimer, KillTimer, RollBackTimer

CHECKPOINT_S = 600.0
"""Between two checkpoints, while nothing is known that says how often is best."""


class Mode(Enum):
    """STARTING: workers warm up. FORMING: they have a world, its first step is awaited. RESTARTING: old ones die."""

    STARTING = "starting"
    FORMING = "forming"
    RUNNING = "running"
    RESTARTING = "restarting"
    FINISHING = "finishing"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class RunLimits(Limits):
    kill_s: float = 15.0
    """From a kill to the process's end; a node that stays silent longer is given up."""
    world_s: float = 120.0
    """How long the workers of a coming world may take to arrive; and, when it fails, those of the old one to go on."""
    forming_s: float = 30.0
    """Longest time for one communication while a process group forms and state is handed over."""
    first_step_s: float = 600.0
    """Longest time for one communication in a new world's first step: it may compile."""
    checkpoint_s: float = CHECKPOINT_S
    """Longest time without a checkpoint; what a lost node costs at most."""
    checkpoint_given: bool = False
    """The user has said so; else it is what is best by what checkpoints cost and how often nodes are lost, if known."""
    hang_s: float = 300.0
    """Shortest time without a step after which all ranks' stacks are shown."""
    hang_end_s: float = 0.0
    """Time without a step after which the world is ended, once that is said; 0: it is not."""
    failures: int = 3
    """Consecutive failures without a newer checkpoint after which the job fails; of the same error in the script the
    second."""
    progress_steps: int = 5
    """So many steps newer, where a script has failed: an error that comes in every step may well get a step or two into
    a checkpoint each time."""


@dataclass(slots=True)
class Switch:
    """A change of pieces or batch for which the coming world is announced."""

    change: Change
    world: WorkerGroup
    joiners: bool
    """It has members that the old one has not."""
    doubt: str = ""
    """Why the new world cannot come any more; its members are to go back, and have not said so yet."""


class SupervisorContext(Holding):
    """The job as its supervisor sees it."""

    limits: RunLimits

    def __init__(
        self,
        pieces: tuple[Piece, ...],
        batch: int,
        generation: int = 0,
        saved_step: int | None = None,
        limits: RunLimits | None = None,
    ) -> None:
        """pieces: the base first, its batch host first. saved_step: of the newest checkpoint, if there is one."""
        super().__init__(pieces, limits or RunLimits())
        self.mode = Mode.STARTING
        self.workers: dict[str, Worker] = {}
        self.world: WorkerGroup | None = None
        self.switch: Switch | None = None
        self.called_off: dict[int, Switch] = {}
        """By generation: their members may agree on it all the same."""
        self.batch = batch
        self.generation = generation
        """The highest ever used by this job."""
        self.saved_step = saved_step
        self.reported_step = 0
        self.report_every_s = 0.0
        """Seconds between two reports, as selasticd wants it; 0: it has not said."""
        self.has_trained = False
        """Some world has trained: an error is no longer one that would only come again."""
        self.stop_code: int | None = None
        """The job is to end with this code as soon as a checkpoint is written."""
        self.stalled = False
        """It is said that no step is done."""
        self.counters: Message = {}
        """The training's, at its end."""
        self.restart: Change | None = None
        """What the next restart, or the one under way, carries out."""
        self._incarnations: dict[tuple[NodeKey, int], int] = {}

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        self.settled = mode is Mode.RUNNING
        self.over, self.ended = mode in (Mode.FINISHING, Mode.ENDED), mode is Mode.ENDED

    # --- who is there -----------------------------------------------------------------------------------------

    def members(self) -> list[Worker]:
        """The workers of the current world that are still there."""
        names = self.world.members if self.world else ()
        return [self.workers[name] for name in names if name in self.workers]

    def workers_on(self, nodes: Iterable[NodeKey]) -> list[Worker]:
        wanted = set(nodes)
        return [worker for worker in self.workers.values() if worker.agent in wanted]

    def leaves(self, worker: Worker) -> bool:
        """Whether the coming world does without this worker."""
        return self.switch is not None and worker.name not in self.switch.world.members

    def coming(self, generation: int) -> WorkerGroup | None:
        """The coming world, if this is its generation."""
        world = self.switch.world if self.switch else None
        return world if world is not None and world.generation == generation else None

    def coming_size(self) -> tuple[int, int]:
        """Ranks and batch of the world that workers are started for."""
        batch = self.change.batch if self.change is not None else 0
        return sum(piece.gpus for piece in self.coming_pieces), batch or self.batch

    def agreed(self) -> bool:
        """Whether a member has stopped at the step that was agreed on: the new world comes, or a restart does."""
        return self.change is not None and self.change.agreed

    def retain(self) -> None:
        super().retain()
        used = self.nodes.jobs()
        self._incarnations = {key: count for key, count in self._incarnations.items() if key[0][0] in used}

    # --- workers ----------------------------------------------------------------------------------------------

    def spawn_on(self, nodes: Iterable[NodeKey]) -> None:
        """One worker for each GPU of these nodes."""
        for key in nodes:
            for index in range(len(self.nodes.rows[key].gpus)):
                worker = self._new_worker(key, index)
                self.do(actions.Spawn(worker.name, key, index, follow=key == self.batch_host and index == 0))

    def _new_worker(self, agent: NodeKey, index: int) -> Worker:
        """A worker with a name never used before: `<job>.<node>.<index>`, then `.2`, `.3` for its successors."""
        count = self._incarnations.get((agent, index), 0) + 1
        self._incarnations[agent, index] = count
        name = f"{agent[0]}.{agent[1]}.{index}" + (f".{count}" if count > 1 else "")
        self.workers[name] = Worker(name, agent, index)
        return self.workers[name]

    def kill(self, workers: Iterable[Worker]) -> None:
        """Kill these workers; their exit is then nothing to worry about."""
        for worker in workers:
            if not worker.ending and not worker.exited:
                worker.ending = True
                self.do(actions.Kill(worker.name, worker.agent))
                if KillTimer(worker.agent) not in self.timers:
                    self.timers.set(KillTimer(worker.agent), self.now + self.limits.kill_s)

    def forget_workers(self, node: NodeKey) -> list[Worker]:
        """Drop the workers of a node, which are gone with its agent; they are returned."""
        self.timers.cancel(KillTimer(node))
        gone = self.workers_on([node])
        for worker in gone:
            del self.workers[worker.name]
            self.timers.cancel(DisconnectedTimer(worker.name))
        return gone

    # --- worlds -----------------------------------------------------------------------------------------------

    def announce(
        self, members: tuple[str, ...], batch: int, source: str, leavers: Iterable[Worker] = ()
    ) -> WorkerGroup:
        """A new generation: every participant is sent its place in it, after the generation was put on disk.

        Where it has the same members in the same order they keep their process group: only the batch is another.
        """
        self.generation += 1
        self.do(actions.RecordGeneration(self.generation))
        same = self.world is not None and source == "survivor" and members == self.world.members
        in_place = same and all(self.workers[name].takes_batches for name in members)
        common: Message = {
            "type": "world",
            "generation": self.generation,
            "size": len(members),
            "batch": batch,
            "source": source,
            "joiners": len(set(members) - set(self.world.members)) if self.world and source == "survivor" else 0,
            "timeout_s": self.limits.world_s,
            "forming_s": self.limits.forming_s,
            "first_step_s": self.limits.first_step_s,
            "report_s": self.report_every_s,
            "end_s": self.limits.end_s,
            "in_place": in_place,
            "one_host": len({self.workers[name].agent[1] for name in members}) == 1,
        }
        for rank, name in enumerate(members):
            self.do(actions.Send(name, {**common, "rank": rank, "leave": False}))
        for worker in leavers:
            self.do(actions.Send(worker.name, {**common, "rank": -1, "leave": True}))
        return WorkerGroup(self.generation, members, batch, source, in_place)

    def enter(self, world: WorkerGroup) -> None:
        """This world has done its first step: it is what trains now."""
        self.world = world
        self.batch = world.batch or self.batch
        self.mode = Mode.RUNNING
        self.has_trained = True
        for worker in self.members():
            worker.quiesced = False
        first = self.workers[world.members[0]]
        self.do(actions.FollowOutput(first.name, first.agent))
        micro_batch = int(number(first.config.get("micro_batch")))
        self.register(generation=world.generation, max_micro_batch=micro_batch)
        self.emit(events.WorldRuns())

    def origin(self) -> str:
        """What a restart begins from."""
        return f"the checkpoint of step {self.saved_step}" if self.saved_step is not None else "the beginning"

    def ask_for_checkpoint(self) -> None:
        """Rank 0 is to write one, if it is there."""
        if self.world is not None and self.world.members[0] in self.workers:
            self.do(actions.Send(self.world.members[0], {"type": "checkpoint"}))

    def call_off(self, switch: Switch, lost: bool) -> None:
        """Tell the members of the old world that the new one is not wanted any more. lost: that it cannot come, so that
        who has left for it turns back."""
        abort: Message = {"type": "abort", "generation": switch.world.generation, "lost": lost}
        for worker in self.members():
            self.do(actions.Send(worker.name, abort))

    def go_over(self) -> frozenset[NodeKey]:
        self.switch = None
        self.timers.cancel(RollBackTimer(0))
        return super().go_over()

    def late(self) -> list[str]:
        workers = self.workers_on(self.nodes.of(*ADDED))
        return [*super().late(), *(worker.name for worker in workers if not worker.ready)]

    def undo(self, why: str, phase: str = "failed", unreached: tuple[Unreached, ...] = ()) -> None:
        """Undo it for the workers, too: those of the coming world alone are killed, the others are told to stay."""
        change, switch = self.change, self.switch
        if change is None:
            return
        self.switch = None
        self.timers.cancel(RollBackTimer(0))
        if switch is not None:
            self.called_off[switch.world.generation] = switch
            self.call_off(switch, lost=switch.joiners)  # whose workers are killed
        self.kill(self.workers_on(self.nodes.of(*ADDED)))
        super().undo(why, phase, unreached)
        if switch is not None and change.agreed:
            self.emit(events.Restart(why, 1))

    # --- the daemon, and the end ------------------------------------------------------------------------------

    def tell(
        self, resize_id: int, what: str, detail: str = "", unreached: tuple[Unreached, ...] = (), **figures: Any
    ) -> None:
        now = {"generation": self.world.generation} if self.world else {}
        super().tell(resize_id, what, detail, unreached, **now, **figures)

    def end(self, code: int) -> None:
        """End the job with this exit code; nothing else begins."""
        if self.mode is not Mode.ENDED:
            self.mode = Mode.ENDED
            self.kill(self.workers.values())
            self.close(code, **figures(self.counters))


def number(value: object) -> float:
    """A number from a worker's message; anything else, and what no message of ours can hold, counts as 0."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= LARGEST:
        return float(value)
    return 0.0


def figures(message: Message) -> dict[str, Any]:
    """What a happening holds of a worker's message."""
    found: dict[str, Any] = {"pause_s": number(message["pause_s"])} if "pause_s" in message else {}
    return found | {name: int(number(message.get(name))) for name in ("step", "samples") if name in message}


@dataclass(slots=True)
class Worker:
    name: str
    agent: NodeKey
    index: int
    ready: bool = False
    ending: bool = False
    """It was killed or dismissed; only its exit is awaited."""
    quiesced: bool = False
    done: bool = False
    """Its training loop is over, or was left."""
    finished: bool = False
    """... and every epoch was done."""
    exited: bool = False
    error: str = ""
    config: dict[str, object] = field(default_factory=dict)
    pace: Pace | None = None
    """Its latest, in the current world."""

    @property
    def unit(self) -> int:
        """Ranks that hold one replica of its model together, as its script said."""
        size = self.config.get("unit")
        return size if isinstance(size, int) and size > 0 else 1

    @property
    def takes_batches(self) -> bool:
        """Whether it takes another batch in the world that it is in; 0.2.0's do not."""
        return self.config.get("takes_batches") is True


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """One process group: its members in rank order."""

    generation: int
    members: tuple[str, ...]
    batch: int
    source: str
    in_place: bool = False
    """It is the group before it, with another batch."""


def ranked(workers: Sequence[Worker], pieces: Iterable[Piece]) -> tuple[str, ...]:
    """Names of the workers in rank order. Those outside the pieces are left out, and the last ones that make up no
    whole model-parallel unit."""
    place = {key: position for position, key in enumerate(nodes_of(pieces))}
    inside = [worker for worker in workers if worker.agent in place]
    unit = max((worker.unit for worker in inside), default=1)
    inside.sort(key=lambda worker: (place[worker.agent], worker.index))
    return tuple(worker.name for worker in inside[: len(inside) // unit * unit])
