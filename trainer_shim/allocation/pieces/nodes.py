"""The nodes of one job: which agents are awaited, there, lost or sent away. Pure.

The batch host is never given up: its agent is started again as often as the framework says. Any other node that is
lost, or stays silent, is left out. A host that joins tries whether it reaches the others before anybody waits for it in
vain.
"""

from collections.abc import Collection

from slurm_elastic.protocol.messages import Unreached

from ...node.reach import Listener, supervisor_unreached
from .. import commands
from . import events
from .actions import DetachAgents, Print, QuitAgent, StartOver, TryReach
from .events import AgentsTimer, LaunchTimer
from .holding import Handlers, Holding, Part
from .table import ADDED, THERE, NodeKey, State, only

RELAUNCH_S = 2.0
"""Pause before a launch that Slurm had no step for is tried again."""
MOST_PAIRS = 64
"""That one failure is told of."""
MOST_SAID = 3


class Nodes(Part[Holding]):
    """The part of the machine that knows where work could be done."""

    def __init__(self, context: Holding) -> None:
        super().__init__(context)
        self._told_of_clock = False

    def handlers(self) -> Handlers:
        return {
            events.Started: self._start,
            events.AgentUp: self._up,
            events.AgentLost: lambda event: self._context.lose(event.agent),
            events.StepEnded: self._step_ended,
            events.ReachTried: self._reach_tried,
            events.ClockDiffers: self._clock_differs,
            AgentsTimer: self._silent,
            LaunchTimer: self._launch_again,
        }

    # --- starting agents --------------------------------------------------------------------------------------

    def _start(self, event: events.Started) -> None:
        self._context.expect_agents()
        for piece in self._context.pieces:
            self._context.launch(piece)

    def _waiting(self, launch: int) -> list[NodeKey]:
        """The nodes whose agents this launch still owes."""
        nodes = self._context.nodes
        return [key for key in nodes.of(State.AWAITED, State.STARTING) if nodes.rows[key].launch == launch]

    def _step_ended(self, event: events.StepEnded) -> None:
        """The agents of a launch cannot come any more: those still awaited never will."""
        context, waiting = self._context, self._waiting(event.number)
        if waiting and commands.worth_again(event.tail):
            # tried again until the time for all agents is over
            context.timers.set(LaunchTimer(event.number), context.now + RELAUNCH_S)
            return
        added, used = (
            {key for key in waiting if context.nodes.state(key) is state} for state in (State.STARTING, State.AWAITED)
        )
        if added:
            host, failures = context.batch_host[1], commands.launch_failures(event.tail)
            why = next((line for line in reversed(event.tail) if line.startswith("selastic: ")), "")
            launches = "; ".join(f"srun on {host} starts nothing on {node}: {problem}" for node, problem in failures)
            said = why.removeprefix("selastic: ") or launches or f"exit code {event.code}"
            unreached = supervisor_unreached(said, host) or tuple(
                Unreached(host, node, "its NodeAddr") for node, problem in failures if commands.no_network(problem)
            )
            context.lose_added(added, f"the companion's agents did not start: {said}", unreached)
        if used:
            for line in event.tail:
                context.do(Print(f"  agent| {line}"))
            self._give_up_on(used, f"exit code {event.code}")

    def _launch_again(self, event: LaunchTimer) -> None:
        """Slurm had no step for this launch: once more, for the nodes of it that are still awaited."""
        for piece in only(self._context.nodes.pieces(State.AWAITED, State.STARTING), self._waiting(event.of)):
            self._context.launch(piece)

    def _silent(self, event: AgentsTimer) -> None:
        """The time for agents to connect is over."""
        if self._context.awaited:
            self._give_up_on(self._context.awaited, f"nothing heard for {self._context.limits.agents_s:.0f} s")

    def _give_up_on(self, missing: Collection[NodeKey], how: str) -> None:
        context = self._context
        for key in missing:
            context.nodes.move(key, State.LOST)
        names = ", ".join(sorted(node for _, node in missing))
        context.do(Print(f"no agent started on {names} ({how})"))
        if context.batch_host in missing:
            context.emit(events.BaseGone("the batch host's agent did not start", 1))
            return
        context.leave_out_lost()
        context.emit(events.NodesSettled())

    # --- agents that come -------------------------------------------------------------------------------------

    def _up(self, event: events.AgentUp) -> None:
        context, key, state = self._context, event.agent, self._context.nodes.state(event.agent)
        if state not in (State.AWAITED, State.STARTING):
            context.do(QuitAgent(key))
            return
        if event.other_build:
            self._turn_away(key, event.other_build)
            return
        row = context.nodes.rows[key]
        row.gpus, row.listens = event.gpus, event.listens
        if state is State.AWAITED:
            context.nodes.move(key, State.USED)
            context.emit(events.NodeUp(key, joins=False))
            context.emit(events.NodesSettled())
            return
        others = self._others(key) if event.listens[1] else ()
        context.nodes.move(key, State.TRYING if others else State.READY)
        # Slurm's SIGTERM for the base job reaches each srun in its batch script, and one of another job's step answers
        # by killing that step: agents of companions are to depend on none.
        if not self._waiting(row.launch):
            context.do(DetachAgents(row.launch))
        if others:
            context.do(TryReach(key, others))
        if len(event.gpus) != row.piece.gpus_per_node:
            shown = f"shows {len(event.gpus)} GPUs instead of {row.piece.gpus_per_node}"
            context.emit(events.NodeLeft(key))
            context.lose_added({key}, f"node {key[1]} of job {key[0]} {shown}")
            return
        context.emit(events.NodeUp(key, joins=True))
        self._ready_if_all()

    def _turn_away(self, key: NodeKey, build: str) -> None:
        """It was upgraded under the job: workers of two builds may not understand each other, nor may this supervisor
        and it. On the batch host the next supervisor is of that build too."""
        context = self._context
        why = f"node {key[1]} has another slurm-elastic ({build}) than this job runs"
        context.do(QuitAgent(key))
        if context.joins(key):
            context.lose_added({key}, f"{why}; start the job again, or put that one back")
        elif key == context.batch_host:
            context.do(StartOver(why))
        else:
            self._give_up_on({key}, why)

    def _others(self, key: NodeKey) -> tuple[Listener, ...]:
        """The hosts that are there and can be tried."""
        rows = [(other[1], row.listens) for other, row in self._context.nodes.rows.items() if row.state in THERE]
        return tuple(Listener(node, *listens) for node, listens in rows if listens[1] and node != key[1])

    def _reach_tried(self, event: events.ReachTried) -> None:
        context, key, host = self._context, event.agent, event.agent[1]
        if context.nodes.state(key) is not State.TRYING:
            return
        if not event.unreached:
            context.nodes.move(key, State.READY)
            self._ready_if_all()
            return
        said = [f"{one.node} at {one.address} port {one.port} ({problem})" for one, problem in event.unreached]
        pairs = tuple(Unreached(host, one.node, one.address) for one, _ in event.unreached[:MOST_PAIRS])
        rest = f", and {len(said) - MOST_SAID} more" if len(said) > MOST_SAID else ""
        context.lose_added(
            {key}, f"{host} does not reach {', nor '.join(said[:MOST_SAID])}{rest}; see --interface", pairs
        )

    def _ready_if_all(self) -> None:
        if len(self._context.nodes.of(State.READY)) == len(self._context.nodes.of(*ADDED)):
            self._context.emit(events.PiecesReady())

    def _clock_differs(self, event: events.ClockDiffers) -> None:
        if not self._told_of_clock:
            self._told_of_clock = True
            where = f"{abs(event.seconds):.0f} s {'ahead of' if event.seconds > 0 else 'behind'} Slurm's"
            self._context.do(Print(f"the clock of {self._context.batch_host[1]} is {where}: tell an admin"))
