"""What the supervisor of one job does about what happens to it: events in, actions out.

Pure: no clock, no I/O, no process; `now` is an argument, and the driver carries out what it returns. It never
gambles with the training: until a new world has done its first step the pieces of the old one are what the job uses,
and every doubt ends in a restart from the last checkpoint, a bounded number of times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import fleet as fleets
from .fleet import Fleet, Mode, Worker, World
from .supervisor_events import (
    Action,
    AgentKey,
    AgentLost,
    AgentUp,
    CompanionGranted,
    CompanionRefused,
    DirectiveCame,
    Event,
    Exit,
    Follow,
    Forward,
    Hurry,
    InUse,
    Kill,
    LaunchAgents,
    Message,
    Notice,
    QuitAgent,
    Remember,
    Say,
    Send,
    Spawn,
    StepEnded,
    Tell,
    WorkerExit,
    WorkerLost,
    WorkerMessage,
)
from .supervisor_resize import Resizing
from .wire import Phase, Piece

WORLD_DID_NOT_FORM = 75
"""A worker's exit code (EX_TEMPFAIL) when its process group did not come about in time."""
KILLED = 128
CULPRIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds."""

    agents_s: float = 120.0
    """From starting the agents to their connection; nodes that stay silent longer are left out."""
    kill_s: float = 15.0
    """From a kill to the process's end; a node that stays silent longer is given up."""
    world_s: float = 120.0
    """How long a process group may take to form."""
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
        self.resizing = Resizing(self)
        self.timers: dict[str, float] = {}
        self.exit_code: int | None = None
        self.ending = False
        """The job is about to be killed: no more resizes."""
        self.now = 0.0
        self._out: list[Action] = []
        self._expected: set[AgentKey] = set()
        self._launches = 0
        self._launched: dict[AgentKey, int] = {}
        self._failures = 0
        self._failed_at: int | None = None
        self._worked = False
        self._broken = ""
        self._stop_code: int | None = None

    # --- the outside ------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Start the agents of all pieces."""
        self.now = now
        self._expected = set(fleets.keys(self.pieces))
        self.timers["agents"] = now + self.limits.agents_s
        for piece in self.pieces:
            self.launch(piece)
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

    # --- used by the resize -----------------------------------------------------------------------------------

    def do(self, action: Action) -> None:
        self._out.append(action)

    def launch(self, piece: Piece) -> None:
        """Start the agents of a piece."""
        self._launches += 1
        for key in fleets.keys([piece]):
            self._launched[key] = self._launches
        self.do(LaunchAgents(piece, self._launches))

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

    def quit_agents(self, agents: list[AgentKey]) -> None:
        for key in agents:
            agent = self.fleet.agents.get(key)
            if agent is not None and not agent.quitting:
                agent.quitting = True
                self.do(QuitAgent(key))

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
                    pause_s=_number(numbers.get("pause_s")),
                    step=int(_number(numbers.get("step"))),
                    samples=int(_number(numbers.get("samples"))),
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
        self._worked = True
        self.timers["checkpoint"] = self.now + self.limits.checkpoint_s
        first = self.fleet.workers[world.members[0]]
        self.do(Follow(first.name, first.agent))
        micro_batch = int(_number(first.config.get("micro_batch")))
        self.do(InUse(world.generation, pieces, self.batch, micro_batch))

    def restart(self, why: str, code: int) -> None:
        """Kill what is left and begin a new generation from the last checkpoint; give up after too many failures."""
        if self.mode in (Mode.RESTARTING, Mode.ENDED):
            return
        self.resizing.fail(why)
        if self.mode in (Mode.RESTARTING, Mode.ENDED):  # undoing an agreed resize restarts by itself
            return
        progressed = self.saved_step is not None and (self._failed_at is None or self.saved_step > self._failed_at)
        self._failures = 1 if progressed else self._failures + 1
        self._failed_at = self.saved_step if self.saved_step is not None else -1
        if self._stop_code is not None:
            self._end(self._stop_code)
        elif self._failures >= self.limits.failures:
            self.do(Say(f"{why}; {self._failures} failures without progress, giving up"))
            self._end(code)
        else:
            origin = f"the checkpoint of step {self.saved_step}" if self.saved_step is not None else "the beginning"
            self.do(Say(f"{why}; starting again from {origin}"))
            self._begin_again()

    def _again(self, why: str, code: int) -> None:
        """A failure while starting, or starting again: it counts like any other."""
        self.mode = Mode.STARTING
        self.restart(why, code)

    # --- events -----------------------------------------------------------------------------------------------

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, WorkerMessage):
            worker = self.fleet.workers.get(event.worker)
            if worker is not None and not worker.doomed:
                self._message(worker, event.message)
        elif isinstance(event, WorkerExit):
            self._worker_exit(event)
        elif isinstance(event, WorkerLost):
            worker = self.fleet.workers.get(event.worker)
            if worker is not None and not worker.exited and not worker.done and not worker.quiesced:
                self.timers.setdefault(f"blind {event.worker}", self.now + self.limits.kill_s)
        elif isinstance(event, AgentUp):
            self._agent_up(event)
        elif isinstance(event, AgentLost):
            self._agent_lost(event.agent)
        elif isinstance(event, StepEnded):
            self._step_ended(event)
        elif isinstance(event, Notice):
            self._notice(event.agent)
        elif isinstance(event, DirectiveCame):
            self.resizing.directive(event.directive)
        elif isinstance(event, CompanionGranted):
            self.resizing.granted(event)
        elif isinstance(event, CompanionRefused):
            self.resizing.refused(event)
        else:
            self._hurry(event)

    def _message(self, worker: Worker, message: Message) -> None:
        kind = message.get("type")
        generation = int(_number(message.get("generation")))
        if kind == "ready":
            worker.ready = True
            worker.config = message
            if self.resizing.owns(worker):
                self.resizing.joiner_ready()
            else:
                self._form_if_ready()
        elif kind == "store":
            self._relay(worker, generation, message)
        elif kind == "quiesced":
            worker.quiesced = True
            self.resizing.quiesced(worker, generation)
        elif kind == "running":
            self._running(generation, message)
        elif kind == "saved":
            self._saved(message)
        elif kind == "failed":
            worker.error = str(message.get("error", ""))
            if message.get("survived"):
                self.resizing.survived(generation, worker.error)
        elif kind == "done":
            worker.done, worker.finished = True, bool(message.get("finished"))
            self._training_over()
        elif kind == "report":
            self._report(message)

    def _relay(self, worker: Worker, generation: int, message: Message) -> None:
        """Only rank 0 of a world that is coming opens a store."""
        participants: list[str] = []
        if self.mode is Mode.FORMING and self.world and self.world.generation == generation:
            participants = list(self.world.members)
        elif coming := self.resizing.coming(generation):
            participants = list(dict.fromkeys((*coming.members, *(self.world.members if self.world else ()))))
        if participants and participants[0] == worker.name:
            for name in participants:
                if name in self.fleet.workers:
                    self.do(Send(name, message))

    def _running(self, generation: int, message: Message) -> None:
        if batch := int(_number(message.get("batch"))):
            self.batch = batch
        if self.mode is Mode.FORMING and self.world and generation == self.world.generation:
            self.enter(self.world, self.pieces)
            for worker in self.members():
                worker.quiesced = False
            self.tell(0, "running", "", message)
            self._say_world(self.world)
            self.resizing.next()
        else:
            self.resizing.running(generation, message)

    def _say_world(self, world: World) -> None:
        where = ", ".join(f"{len(piece.nodes)} x {piece.gpus_per_node} of {piece.kind}" for piece in self.pieces)
        self.do(Say(f"generation {world.generation}: {len(world.members)} workers ({where}), from {world.source}"))

    def _saved(self, message: Message) -> None:
        self.saved_step = max(self.saved_step or 0, int(_number(message.get("step"))))
        self.timers["checkpoint"] = self.now + self.limits.checkpoint_s
        if self._stop_code is not None:
            self.do(Say(f"checkpoint of step {self.saved_step} written, ending"))
            self._end(self._stop_code)

    def _report(self, message: Message) -> None:
        if self.mode in (Mode.RUNNING, Mode.FINISHING) and self.world:
            if batch := int(_number(message.get("batch"))):
                self.batch = batch
            nodes = len({node for piece in self.pieces for node in piece.nodes})
            self.do(Forward(message, len(self.world.members), nodes))

    # --- agents -----------------------------------------------------------------------------------------------

    def _agent_up(self, event: AgentUp) -> None:
        wanted = event.agent in self._expected or self.resizing.expects(event.agent)
        if not wanted or event.agent in self.fleet.agents:
            self.do(QuitAgent(event.agent))
            return
        self.fleet.agents[event.agent] = fleets.Agent(event.gpus)
        if self.resizing.expects(event.agent):
            self.resizing.agent_up(event.agent)
            return
        self._expected.discard(event.agent)
        if self.mode is Mode.STARTING:
            self.spawn_on([event.agent])
        self._respawn_if_dead()

    def _agent_lost(self, key: AgentKey) -> None:
        agent = self.fleet.agents.pop(key, None)
        if agent is None:
            return
        self.timers.pop(f"kill {key[0]} {key[1]}", None)
        gone = self.fleet.on([key])
        for worker in gone:
            del self.fleet.workers[worker.name]
            self.timers.pop(f"blind {worker.name}", None)
        if agent.quitting:
            self._respawn_if_dead()
        elif self.resizing.owns_agent(key):
            self.resizing.fail(f"node {key[1]} of job {key[0]} was lost while its workers warmed up")
        elif self.mode is Mode.FINISHING and all(worker.exited or worker.done for worker in gone):
            self._finish_if_over()
        else:
            self._lose_node(key)

    def _lose_node(self, key: AgentKey) -> None:
        why = f"node {key[1]} of job {key[0]} was lost"
        if self.mode is not Mode.RESTARTING:
            self.restart(why, KILLED + 9)
        elif key == self.batch_host:
            self._again(why, KILLED + 9)
        else:
            self._without_lost()
            self._respawn_if_dead()

    def _step_ended(self, event: StepEnded) -> None:
        """The agents of a launch cannot come any more: those still awaited never will."""
        keys = {key for key, number in self._launched.items() if number == event.number}
        if self.resizing.expects_any(keys):
            self.resizing.fail(f"the companion's agents did not start (exit code {event.code})")
        if missing := self._expected & keys:
            for line in event.tail:
                self.do(Say(f"  agent| {line}"))
            self._give_up_on(missing, f"exit code {event.code}")

    def _give_up_on(self, missing: set[AgentKey], how: str) -> None:
        self._expected -= missing
        names = ", ".join(sorted(node for _, node in missing))
        self.do(Say(f"no agent started on {names} ({how})"))
        if self.batch_host in missing:
            self._again("the batch host's agent did not start", 1)
            return
        self._without_lost()
        self._respawn_if_dead()
        self._form_if_ready()

    def _without_lost(self) -> None:
        """Reduce the pieces to the nodes whose agents are there or still awaited; the batch host always stays."""
        parts = []
        for piece in self.pieces:
            nodes = tuple(node for node in piece.nodes if self._stays((piece.slurm_job_id, node)))
            parts.append(replace(piece, nodes=nodes))
        self.pieces = tuple(piece for piece in parts if piece.nodes)

    def _stays(self, key: AgentKey) -> bool:
        return self.fleet.available(key) or key in self._expected or key == self.batch_host

    def _notice(self, key: AgentKey) -> None:
        if key == self.batch_host or key[0] == self.batch_host[0]:
            self._hurry(Hurry(deadline_s=30.0, stop=False))
        else:
            self.resizing.without({key[0]}, f"Slurm takes job {key[0]} away")

    # --- workers ----------------------------------------------------------------------------------------------

    def _worker_exit(self, event: WorkerExit) -> None:
        worker = self.fleet.workers.get(event.worker)
        if worker is None:
            return
        worker.exited = True
        self.timers.pop(f"blind {event.worker}", None)
        if worker.doomed:
            del self.fleet.workers[event.worker]
            if not any(other.doomed for other in self.fleet.on([worker.agent])):
                self.timers.pop(f"kill {worker.agent[0]} {worker.agent[1]}", None)
            self._respawn_if_dead()
        elif self.resizing.owns(worker):
            self.resizing.fail(f"worker {event.worker} ended while warming up ({_how(event)})")
        elif self.resizing.leaves(worker) and (event.code == 0 or worker.quiesced):
            self.resizing.left(worker)
        elif event.code == 0 and event.signal == 0:
            self._training_over()
        else:
            self._worker_failed(worker, event)

    def _worker_failed(self, worker: Worker, event: WorkerExit) -> None:
        code = KILLED + event.signal if event.signal else event.code
        why = f"worker {worker.name} {_how(event)}"
        if worker.error:
            why += f": {worker.error}"
        for line in event.tail:
            self.do(Say(f"  {worker.name}| {line}"))
        if code == WORLD_DID_NOT_FORM and "culprit" not in self.timers:
            # Perhaps it only noticed that another one died; that one's end says more, and is on its way.
            self._broken = why
            self.timers["culprit"] = self.now + CULPRIT_S
            return
        if event.signal == 0 and (not event.raised or worker.finished or not self._worked):
            # sys.exit(n) is the script's own decision, and an error before or after the training would only come again.
            self.do(Say(why))
            self._end(code)
        else:
            self.restart(why, code)

    def _training_over(self) -> None:
        """A worker has finished its loop, or its script: the world can change no more."""
        if self.mode in (Mode.RUNNING, Mode.FORMING, Mode.STARTING):
            self.resizing.over()
            if self.mode is not Mode.STARTING:
                self.mode = Mode.FINISHING
        self._finish_if_over()

    def _finish_if_over(self) -> None:
        rest = [worker for worker in self.fleet.workers.values() if not worker.exited and not worker.doomed]
        if not rest and not self._expected:
            self._end(0)
        elif self.mode is Mode.STARTING and not self._expected and all(worker.ready for worker in rest):
            self.do(Say("some workers ended before the training began while others wait for them"))
            self._end(1)

    # --- beginning, again and ending --------------------------------------------------------------------------

    def _begin_again(self) -> None:
        self.mode = Mode.RESTARTING
        self.world = None
        for name in ("checkpoint", "culprit"):
            self.timers.pop(name, None)
        for worker in [worker for worker in self.fleet.workers.values() if worker.exited]:
            del self.fleet.workers[worker.name]
        self.kill(list(self.fleet.workers.values()))
        if not self.fleet.available(self.batch_host) and self.batch_host not in self._expected:
            base = self.pieces[0]
            self._expected.add(self.batch_host)
            self.timers["agents"] = self.now + self.limits.agents_s
            self.launch(replace(base, nodes=base.nodes[:1]))
        self._without_lost()
        self._respawn_if_dead()

    def _respawn_if_dead(self) -> None:
        """Once the old workers are gone and the batch host is there, start new ones everywhere."""
        if self.mode is not Mode.RESTARTING or self._expected or not self.fleet.available(self.batch_host):
            return
        inside = set(fleets.keys(self.pieces))
        if any(worker.agent in inside for worker in self.fleet.workers.values()):
            return
        self.mode = Mode.STARTING
        self.spawn_on([key for key in fleets.keys(self.pieces) if self.fleet.available(key)])

    def _form_if_ready(self) -> None:
        here = [key for key in fleets.keys(self.pieces) if self.fleet.available(key)]
        workers = [worker for worker in self.fleet.on(here) if not worker.doomed]
        if self.mode is not Mode.STARTING or self._expected or not workers:
            return
        if not all(worker.ready or worker.exited for worker in workers):
            return
        if any(worker.exited for worker in workers):
            self._finish_if_over()
            return
        self.timers.pop("agents", None)
        source = "fresh" if self.saved_step is None else "checkpoint"
        names = fleets.ranked(workers, self.pieces)
        self.world = World(self.next_generation(), names, self.batch, source)
        self.mode = Mode.FORMING
        self.send_world(self.world, [])

    def _hurry(self, event: Hurry) -> None:
        """Checkpoint at once. With `stop` a second call, or the deadline, ends the job without it."""
        twice = self._stop_code is not None and event.stop
        self.ending = True
        if self.resizing.active is None or not self.resizing.active.agreed:
            self.resizing.fail("the job is ending", phase="withdrawn")
        if event.stop:
            self._stop_code = event.code
        if event.stop and (twice or self.mode is not Mode.RUNNING):
            self._end(event.code)
        elif self.mode is Mode.RUNNING:
            self.do(Say("the job is about to end: writing a checkpoint"))
            for worker in self.members():  # a world just agreed on has its rank 0 among them
                self.do(Send(worker.name, {"type": "hurry", "deadline_s": event.deadline_s}))
            if event.stop:
                self.timers["stop"] = self.now + event.deadline_s

    def _end(self, code: int) -> None:
        self.mode = Mode.ENDED
        self.resizing.fail("the job is ending", phase="withdrawn")
        self.exit_code = code
        self.timers.clear()
        self.kill(list(self.fleet.workers.values()))
        self.timers.clear()
        self.quit_agents(list(self.fleet.agents))
        self.tell(0, "finished", f"exit code {code}", exit_code=code)
        self.do(Exit(code))

    def _due(self, name: str) -> None:
        kind, _, rest = name.partition(" ")
        if kind == "agents" and self._expected:
            self._give_up_on(set(self._expected), f"nothing heard for {self.limits.agents_s:.0f} s")
        elif kind == "kill":
            job, _, node = rest.partition(" ")
            key = (int(job), node)
            if any(worker.doomed and not worker.exited for worker in self.fleet.on([key])):
                self.do(QuitAgent(key))
                self.do(Say(f"the workers on {node} do not die; doing without the node"))
                self._agent_lost(key)
        elif kind == "blind":
            worker = self.fleet.workers.get(rest)
            if worker is not None and not worker.exited and not worker.doomed:
                self.do(Kill(worker.name, worker.agent))
        elif kind == "culprit":
            self.restart(self._broken, WORLD_DID_NOT_FORM)
        elif kind == "stop" and self._stop_code is not None:
            self.do(Say("no checkpoint in the time left, ending"))
            self._end(self._stop_code)
        elif kind == "resize":
            self.resizing.timed_out()
        elif kind == "checkpoint" and self.mode is Mode.RUNNING:
            self.timers["checkpoint"] = self.now + self.limits.checkpoint_s
            if self.world and self.world.members[0] in self.fleet.workers:
                self.do(Send(self.world.members[0], {"type": "checkpoint"}))

    def _taken(self) -> list[Action]:
        out, self._out = self._out, []
        return out


def _how(event: WorkerExit) -> str:
    if event.signal:
        return f"was killed by signal {event.signal}"
    if event.code == WORLD_DID_NOT_FORM:
        return "could not form its world"
    return f"exited with code {event.code}"


def _number(value: object) -> float:
    """A number from a worker's message; anything else counts as 0."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value and value >= 0:
        return float(value)
    return 0.0
