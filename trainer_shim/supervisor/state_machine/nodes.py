"""The nodes of one job as its supervisor sees them: which agents are awaited, there, lost or sent away. Pure.

The batch host is never given up: it is launched again, a bounded number of times. Any other node that is lost, or
stays silent, is done without.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slurm_elastic.protocol.messages import Piece

from .. import commands
from . import workers as fleets
from .events import AgentKey, AgentUp, Hurry, LaunchAgents, QuitAgent, Say, StepEnded
from .workers import Mode

if TYPE_CHECKING:
    from .machine import Machine

SIGKILLED = 128 + 9
AGAIN_S = 2.0
"""Pause before a launch that Slurm had no step for is tried again."""


class Nodes:
    """The part of the machine that knows where workers could be."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.awaited: set[AgentKey] = set()
        """Agents that the world to come waits for; those of a companion are the resize's."""
        self._launches = 0
        self._launched: dict[AgentKey, int] = {}
        self._pieces: dict[int, Piece] = {}
        """By launch, until its step has ended."""

    def start(self) -> None:
        """Start the agents of all pieces."""
        machine = self._machine
        self.awaited = set(fleets.keys(machine.pieces))
        machine.timers["agents"] = machine.now + machine.limits.agents_s
        for piece in machine.pieces:
            self.launch(piece)

    def launch(self, piece: Piece) -> None:
        """Start the agents of a piece."""
        self._launches += 1
        for key in fleets.keys([piece]):
            self._launched[key] = self._launches
        self._pieces[self._launches] = piece
        self._machine.do(LaunchAgents(piece, self._launches))

    def launch_again(self, number: int) -> None:
        """Slurm had no step for this launch: once more, for the nodes of it that are still waited for."""
        piece = self._pieces.pop(number, None)
        if piece is None:
            return
        nodes = tuple(key[1] for key in fleets.keys([piece]) if self._waits_for(key))
        if nodes:
            self.launch(replace(piece, nodes=nodes))

    def relaunch_batch_host(self) -> None:
        """If it is not there and not awaited."""
        machine, key = self._machine, self._machine.batch_host
        if machine.fleet.available(key) or key in self.awaited:
            return
        base = machine.pieces[0]
        self.awaited.add(key)
        machine.timers["agents"] = machine.now + machine.limits.agents_s
        self.launch(replace(base, nodes=base.nodes[:1]))

    def quit(self, agents: list[AgentKey]) -> None:
        """Send these agents away."""
        for key in agents:
            agent = self._machine.fleet.agents.get(key)
            if agent is not None and not agent.quitting:
                agent.quitting = True
                self._machine.do(QuitAgent(key))

    # --- events -----------------------------------------------------------------------------------------------

    def up(self, event: AgentUp) -> None:
        """An agent has connected."""
        machine = self._machine
        joins = machine.resizing.warming.expects(event.agent)
        if not (joins or event.agent in self.awaited) or event.agent in machine.fleet.agents:
            machine.do(QuitAgent(event.agent))
            return
        machine.fleet.agents[event.agent] = fleets.Agent(event.gpus)
        if joins:
            machine.resizing.warming.agent_up(event.agent)
            return
        self.awaited.discard(event.agent)
        if machine.mode is Mode.STARTING:
            machine.spawn_on([event.agent])
        machine.lives.respawn_if_dead()

    def lost(self, key: AgentKey) -> None:
        """An agent's connection is gone, and its workers with it."""
        machine = self._machine
        agent = machine.fleet.agents.pop(key, None)
        if agent is None:
            return
        machine.timers.pop(f"kill {key[0]} {key[1]}", None)
        gone = machine.fleet.on([key])
        for worker in gone:
            del machine.fleet.workers[worker.name]
            machine.timers.pop(f"blind {worker.name}", None)
        if agent.quitting:
            machine.lives.respawn_if_dead()
        elif machine.resizing.warming.expects(key):
            machine.resizing.returning.joiner_lost(
                f"node {key[1]} of job {key[0]} was lost before its workers' first step"
            )
        elif gone and all(worker.quiesced and machine.resizing.leaves(worker) for worker in gone):
            for worker in gone:
                machine.resizing.returning.left(worker)
        elif machine.mode is Mode.FINISHING and all(worker.exited or worker.done for worker in gone):
            machine.lives.finish_if_over()
        else:
            self._do_without(key)

    def _do_without(self, key: AgentKey) -> None:
        machine = self._machine
        why = f"node {key[1]} of job {key[0]} was lost"
        if machine.mode is not Mode.RESTARTING:
            machine.lives.restart(why, SIGKILLED)
        elif key == machine.batch_host:
            machine.lives.again(why, SIGKILLED)
        else:
            self.leave_out_lost()
            machine.lives.respawn_if_dead()

    def step_ended(self, event: StepEnded) -> None:
        """The agents of a launch cannot come any more: those still awaited never will."""
        machine = self._machine
        keys = {key for key, number in self._launched.items() if number == event.number}
        if commands.worth_again(event.tail) and any(self._waits_for(key) for key in keys):
            machine.timers[f"launch {event.number}"] = machine.now + AGAIN_S  # until the time for all of it is over
            return
        self._pieces.pop(event.number, None)
        if machine.resizing.warming.expects_any(keys):
            machine.resizing.fail(f"the companion's agents did not start (exit code {event.code})")
        if missing := self.awaited & keys:
            for line in event.tail:
                machine.do(Say(f"  agent| {line}"))
            self._give_up_on(missing, f"exit code {event.code}")

    def _waits_for(self, key: AgentKey) -> bool:
        return key in self.awaited or self._machine.resizing.warming.expects_any({key})

    def silent(self) -> None:
        """The time for agents to connect is over."""
        if self.awaited:
            self._give_up_on(set(self.awaited), f"nothing heard for {self._machine.limits.agents_s:.0f} s")

    def _give_up_on(self, missing: set[AgentKey], how: str) -> None:
        machine = self._machine
        self.awaited -= missing
        names = ", ".join(sorted(node for _, node in missing))
        machine.do(Say(f"no agent started on {names} ({how})"))
        if machine.batch_host in missing:
            machine.lives.again("the batch host's agent did not start", 1)
            return
        self.leave_out_lost()
        machine.lives.respawn_if_dead()
        machine.lives.form_if_ready()

    def leave_out_lost(self) -> None:
        """Reduce the pieces to the nodes whose agents are there or still awaited; the batch host always stays."""
        machine = self._machine
        parts = []
        for piece in machine.pieces:
            nodes = tuple(node for node in piece.nodes if self._stays((piece.slurm_job_id, node)))
            parts.append(replace(piece, nodes=nodes))
        machine.pieces = tuple(piece for piece in parts if piece.nodes)

    def _stays(self, key: AgentKey) -> bool:
        return self._machine.fleet.available(key) or key in self.awaited or key == self._machine.batch_host

    def notice(self, key: AgentKey) -> None:
        """Slurm will take this node away in seconds."""
        machine = self._machine
        if key[0] == machine.batch_host[0]:
            machine.lives.hurry(Hurry(deadline_s=30.0, stop=False))
        else:
            machine.resizing.without({key[0]}, f"Slurm takes job {key[0]} away")

    def undying(self, key: AgentKey) -> None:
        """Killed workers should be dead by now; a node where they are not is done without."""
        machine = self._machine
        if any(worker.doomed and not worker.exited for worker in machine.fleet.on([key])):
            machine.do(QuitAgent(key))
            machine.do(Say(f"the workers on {key[1]} do not die; doing without the node"))
            self.lost(key)
