"""What `selastic hold` decides, without a clock or a process."""

from __future__ import annotations

from random import Random
from typing import Any

from slurm_elastic.protocol.messages import STALLED, STEPS_AGAIN, Grant, Happening, Piece, Resize, Shape
from slurm_elastic.trainer_shim.allocation.pieces import actions, events
from slurm_elastic.trainer_shim.allocation.pieces.changes import Changes
from slurm_elastic.trainer_shim.allocation.pieces.machine import Machine
from slurm_elastic.trainer_shim.allocation.pieces.nodes import Nodes
from slurm_elastic.trainer_shim.allocation.pieces.table import IN_USE, NodeKey
from slurm_elastic.trainer_shim.hold import joins
from slurm_elastic.trainer_shim.hold.joins import Held, HoldLimits, Joins
from slurm_elastic.trainer_shim.hold.speeds import Backlog, Figure, SendReport, Speeds

BASE = Piece(10, "base", ("n1",), 4)
GPUS = ("0", "1", "2", "3")


class Hold:
    """A job on n1 whose companions are n2, n3, ...; what was done is in `done`."""

    def __init__(self, says_ready: bool = False) -> None:
        held = Held((BASE,), HoldLimits(says_ready=says_ready, drain_s=30.0), 0, "tasks", "own")
        self.machine = Machine(held, (Nodes, Changes, Joins, Speeds))
        self.now, self.held, self.orders = 0.0, held, 0
        self.done: list[actions.Action] = self.machine.start(0.0)
        self.hear(events.Registered(Grant("t", True, report_interval_s=1.0)))
        self.up((10, "n1"))

    def hear(self, event: events.Event, later: float = 0.0) -> None:
        self.now += later
        self.done += self.machine.handle(event, self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.done += self.machine.tick(self.now)

    def up(self, key: NodeKey) -> None:
        self.hear(events.AgentUp(key, GPUS))

    def order(self, keep: tuple[Piece, ...], add: int = 0) -> None:
        self.orders += 1
        shapes = (Shape(add, 4),) if add else ()
        gpus = sum(piece.gpus for piece in keep) + 4 * add
        self.hear(events.ResizeCame(Resize(self.orders, 10, keep, shapes, gpus, gpus, "grow_idle", 60.0)))

    def grow(self, *nodes: str) -> None:
        """Ordered and granted; their agents are there."""
        self.order(self.held.pieces, len(nodes))
        job_id = 10 + self.orders
        self.hear(events.CompanionGranted(self.orders, 0, Piece(job_id, "companion", nodes, 4)))
        for node in nodes:
            self.up((job_id, node))

    def took(self, kind: type[Any]) -> list[Any]:
        """What was done of this kind since it was asked last."""
        found = [action for action in self.done if isinstance(action, kind)]
        self.done = [action for action in self.done if not isinstance(action, kind)]
        return found

    def told(self) -> list[tuple[int, str]]:
        said = [action.said for action in self.took(actions.Tell)]
        return [(one.resize, one.what) for one in said if isinstance(one, Happening)]


def test_a_node_is_in_use_once_its_join_command_has_run_for_a_while() -> None:
    hold = Hold()
    hold.grow("n2", "n3")
    assert [(join.node[1], join.index, join.size) for join in hold.took(joins.StartJoin)] == [
        ("n2", 1, 3),
        ("n3", 2, 3),
    ]
    assert hold.told()[-1] == (1, "granted")
    hold.wait(2.0)
    assert hold.told() == [(1, "ready"), (1, "running")]
    assert (len(hold.held.pieces), hold.held.batch) == (2, 12)


def test_an_index_is_used_again_only_once_its_node_is_gone() -> None:
    hold = Hold()
    for node in ("n2", "n3"):
        hold.grow(node)
        hold.wait(2.0)
    hold.order((BASE, hold.held.pieces[2]))
    hold.hear(joins.LeaveEnded())
    hold.hear(joins.JoinEnded(hold.took(joins.End)[0].join.name, "signal 15"))
    hold.took(joins.StartJoin)
    hold.grow("n4")
    assert [join.index for join in hold.took(joins.StartJoin)] == [1]


def test_ready_is_waited_for_where_it_is_said() -> None:
    """And its absence names the command."""
    hold = Hold(says_ready=True)
    hold.grow("n2")
    hold.wait(100.0)
    assert (1, "running") not in hold.told()
    hold.hear(joins.JoinReady("11.n2.1"))
    assert (1, "running") in hold.told()
    hold.grow("n3")
    hold.wait(121.0)
    [failed] = [action.said for action in hold.took(actions.Tell) if action.said.what == "failed"]
    assert failed.detail.endswith("not ready: the join command on n3")


def test_nodes_are_left_once_the_program_has_let_go_of_them() -> None:
    hold = Hold()
    hold.grow("n2")
    hold.wait(2.0)
    hold.order((BASE,))
    assert hold.took(joins.StartLeave) == [joins.StartLeave(("n2",), lost=False)]
    assert not hold.took(joins.End)
    hold.hear(joins.LeaveEnded())
    [end] = hold.took(joins.End)
    assert hold.told()[-1] == (2, "accepted")
    hold.hear(joins.JoinEnded(end.join.name, "signal 15"))
    assert hold.told() == [(2, "running")]
    assert hold.held.pieces == (BASE,)


def test_the_drain_time_is_the_end_of_waiting() -> None:
    hold = Hold()
    hold.grow("n2")
    hold.wait(2.0)
    hold.order((BASE,))
    hold.wait(30.0)
    assert hold.took(joins.KillLeave) and hold.took(joins.End)
    assert hold.told()[-1] == (2, "running")


def test_a_join_command_that_ends_gives_its_node_back() -> None:
    """Before it was ready the change has failed; afterwards the job goes on without, and the program hears of it."""
    hold = Hold()
    hold.grow("n2")
    name = hold.took(joins.StartJoin)[0].name
    hold.hear(joins.JoinEnded(name, "exit code 5", ("no port",)))
    assert hold.told()[-1] == (1, "failed")
    assert hold.took(actions.DropCompanions)
    hold.grow("n3")
    hold.wait(2.0)
    hold.hear(joins.JoinEnded(hold.took(joins.StartJoin)[0].name, "exit code 1"))
    assert hold.held.pieces == (BASE,)
    assert hold.took(joins.StartLeave) == [joins.StartLeave(("n3",), lost=True)]
    assert hold.took(actions.UpdateRegistration)[-1].registration.pieces == (BASE,)


def test_a_lost_node_is_told_and_a_lost_batch_host_gets_its_agent_again() -> None:
    hold = Hold()
    hold.grow("n2")
    hold.wait(2.0)
    hold.took(actions.LaunchAgents)
    hold.hear(events.AgentLost((11, "n2")))
    assert hold.took(joins.StartLeave) == [joins.StartLeave(("n2",), lost=True)]
    hold.hear(events.AgentLost((10, "n1")))
    assert not hold.took(joins.StartLeave)
    assert hold.took(actions.LaunchAgents)[0].piece == BASE
    hold.took(actions.SubmitCompanion)
    hold.order((BASE,), 1)
    assert not hold.took(actions.SubmitCompanion)
    hold.up((10, "n1"))
    assert hold.took(actions.SubmitCompanion)


def test_its_own_commands_end_ends_all() -> None:
    hold = Hold()
    hold.grow("n2")
    hold.hear(joins.CommandEnded(3))
    assert hold.took(actions.Exit) == [actions.Exit(3)]
    assert hold.told()[-1] == (0, "finished")
    hold = Hold()
    hold.hear(events.JobTerminating(25.0, stop=True))
    assert hold.took(joins.End) and not hold.took(actions.Exit)
    hold.wait(25.0)
    assert hold.took(actions.Exit) == [actions.Exit(143)]


def test_speeds_are_reported_once_a_size_has_settled() -> None:
    """A step of a report is one unit of each GPU."""
    hold = Hold()
    hold.hear(Figure(8.0), 1.0)
    assert not hold.took(SendReport)
    hold.hear(Figure(8.0), 5.0)
    [sent] = hold.took(SendReport)
    report = sent.report
    assert (report.gpus, report.batch, report.step_time_median_s, report.samples, report.unit) == (
        4,
        4,
        0.5,
        40,
        "tasks",
    )
    for unreal in (0.0, -1.0, 1e12, 1.7e308, float("inf"), float("nan")):
        hold.hear(Figure(unreal), 5.0)
    assert not hold.took(SendReport)
    hold.grow("n2")
    hold.wait(2.0)
    hold.hear(Figure(16.0), 0.1)
    assert not hold.took(SendReport)
    hold.hear(Figure(16.0), 5.0)
    assert 100 < hold.took(SendReport)[0].report.samples < 300


def test_a_job_with_nothing_to_do_gives_back_and_asks_again() -> None:
    hold = Hold()
    hold.grow("n2")
    hold.wait(2.0)
    hold.told()
    hold.hear(Backlog(0.0))
    assert hold.told() == [(0, STALLED)]
    hold.hear(joins.LeaveEnded())
    hold.hear(joins.JoinEnded(hold.took(joins.End)[0].join.name, "signal 15"))
    assert hold.told() == [(0, "running"), (0, STALLED)]
    assert hold.took(actions.CancelCompanion) == [actions.CancelCompanion(11)]
    hold.hear(Backlog(3.0))
    hold.hear(Backlog(2.0))
    assert hold.told() == [(0, STEPS_AGAIN)]


def something(chance: Random, hold: Hold) -> None:
    """What may well come next, or comes out of turn."""
    names = [action.name for action in hold.done if isinstance(action, joins.StartJoin)] or ["none"]
    node = chance.choice([key for key in hold.held.nodes.rows if key[0] > 0])
    piece = Piece(100 + hold.orders, "companion", ("n2",), 4)
    ordered = hold.orders
    choice = chance.choice([0, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 6, 6, 7, 8, 9, 10])
    if choice == 0:
        hold.order(chance.choice([(BASE,), hold.held.pieces]), chance.choice([0, 1]))
    elif choice == 1:
        hold.wait(chance.choice([0.5, 2.0, 2.0, 40.0]))
    else:
        what = [
            *(events.CompanionGranted(ordered, 0, piece), events.AgentUp(node, GPUS), joins.JoinReady(names[-1])),
            *(joins.JoinEnded(chance.choice(names), "exit code 1"), joins.LeaveEnded()),
            *(events.AgentLost(node), events.NodeTerminating(node), Backlog(0.0), Backlog(1.0)),
        ]
        hold.hear(what[choice - 2])


def test_no_order_of_events_confuses_it() -> None:
    """Each node in use that is not the batch host has a join command, or is about to be given back."""
    grown = 0
    for seed in range(300):
        chance, hold = Random(seed), Hold(says_ready=seed % 2 == 1)
        for _ in range(60):
            something(chance, hold)
            assert hold.held.pieces[0].nodes == ("n1",)
            used = {key for key in hold.held.nodes.of(*IN_USE) if key[0] != 10}
            assert used - hold.held.going <= set(hold.held.joined), (seed, used)
            grown += len(used)
    assert grown > 50
