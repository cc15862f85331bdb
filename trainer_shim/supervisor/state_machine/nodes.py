"""The nodes of one job as its supervisor sees them: which agents are awaited, there, lost or sent away. Pure.

The batch host is never given up: its agent is started again, a bounded number of times. Any other node that is lost, or
stays silent, is left out.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from slurm_elastic.protocol.messages import Piece, Unreached

from ...allocation import commands
from ...allocation.pieces.events import (
    AgentKey,
    AgentLost,
    AgentUp,
    JobTerminating,
    NodeSuspending,
    NodeTerminating,
    StepEnded,
)
from ...node.reach import supervisor_unreached
from . import events
from .actions import CancelCompanion, DetachAgents, LaunchAgents, Print, QuitAgent, StartOver
from .context import Handlers, Mode, Part, SupervisorContext
from .timers import AgentsTimer, DisconnectedTimer, KillTimer, LaunchTimer, SuspendedTimer
from .workers import ConnectedAgent, Worker, agents_of

SIGKILLED = 128 + 9
RELAUNCH_S = 2.0
"""Pause before a launch that Slurm had no step for is tried again."""
SUSPENDED_S = 4.0
"""From Slurm's SIGTSTP until its SIGSTOP, which follows after two seconds, has come for certain."""


class Nodes(Part):
    """The part of the machine that knows where workers could be."""

    def __init__(self, context: SupervisorContext) -> None:
        super().__init__(context)
        self._launches = 0
        self._launched: dict[AgentKey, int] = {}
        self._pieces: dict[int, Piece] = {}
        """By launch, until its step has ended."""

    def handlers(self) -> Handlers:
        return {
            events.Started: self._start,
            events.StartAgents: lambda event: self._launch(event.piece),
            AgentUp: self._up,
            AgentLost: lambda event: self._lost(event.agent),
            StepEnded: self._step_ended,
            NodeTerminating: self._terminating,
            NodeSuspending: self._suspending,
            events.JobsLeft: self._forget_launches,
            SuspendedTimer: lambda event: self._context.do(CancelCompanion(event.slurm_job_id)),
            events.Restarting: self._restarting,
            AgentsTimer: self._silent,
            LaunchTimer: self._launch_again,
            KillTimer: self._not_dead,
        }

    # --- starting agents --------------------------------------------------------------------------------------

    def _start(self, event: events.Started) -> None:
        self._await(agents_of(self._context.pieces))
        for piece in self._context.pieces:
            self._launch(piece)

    def _await(self, keys: list[AgentKey]) -> None:
        context = self._context
        context.awaited.update(keys)
        context.timers.set(AgentsTimer(), context.now + context.limits.agents_s)

    def _launch(self, piece: Piece) -> None:
        self._launches += 1
        for key in agents_of([piece]):
            self._launched[key] = self._launches
        self._pieces[self._launches] = piece
        self._context.do(LaunchAgents(piece, self._launches))

    def _launch_again(self, event: LaunchTimer) -> None:
        """Slurm had no step for this launch: once more, for the nodes of it that are still awaited."""
        piece = self._pieces.pop(event.number, None)
        if piece is None:
            return
        nodes = tuple(key[1] for key in agents_of([piece]) if self._awaits({key}))
        if nodes:
            self._launch(replace(piece, nodes=nodes))

    def _restarting(self, event: events.Restarting) -> None:
        """The batch host's agent is started again if it is not there; other nodes that are lost are left out."""
        context, key = self._context, self._context.batch_host
        if not context.available(key) and key not in context.awaited:
            base = context.pieces[0]
            self._await([key])
            self._launch(replace(base, nodes=base.nodes[:1]))
        self._leave_out_lost()

    def _forget_launches(self, event: events.JobsLeft) -> None:
        self._launched = {key: number for key, number in self._launched.items() if key[0] in event.retained}
        self._pieces = {number: piece for number, piece in self._pieces.items() if piece.slurm_job_id in event.retained}

    # --- agents that come and go ------------------------------------------------------------------------------

    def _up(self, event: AgentUp) -> None:
        context, key = self._context, event.agent
        joins = context.joins(key)
        if not (joins or key in context.awaited) or context.available(key):
            context.do(QuitAgent(key))
            return
        if event.other_build:
            self._turn_away(key, event.other_build, joins)
            return
        self._forget(key)  # one that was quitting: its connection has given way to this one
        context.agents[key] = ConnectedAgent(event.gpus, event.listens)
        if joins:
            self._detach_if_complete(key)
            return
        context.awaited.discard(key)
        if context.mode is Mode.STARTING:
            context.spawn_on([key])
        context.emit(events.AgentsSettled())

    def _turn_away(self, key: AgentKey, build: str, joins: bool) -> None:
        """It was upgraded under the job: workers of two builds may not understand each other, nor may this supervisor
        and it. On the batch host the next supervisor is of that build too."""
        context = self._context
        why = f"node {key[1]} has another slurm-elastic ({build}) than this job runs"
        context.do(QuitAgent(key))
        if joins:
            context.emit(events.UndoResize(f"{why}; start the job again, or put that one back"))
        elif key == context.batch_host:
            context.do(StartOver(why))
        else:
            self._give_up_on({key}, why)

    def _detach_if_complete(self, key: AgentKey) -> None:
        """Slurm's SIGTERM for the base job reaches each srun in its batch script, and one of another job's step answers
        by killing that step: agents of companions are to depend on none."""
        number = self._launched.get(key, 0)
        if number and all(other in self._context.agents for other, its in self._launched.items() if its == number):
            self._context.do(DetachAgents(number))

    def _lost(self, key: AgentKey) -> None:
        """An agent's connection is gone, and its workers with it."""
        context, agent = self._context, self._context.agents.get(key)
        if agent is None:
            return
        gone = self._forget(key)
        if agent.quitting:
            context.emit(events.AgentsSettled())
        elif context.joins(key):
            context.emit(events.JoinerLost(f"node {key[1]} of job {key[0]} was lost before its workers' first step"))
        elif gone and all(worker.quiesced and context.leaves(worker) for worker in gone):
            context.emit(events.LeaverGone())
        elif context.mode is Mode.FINISHING and all(worker.exited or worker.done for worker in gone):
            context.emit(events.EndIfOver())
        else:
            self._do_without(key)

    def _forget(self, key: AgentKey) -> list[Worker]:
        """Drop an agent, if it is there, with its workers; these are returned."""
        context = self._context
        context.agents.pop(key, None)
        context.timers.cancel(KillTimer(key))
        gone = context.workers_on([key])
        for worker in gone:
            del context.workers[worker.name]
            context.timers.cancel(DisconnectedTimer(worker.name))
        return gone

    def _do_without(self, key: AgentKey) -> None:
        context = self._context
        why = f"node {key[1]} of job {key[0]} was lost"
        if context.mode is not Mode.RESTARTING:
            context.emit(events.Restart(why, SIGKILLED))
        elif key == context.batch_host:
            context.fail_start(why, SIGKILLED)
        else:
            self._leave_out_lost()
            context.emit(events.AgentsSettled())

    def _step_ended(self, event: StepEnded) -> None:
        """The agents of a launch cannot come any more: those still awaited never will."""
        context = self._context
        keys = {key for key, number in self._launched.items() if number == event.number}
        if commands.worth_again(event.tail) and self._awaits(keys):
            # tried again until the time for all agents is over
            context.timers.set(LaunchTimer(event.number), context.now + RELAUNCH_S)
            return
        self._pieces.pop(event.number, None)
        if context.joiner_awaited(keys):
            host, failures = context.batch_host[1], commands.launch_failures(event.tail)
            why = next((line for line in reversed(event.tail) if line.startswith("selastic: ")), "")
            launches = "; ".join(f"srun on {host} starts nothing on {node}: {problem}" for node, problem in failures)
            said = why.removeprefix("selastic: ") or launches or f"exit code {event.code}"
            unreached = supervisor_unreached(said, host) or tuple(
                Unreached(host, node, "its NodeAddr") for node, problem in failures if commands.no_network(problem)
            )
            context.emit(events.UndoResize(f"the companion's agents did not start: {said}", unreached=unreached))
        if missing := context.awaited & keys:
            for line in event.tail:
                context.do(Print(f"  agent| {line}"))
            self._give_up_on(missing, f"exit code {event.code}")

    def _awaits(self, keys: Set[AgentKey]) -> bool:
        return bool(self._context.awaited & keys) or self._context.joiner_awaited(keys)

    def _silent(self, event: AgentsTimer) -> None:
        """The time for agents to connect is over."""
        if self._context.awaited:
            self._give_up_on(set(self._context.awaited), f"nothing heard for {self._context.limits.agents_s:.0f} s")

    def _give_up_on(self, missing: set[AgentKey], how: str) -> None:
        context = self._context
        context.awaited -= missing
        names = ", ".join(sorted(node for _, node in missing))
        context.do(Print(f"no agent started on {names} ({how})"))
        if context.batch_host in missing:
            context.fail_start("the batch host's agent did not start", 1)
            return
        self._leave_out_lost()
        context.emit(events.AgentsSettled())

    def _leave_out_lost(self) -> None:
        """Reduce the pieces to the nodes whose agents are there or still awaited; the batch host always stays."""
        context = self._context
        stay = {*context.awaited, context.batch_host, *(key for key in context.agents if context.available(key))}
        parts = [
            replace(piece, nodes=tuple(node for node in piece.nodes if (piece.slurm_job_id, node) in stay))
            for piece in context.pieces
        ]
        for piece in parts:
            if piece.kind == "companion" and not piece.nodes:  # perhaps it is only cut off: nobody else ends it soon
                context.do(CancelCompanion(piece.slurm_job_id))
        context.pieces = tuple(piece for piece in parts if piece.nodes)

    def _terminating(self, event: NodeTerminating) -> None:
        """Slurm will take this node away in seconds, and with it all of its job's."""
        job_id = event.agent[0]
        of_base = job_id == self._context.batch_host[0]
        self._context.emit(
            JobTerminating(self._context.limits.end_s, stop=False)
            if of_base
            else events.JobPreempted(job_id, f"Slurm takes job {job_id} away")
        )

    def _suspending(self, event: NodeSuspending) -> None:
        """Who is stopped stops everybody. What has not been left by then is woken up by its end, and can be left."""
        context, (job_id, _) = self._context, event.agent
        if job_id != context.batch_host[0] and SuspendedTimer(job_id) not in context.timers:
            context.timers.set(SuspendedTimer(job_id), context.now + SUSPENDED_S)
            context.emit(events.JobPreempted(job_id, f"Slurm suspends job {job_id}"))

    def _not_dead(self, event: KillTimer) -> None:
        """A node where killed workers are not dead in time is left out."""
        context, key = self._context, event.agent
        if any(worker.ending and not worker.exited for worker in context.workers_on([key])):
            context.do(QuitAgent(key))
            context.do(Print(f"the workers on {key[1]} do not die; going on without the node"))
            self._lost(key)
