"""What the supervisor of one job does about what happens to it: events in, actions out.

Pure: no clock, no I/O, no process; `now` is an argument, and the driver carries out what it returns. It never
gambles with the training: until a new world has done its first step the pieces of the old one are what the job uses,
and every doubt ends in a restart from the last checkpoint, a bounded number of times. Here: the events;
worker_messages has what workers say, nodes the agents, restarts beginning and end, resize the changes, reports what
goes to selasticd.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_elastic.protocol.messages import Phase, Piece

from . import roll_back
from .events import (
    Action,
    AgentKey,
    AgentLost,
    AgentUp,
    CompanionGranted,
    CompanionRefused,
    DirectiveCame,
    Event,
    Follow,
    InUse,
    Kill,
    Message,
    Notice,
    QuitAgent,
    Registered,
    Remember,
    Send,
    Spawn,
    StepEnded,
    Tell,
    WorkerExit,
    WorkerLost,
    WorkerMessage,
)
from .nodes import Nodes
from .reports import Reporting
from .requeue_checkpoint import Saving
from .resize import Resizing
from .restarts import Lives
from .worker_messages import Heard, number
from .workers import Fleet, Mode, Worker, World


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds."""

    agents_s: float = 120.0
    """From starting the agents to their connection; nodes that stay silent longer are left out."""
    kill_s: float = 15.0
    """From a kill to the process's end; a node that stays silent longer is given up."""
    world_s: float = 120.0
    """How long the workers of a coming world may take to arrive; and, when it fails, those of the old one to go on."""
    forming_s: float = 30.0
    """Longest time for one communication while a process group forms and state is handed over."""
    first_step_s: float = 600.0
    """Longest time for one communication in a new world's first step: it may compile."""
    checkpoint_s: float = 600.0
    """Longest time without a checkpoint; what a lost node costs at most."""
    failures: int = 3
    """Consecutive failures without a newer checkpoint after which the job fails."""


class Machine:
    """The supervisor's mind. `handle` and `tick` return the actions to carry out, in order."""

    def __init__(
        self,
        pieces: tuple[Piece, ...],
        batch: int,
        generation: int = 0,
        checkpoint_step: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`pieces`: the base first, its batch host first. `generation`: the highest ever used by this job."""
        self.pieces = pieces
        self.batch = batch
        self.generation = generation
        self.saved_step = checkpoint_step
        self.limits = limits or Limits()
        self.batch_host: AgentKey = (pieces[0].slurm_job_id, pieces[0].nodes[0])
        self.fleet = Fleet()
        self.mode = Mode.STARTING
        self.world: World | None = None
        self.nodes = Nodes(self)
        self.lives = Lives(self)
        self.resizing = Resizing(self)
        self.reporting = Reporting(self)
        self.saving = Saving(self)
        self.heard = Heard(self)
        self.timers: dict[str, float] = {}
        self.exit_code: int | None = None
        self.ending = False
        """The job is about to be killed: no more resizes."""
        self.now = 0.0
        self._out: list[Action] = []

    # --- the outside ------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Start the agents of all pieces."""
        self.now = now
        self.nodes.start()
        return self._taken()

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event."""
        self.now = now
        if self.mode is not Mode.ENDED:
            self._dispatch(event)
        elif isinstance(event, AgentUp):
            self.do(QuitAgent(event.agent))
        return self._taken()

    def tick(self, now: float) -> list[Action]:
        """Let the timers that are due go off."""
        self.now = now
        for name in [name for name, due in self.timers.items() if due <= now]:
            if self.timers.pop(name, None) is not None and self.mode is not Mode.ENDED:
                self._due(name)
        return self._taken()

    def deadline(self) -> float | None:
        """When `tick` is next needed."""
        return min(self.timers.values(), default=None)

    def _taken(self) -> list[Action]:
        out, self._out = self._out, []
        return out

    # --- used by its parts ------------------------------------------------------------------------------------

    def do(self, action: Action) -> None:
        self._out.append(action)

    def members(self) -> list[Worker]:
        """The workers of the current world that are still there."""
        names = self.world.members if self.world else ()
        return [self.fleet.workers[name] for name in names if name in self.fleet.workers]

    def next_generation(self) -> int:
        self.generation += 1
        self.do(Remember(self.generation))
        return self.generation

    def send_world(self, world: World, leavers: list[Worker]) -> None:
        """Tell every participant of a coming world its place in it."""
        common = {
            "type": "world",
            "generation": world.generation,
            "size": len(world.members),
            "batch": world.batch,
            "source": world.source,
            "timeout_s": self.limits.world_s,
            "forming_s": self.limits.forming_s,
            "first_step_s": self.limits.first_step_s,
            "report_s": self.reporting.every_s,
        }
        for rank, name in enumerate(world.members):
            self.fleet.workers[name].placed = True
            self.do(Send(name, {**common, "rank": rank, "leave": False}))
        for worker in leavers:
            self.do(Send(worker.name, {**common, "rank": -1, "leave": True}))

    def spawn_on(self, agents: list[AgentKey]) -> list[Worker]:
        """One worker for each GPU of these agents."""
        spawned = []
        for key in agents:
            for index in range(len(self.fleet.agents[key].gpus)):
                worker = self.fleet.new_worker(key, index)
                self.do(Spawn(worker.name, key, index, follow=key == self.batch_host and index == 0))
                spawned.append(worker)
        return spawned

    def kill(self, workers: list[Worker]) -> None:
        """Kill these workers; their exit is then nothing to worry about."""
        for worker in workers:
            if not worker.doomed and not worker.exited:
                worker.doomed = True
                self.do(Kill(worker.name, worker.agent))
                self.timers.setdefault(f"kill {worker.agent[0]} {worker.agent[1]}", self.now + self.limits.kill_s)

    def tell(
        self, directive: int, phase: str, detail: str = "", message: Message | None = None, exit_code: int = 0
    ) -> None:
        """A phase for the daemon, with what trains now."""
        numbers = message or {}
        self.do(
            Tell(
                Phase(
                    directive=directive,
                    phase=phase,
                    generation=self.world.generation if self.world else self.generation,
                    pieces=self.pieces,
                    batch=self.batch,
                    at=0.0,
                    pause_s=number(numbers.get("pause_s")),
                    step=int(number(numbers.get("step"))),
                    samples=int(number(numbers.get("samples"))),
                    detail=detail,
                    exit_code=exit_code,
                )
            )
        )

    def enter(self, world: World, pieces: tuple[Piece, ...]) -> None:
        """This world has done its first step: it is what trains now."""
        self.world, self.pieces = world, pieces
        self.batch = world.batch or self.batch
        self.mode = Mode.RUNNING
        self.lives.worked = True
        self.reporting.entered()
        self.timers["checkpoint"] = self.now + self.limits.checkpoint_s
        self.saving.ask()
        first = self.fleet.workers[world.members[0]]
        self.do(Follow(first.name, first.agent))
        micro_batch = int(number(first.config.get("micro_batch")))
        self.do(InUse(world.generation, pieces, self.batch, micro_batch))
        self.lives.trains()

    # --- events -----------------------------------------------------------------------------------------------

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, WorkerMessage):
            worker = self.fleet.workers.get(event.worker)
            if worker is not None and not worker.doomed:
                self.heard.take(worker, event.message)
        elif isinstance(event, WorkerExit):
            self.lives.exited(event)
        elif isinstance(event, WorkerLost):
            self.lives.line_lost(event.worker)
        elif isinstance(event, AgentUp):
            self.nodes.up(event)
        elif isinstance(event, AgentLost):
            self.nodes.lost(event.agent)
        elif isinstance(event, StepEnded):
            self.nodes.step_ended(event)
        elif isinstance(event, Notice):
            self.nodes.notice(event.agent)
        elif isinstance(event, DirectiveCame):
            self.resizing.directive(event.directive)
        elif isinstance(event, Registered):
            self.reporting.registered(event.report_interval_s)
        elif isinstance(event, CompanionGranted):
            self.resizing.warming.granted(event)
        elif isinstance(event, CompanionRefused):
            self.resizing.warming.refused(event)
        else:
            self.lives.hurry(event)

    def _due(self, name: str) -> None:
        kind, _, rest = name.partition(" ")
        if kind == "agents":
            self.nodes.silent()
        elif kind == "launch":
            self.nodes.launch_again(int(rest))
        elif kind == "kill":
            job, _, node = rest.partition(" ")
            self.nodes.undying((int(job), node))
        elif kind == "blind":
            self.lives.kill_blind(rest)
        elif kind == "culprit":
            self.lives.no_culprit()
        elif kind == "stop":
            self.lives.stop_now()
        elif kind == "resize":
            self.resizing.warming.timed_out()
        elif kind == roll_back.TIMER:
            self.resizing.returning.timed_out()
        elif kind == "checkpoint" and self.mode is Mode.RUNNING:
            self.timers["checkpoint"] = self.now + self.limits.checkpoint_s
            if self.world and self.world.members[0] in self.fleet.workers:
                self.do(Send(self.world.members[0], {"type": "checkpoint"}))
