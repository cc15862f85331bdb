"""Hosts that do not reach each other are found before anybody waits for them, and told."""

from __future__ import annotations

import pytest
from supervisor_harness import BASE, COMPANION, SHAPE, Drive

from slurm_elastic.protocol.messages import Unreached
from slurm_elastic.trainer_shim.allocation.pieces.actions import DropCompanions, LaunchAgents, Tell, TryReach
from slurm_elastic.trainer_shim.allocation.pieces.events import AgentUp, CompanionGranted, ReachTried, StepEnded
from slurm_elastic.trainer_shim.node.reach import Listener
from slurm_elastic.trainer_shim.supervisor.state_machine.actions import Spawn
from slurm_elastic.trainer_shim.supervisor.state_machine.context import Mode

GPUS = ("0", "1")
N2 = Listener("n2", "10.0.0.2", 4002)


def joining() -> tuple[Drive, list[str]]:
    """A job on n1, the supervisor's host, and n2, whose companion's agent on n3 has come; its workers."""
    drive = Drive()
    drive(AgentUp((10, "n1"), GPUS, ("127.0.0.1", 0)))
    drive(AgentUp((10, "n2"), GPUS, (N2.address, N2.port)))
    drive.ready([spawn.worker for spawn in drive.every(Spawn)])
    drive.running(1)
    drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    drive(AgentUp((11, "n3"), GPUS, ("10.0.0.3", 4003)))
    return drive, [spawn.worker for spawn in drive.new(Spawn)]


def test_the_worlds_change_once_all_hosts_are_within_reach() -> None:
    """A joining host connects to those that train on other hosts than the supervisor's; nobody goes before it has."""
    drive, workers = joining()
    [asked] = drive.every(TryReach)
    assert (asked.agent, asked.others) == ((11, "n3"), (N2,))
    drive.ready(workers)
    assert "ready" not in drive.phases(1) and not drive.worlds(2)
    drive(ReachTried((11, "n3"), ()))
    assert drive.phases(1)[-1] == "ready" and drive.worlds(2)


def test_hosts_that_do_not_reach_each_other_end_the_resize_and_cost_no_pause() -> None:
    """The failure names both hosts and the address; the old world has not been asked to leave."""
    drive, workers = joining()
    drive.ready(workers)
    drive(ReachTried((11, "n3"), ((N2, "no answer within 8 s"),)))
    [failed] = [action.said for action in drive.every(Tell) if action.said.what == "failed"]
    assert failed.unreached == (Unreached("n3", "n2", "10.0.0.2"),)
    assert failed.detail == "n3 does not reach n2 at 10.0.0.2 port 4002 (no answer within 8 s); see --interface"
    assert DropCompanions(1) in drive.done
    assert drive.context.mode is Mode.RUNNING and not drive.worlds(2)


def test_an_agent_that_does_not_reach_the_supervisor_names_two_hosts() -> None:
    """Its last sentence is all that comes of it."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    number = drive.every(LaunchAgents)[-1].number
    said = "selastic: node n3 does not reach the supervisor at 10.0.0.1 port 400 (timed out); see --interface"
    drive(StepEnded(number, 1, (said,)))
    failed = drive.every(Tell)[-1].said
    assert (failed.what, failed.unreached) == ("failed", (Unreached("n3", "n1", "10.0.0.1"),))


@pytest.mark.parametrize(
    ("reason", "pairs"),
    [
        ("Communication connection failure", (Unreached("n1", "n3", "its NodeAddr"),)),
        ("Invalid job credential", ()),
    ],
)
def test_a_node_that_srun_does_not_reach_is_named(reason: str, pairs: tuple[Unreached, ...]) -> None:
    """In srun's words; what is no matter of the network says nothing of it."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    number = drive.every(LaunchAgents)[-1].number
    said = f"srun: error: Task launch for StepId=2.0 failed on node n3: {reason}", "srun: Job step aborted"
    drive(StepEnded(number, 233, said))
    failed = drive.every(Tell)[-1].said
    assert failed.detail == f"the companion's agents did not start: srun on n1 starts nothing on n3: {reason}"
    assert (failed.what, failed.unreached) == ("failed", pairs)


def test_companions_on_one_node_need_no_network() -> None:
    """What is on the same host as the base is reached."""
    drive = Drive()
    for node, listens in (("n1", ("127.0.0.1", 0)), ("n2", (N2.address, N2.port))):
        drive(AgentUp((10, node), GPUS, listens))
    drive.ready([spawn.worker for spawn in drive.every(Spawn)])
    drive.running(1)
    drive.order(1, (BASE,), (SHAPE,))
    beside = type(COMPANION)(11, "companion", ("n2",), 2)
    drive(CompanionGranted(1, 0, beside))
    drive(AgentUp((11, "n2"), GPUS, ("10.0.0.2", 4009)))
    drive.ready([spawn.worker for spawn in drive.new(Spawn)])
    assert not drive.every(TryReach) and drive.phases(1)[-1] == "ready"
