"""What the parts of the supervisor's state machine share: the job's state, the actions so far, the follow-up events.

Pure. A part reads and changes the state here, and adds actions; it never calls another part. Where another part has to
act it emits an event, which the machine dispatches within the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from slurm_elastic.protocol.codec import VERSION
from slurm_elastic.protocol.json_lines import Message
from slurm_elastic.protocol.message_fields import LARGEST
from slurm_elastic.protocol.messages import Phase, Piece, Registration, Unreached

from ...allocation.pieces.events import AgentKey
from . import actions, events
from .timers import KillTimer, Timers
from .workers import ConnectedAgent, Worker, WorkerGroup, agents_of, joined

CHECKPOINT_S = 600.0
"""Between two checkpoints, while nothing is known that says how often is best."""
Handlers = Mapping[type[Any], Callable[[Any], None]]
"""What a part does about each kind of event that it subscribes to."""


class Part:
    """One part of the machine."""

    def __init__(self, context: SupervisorContext) -> None:
        self._context = context


class Mode(Enum):
    """STARTING: workers warm up. FORMING: they have a world, its first step is awaited. RESTARTING: old ones die."""

    STARTING = "starting"
    FORMING = "forming"
    RUNNING = "running"
    RESTARTING = "restarting"
    FINISHING = "finishing"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Times in seconds."""

    agents_s: float = 120.0
    """From starting the agents to their connection; nodes that stay silent longer are left out."""
    kill_s: float = 15.0
    """From a kill to the process's end; a node that stays silent longer is given up."""
    world_s: float = 120.0
    """How long the workers of a coming world may take to arrive; and, when it fails, those of the old one to go on."""
    forming_s: float = 30.0
    """Longest time for one communication while a process group forms and state is handed over."""
    warm_up_s: float = 900.0
    """From a companion's grant to its workers being ready, where selasticd does not end it sooner (warm_up_s)."""
    first_step_s: float = 600.0
    """Longest time for one communication in a new world's first step: it may compile."""
    checkpoint_s: float = CHECKPOINT_S
    """Longest time without a checkpoint; what a lost node costs at most."""
    checkpoint_given: bool = False
    """The user has said so; else it is what is best by what checkpoints cost and how often nodes are lost, if known."""
    end_s: float = 25.0
    """From Slurm's SIGTERM to the end of the job, a little less than to its SIGKILL."""
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


class Stage(Enum):
    """WAITING for Slurm to grant; WARMING up; AGREEING on the step at which to change worlds."""

    WAITING = "waiting"
    WARMING = "warming"
    AGREEING = "agreeing"


@dataclass(slots=True)
class RunningResize:
    """The resize under way. `id` is 0 for one that the supervisor itself wants."""

    id: int
    keep: tuple[Piece, ...]
    batch: int
    wait_s: float
    reason: str
    stage: Stage = Stage.WAITING
    added: dict[int, Piece] = field(default_factory=dict)
    """Companions granted, or nodes that are taken back."""
    awaited: int = 0
    """Companions asked for."""
    agents: set[AgentKey] = field(default_factory=set)
    """Of what is added, as far as they have connected."""
    reaching: set[AgentKey] = field(default_factory=set)
    """Those of them that still try whether they reach the other hosts."""
    world: WorkerGroup | None = None
    """The coming one, once it is announced."""
    agreed: bool = False
    """A member has stopped at the agreed step: the new world comes, or a restart does."""
    doubt: str = ""
    """Why the new world cannot come any more; its members are to go back, and have not said so yet."""
    recalled: str = ""
    """Why it is not wanted any more; its members are asked whether they have left for it already."""

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return joined([*self.keep, *(self.added[index] for index in sorted(self.added))])


class SupervisorContext:
    """The job as its supervisor sees it."""

    def __init__(
        self,
        pieces: tuple[Piece, ...],
        batch: int,
        generation: int = 0,
        saved_step: int | None = None,
        limits: RunLimits | None = None,
    ) -> None:
        """pieces: the base first, its batch host first. saved_step: of the newest checkpoint, if there is one."""
        self.limits = limits or RunLimits()
        self.now = 0.0
        self.mode = Mode.STARTING
        self.timers = Timers()
        self.pieces = pieces
        """Those whose GPUs train, or are to train next."""
        self.batch_host: AgentKey = (pieces[0].slurm_job_id, pieces[0].nodes[0])
        self.agents: dict[AgentKey, ConnectedAgent] = {}
        self.awaited: set[AgentKey] = set()
        """Agents that the next world waits for; those of a companion are the resize's."""
        self.workers: dict[str, Worker] = {}
        self.world: WorkerGroup | None = None
        self.resize: RunningResize | None = None
        self.batch = batch
        self.generation = generation
        """The highest ever used by this job."""
        self.saved_step = saved_step
        self.reported_step = 0
        self.report_every_s = 0.0
        """Seconds between two reports, as selasticd wants it; 0: it has not said."""
        self.has_trained = False
        """Some world has trained: an error is no longer one that would only come again."""
        self.ending = False
        """The job is about to be killed: no more resizes."""
        self.stop_code: int | None = None
        """The job is to end with this code as soon as a checkpoint is written."""
        self.requeue_id = 0
        """The resize for which a checkpoint is to be written, to start again at another size; 0: none."""
        self.stalled = False
        """It is said that no step is done."""
        self.restart_id = 0
        """The resize that the restart under way carries out; 0: none."""
        self.requeue_from_step = 0
        """A checkpoint of an earlier step is not good enough for it."""
        self._incarnations: dict[tuple[AgentKey, int], int] = {}
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

    # --- who is there -----------------------------------------------------------------------------------------

    def members(self) -> list[Worker]:
        """The workers of the current world that are still there."""
        names = self.world.members if self.world else ()
        return [self.workers[name] for name in names if name in self.workers]

    def had(self) -> set[AgentKey]:
        """Every node that there ever were workers on, of the Slurm jobs that are in use."""
        return {agent for agent, _ in self._incarnations}

    def workers_on(self, agents: Iterable[AgentKey]) -> list[Worker]:
        wanted = set(agents)
        return [worker for worker in self.workers.values() if worker.agent in wanted]

    def available(self, key: AgentKey) -> bool:
        """Whether this agent is there, and not quitting."""
        agent = self.agents.get(key)
        return agent is not None and not agent.quitting

    def joins(self, key: AgentKey) -> bool:
        """Whether this agent belongs to a companion that the running resize adds."""
        return self.resize is not None and key in agents_of(self.resize.added.values())

    def joiner_awaited(self, keys: Iterable[AgentKey]) -> bool:
        """Whether one of these agents belongs to such a companion and has not connected."""
        return self.resize is not None and any(self.joins(key) and key not in self.resize.agents for key in keys)

    def leaves(self, worker: Worker) -> bool:
        """Whether the coming world does without this worker."""
        coming = self.resize.world if self.resize else None
        return coming is not None and worker.name not in coming.members

    def coming(self, generation: int) -> WorkerGroup | None:
        """The coming world, if this is its generation."""
        world = self.resize.world if self.resize else None
        return world if world is not None and world.generation == generation else None

    def coming_size(self) -> tuple[int, int]:
        """Ranks and batch of the world that workers are started for."""
        resize = self.resize
        pieces = resize.pieces if resize is not None else self.pieces
        return sum(piece.gpus for piece in pieces), resize.batch if resize is not None else self.batch

    def forget_left(self) -> None:
        """Forget the companions that are not in use any more: a job may have thousands of them, one after another."""
        retained = frozenset(piece.slurm_job_id for piece in self.pieces)
        self._incarnations = {key: count for key, count in self._incarnations.items() if key[0][0] in retained}
        self.do(actions.RetainJobs(retained))
        self.emit(events.JobsLeft(retained))

    # --- workers ----------------------------------------------------------------------------------------------

    def spawn_on(self, agents: Iterable[AgentKey]) -> None:
        """One worker for each GPU of these agents."""
        for key in agents:
            for index in range(len(self.agents[key].gpus)):
                worker = self._new_worker(key, index)
                self.do(actions.Spawn(worker.name, key, index, follow=key == self.batch_host and index == 0))

    def _new_worker(self, agent: AgentKey, index: int) -> Worker:
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

    def quit_agents(self, agents: Iterable[AgentKey]) -> None:
        for key in agents:
            agent = self.agents.get(key)
            if agent is not None and not agent.quitting:
                agent.quitting = True
                self.do(actions.QuitAgent(key))

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

    def enter(self, world: WorkerGroup, pieces: tuple[Piece, ...]) -> None:
        """This world has done its first step: it is what trains now."""
        self.world, self.pieces = world, pieces
        self.batch = world.batch or self.batch
        self.mode = Mode.RUNNING
        self.has_trained = True
        for worker in self.members():
            worker.quiesced = False
        first = self.workers[world.members[0]]
        self.do(actions.FollowOutput(first.name, first.agent))
        micro_batch = int(number(first.config.get("micro_batch")))
        now = Registration(VERSION, world.generation, pieces, self.batch, program="", max_micro_batch=micro_batch)
        self.do(actions.UpdateRegistration(now))
        self.forget_left()
        self.emit(events.WorldRuns())

    def origin(self) -> str:
        """What a restart begins from."""
        return f"the checkpoint of step {self.saved_step}" if self.saved_step is not None else "the beginning"

    def ask_for_checkpoint(self) -> None:
        """Rank 0 is to write one, if it is there."""
        if self.world is not None and self.world.members[0] in self.workers:
            self.do(actions.Send(self.world.members[0], {"type": "checkpoint"}))

    def call_off(self, resize: RunningResize, lost: bool) -> None:
        """Tell the members of the old world that the new one is not wanted any more. lost: that it cannot come, so that
        who has left for it turns back."""
        if resize.world is not None:
            abort: Message = {"type": "abort", "generation": resize.world.generation, "lost": lost}
            for worker in self.members():
                self.do(actions.Send(worker.name, abort))

    # --- the daemon, and the end ------------------------------------------------------------------------------

    def report_phase(
        self,
        resize_id: int,
        phase: str,
        detail: str = "",
        counters: Message | None = None,
        exit_code: int = 0,
        unreached: tuple[Unreached, ...] = (),
        every_s: float = 0.0,
    ) -> None:
        """A phase for the daemon, with what trains now."""
        counters = counters or {}
        self.do(
            actions.ReportPhase(
                Phase(
                    resize=resize_id,
                    phase=phase,
                    generation=self.world.generation if self.world else self.generation,
                    pieces=self.pieces,
                    batch=self.batch,
                    at=0.0,
                    pause_s=number(counters.get("pause_s")),
                    step=int(number(counters.get("step"))),
                    samples=int(number(counters.get("samples"))),
                    detail=detail,
                    exit_code=exit_code,
                    unreached=unreached,
                    megabytes=number(counters.get("megabytes")),
                    write_s=number(counters.get("write_s")),
                    every_s=every_s,
                )
            )
        )

    def fail_start(self, why: str, code: int) -> None:
        """The workers cannot be started as things are; also while starting again this counts like any other failure."""
        self.mode = Mode.STARTING
        self.emit(events.Restart(why, code))

    def end(self, code: int) -> None:
        """From here on the job is ending; nothing else begins."""
        if self.mode is not Mode.ENDED:
            self.mode = Mode.ENDED
            self.emit(events.EndJob(code))


def number(value: object) -> float:
    """A number from a worker's message; anything else, and what no message of ours can hold, counts as 0."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= LARGEST:
        return float(value)
    return 0.0
