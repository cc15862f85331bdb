"""Whatever comes to the nodes of a job in whatever order, a framework that only counts them stays right."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from toy_framework import Count

from slurm_elastic.protocol.messages import Piece, Resize, Shape
from slurm_elastic.trainer_shim.allocation.pieces import events
from slurm_elastic.trainer_shim.allocation.pieces.actions import Action, Exit, LaunchAgents, QuitAgent
from slurm_elastic.trainer_shim.allocation.pieces.changes import Changes
from slurm_elastic.trainer_shim.allocation.pieces.holding import Holding
from slurm_elastic.trainer_shim.allocation.pieces.machine import Machine
from slurm_elastic.trainer_shim.allocation.pieces.nodes import Nodes
from slurm_elastic.trainer_shim.allocation.pieces.table import ADDED, IN_USE, State, nodes_of
from slurm_elastic.trainer_shim.node.reach import Listener

BASE = Piece(10, "base", ("n1", "n2"), 2)
COMPANION = Piece(0, "companion", ("n3",), 2)
GPUS = ("0", "1")


def what_comes(chance: Random, holding: Holding, last_id: int) -> events.Event:
    """Something that may well be next, or comes out of turn."""
    nodes = [*nodes_of((BASE,)), *(key for key in holding.nodes.rows if key[0] >= 0), (10 + last_id, "n3")]
    waiting = holding.nodes.of(State.STARTING, State.AWAITED) or nodes
    listens = chance.choice([("10.0.0.1", 0), ("10.0.0.2", 4000)])
    keep = chance.choice([(BASE,), (Piece(10, "base", ("n1",), 2),), holding.pieces, holding.pieces[:1]])
    add = chance.choice([(), (Shape(1, 2),)])
    gpus = sum(piece.gpus for piece in keep) + 2 * len(add)
    withdrawn = chance.random() < 0.1
    order = Resize(last_id + (not withdrawn), 10, keep, add, gpus, 0, "batch", 5.0, withdrawn)
    unreached = chance.choice([(), (), ((Listener("n2", "10.0.0.2", 4000), "refused"),)])
    code, tail = 1, chance.choice([(), ("srun: error: Unable to create step for job 10: busy",)])
    choices: list[tuple[int, events.Event]] = [
        (30, events.AgentUp(chance.choice(waiting), GPUS, listens)),
        (5, events.AgentUp(chance.choice(nodes), chance.choice([GPUS, ("0",)]), listens)),
        (1, events.AgentUp(chance.choice(waiting), GPUS, other_build="9.9")),
        (6, events.AgentLost(chance.choice(nodes))),
        (1, events.NodeTerminating(chance.choice(nodes[1:]))),
        (1, events.NodeSuspending(chance.choice(nodes))),
        (2, events.StepEnded(chance.randrange(1, 8), code, tail)),
        (8, events.ReachTried(chance.choice(nodes), unreached)),
        (20, events.ResizeCame(order)),
        (20, events.CompanionGranted(last_id, 0, replace(COMPANION, slurm_job_id=10 + last_id))),
        (2, events.CompanionRefused(last_id, 0, "no")),
    ]
    return chance.choices([event for _, event in choices], [weight for weight, _ in choices])[0]


def test_no_order_of_events_confuses_a_framework() -> None:
    """No node takes a step that the table does not have, the batch host stays, and what is not wanted quits."""
    seen: set[State] = set()
    for seed in range(300):
        chance, holding, now, last_id = Random(seed), Holding((BASE,)), 0.0, 0
        machine = Machine(holding, (Nodes, Changes, Count))
        done: list[Action] = machine.start(now)
        for _ in range(60):
            if chance.random() < 0.1:
                now += chance.choice([1.0, 5.0, 50.0, 500.0])
                done += machine.tick(now)
            else:
                event = what_comes(chance, holding, last_id)
                last_id = event.resize.id if isinstance(event, events.ResizeCame) else last_id
                done += machine.handle(event, now)
            if holding.ended:
                break
            seen |= {row.state for row in holding.nodes.rows.values()}
            assert holding.pieces[0].nodes[0] == "n1"
            assert nodes_of(holding.pieces) == holding.nodes.of(*IN_USE)
            assert holding.change is not None or not holding.nodes.of(State.ASKED, State.GRANTED, *ADDED)
        launched = {key for action in done if isinstance(action, LaunchAgents) for key in nodes_of([action.piece])}
        assert set(holding.nodes.of(*IN_USE, *ADDED)) <= launched
        told = {action.agent for action in done if isinstance(action, QuitAgent)}
        assert set(holding.nodes.of(State.LEAVING)) <= told
        assert holding.ended == any(isinstance(action, Exit) for action in done)
    assert seen >= {*State} - {State.GRANTED, State.READY, State.LOST}  # which last no longer than one event, here
