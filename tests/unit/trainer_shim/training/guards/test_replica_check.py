"""Ranks that no longer hold the same state are told, by name, and no checkpoint is made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from supervisor_harness import Drive
from worker_harness import Control, Start, Zygote

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.allocation.pieces.actions import Exit, Print
from slurm_elastic.trainer_shim.control.worker_client import EXIT_LOST
from slurm_elastic.trainer_shim.supervisor.state_machine.context import Mode
from slurm_elastic.trainer_shim.training.guards import replica_check
from slurm_elastic.trainer_shim.training.guards.replica_check import Held, ReplicaCheck, kind_of
from slurm_elastic.trainer_shim.world import objects, process_group
from slurm_elastic.trainer_shim.world.layout import Layout
from slurm_elastic.trainer_shim.world.process_group import World

CPU = torch.device("cpu")


def trained(made: list[elastic.Job], *, lr: float = 0.1) -> tuple[elastic.Job, torch.nn.Module, torch.optim.Optimizer]:
    """A job of this process alone that has done three steps."""
    torch.manual_seed(1)
    job = elastic.join(batch=4)
    made.append(job)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    net = job.wrap(model, optimizer)
    data = torch.utils.data.TensorDataset(torch.randn(12, 3), torch.randn(12, 1))
    for _ in job.epochs(1):
        for x, y in job.loader(data):
            job.step(torch.nn.functional.mse_loss(net(x), y))
    return job, model, optimizer


def flip(tensor: torch.Tensor) -> None:
    tensor.detach().view(torch.int32).view(-1)[-1] ^= 1


def other_parameter(job: elastic.Job, model: Any, optimizer: Any) -> None:
    flip(model[2].weight)


def other_state(job: elastic.Job, model: Any, optimizer: Any) -> None:
    flip(optimizer.state[model[0].bias]["exp_avg_sq"])


def other_steps(job: elastic.Job, model: Any, optimizer: Any) -> None:
    job._session.replica_check._steps[id(optimizer)] = 1


def other_position(job: elastic.Job, model: Any, optimizer: Any) -> None:
    job._state.progress.samples += 1


def other_rate(job: elastic.Job, model: Any, optimizer: Any) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5


def other_buffer(job: elastic.Job, model: Any, optimizer: Any) -> None:
    flip(model[1].running_mean)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (other_parameter, "value of 2.weight"),
        (other_state, "exp_avg_sq of Optimizer0 for 0.bias"),
        (other_steps, "number of steps of Optimizer0"),
        (other_position, "position (samples)"),
        (other_rate, "lr of Optimizer0's group 0"),
        (other_buffer, ""),
    ],
)
def test_one_bit_is_told_by_name(
    made: list[elastic.Job], monkeypatch: pytest.MonkeyPatch, change: Callable[..., None], name: str
) -> None:
    """The third of three ranks holds one thing otherwise: rank, name and step are told. Running statistics are each
    rank's own."""
    job, model, optimizer = trained(made)
    check, world = job._session.replica_check, World(generation=1, rank=0, size=3, groups=MagicMock())
    check.entered(world, {kind_of(CPU)})
    first = check.look()
    change(job, model, optimizer)
    last = check.look()
    everyone = [first, first, last]

    def said(held: Held) -> tuple[Any, ...]:
        return check._key(world, held), held.values, dict(zip(held.names, held.read(), strict=True))

    def numbers(world: World, *own: int) -> list[list[int]]:
        return [[*held.digests(62), own[2]] for held in everyone]

    monkeypatch.setattr(process_group, "gather", numbers)
    monkeypatch.setattr(objects, "gather", lambda value, group: [said(held) for held in everyone])
    try:
        problem = check.compare(world)
    except TrainingError as error:  # set by the script, which sets it so again
        problem = str(error).replace(";", ":")
        assert change is other_rate
    assert problem.startswith(f"rank 2 holds another {name} than rank 0 after step 3: ") if name else not problem
    words = {first.digests(24)[0] ^ first.digests(24)[1], last.digests(24)[0] ^ last.digests(24)[1]}
    assert len(words) == (2 if name else 1), "what goes with a vote"


def test_kinds_of_devices_are_compared_by_themselves(made: list[elastic.Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another kind of device rounds otherwise, positions and counts are still to be the same."""
    job, model, optimizer = trained(made)
    check, world = job._session.replica_check, World(generation=1, rank=0, size=2, groups=MagicMock())
    check.entered(world, {kind_of(CPU), 7})
    mine = check.look()
    flip(model[2].weight)
    rounded = check.look()
    other_steps(job, model, optimizer)
    behind = check.look()
    for held, differs in ((rounded, False), (behind, True)):
        monkeypatch.setattr(
            process_group, "gather", lambda world, *own, held=held: [list(own), [*held.digests(62), own[2] ^ 1]]
        )
        told = [(check._key(world, mine), mine.values, {}), ((7, 0, []), held.values, {})]
        monkeypatch.setattr(objects, "gather", lambda value, group, told=told: told)
        assert bool(check.compare(world, mine)) == differs


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.bool, torch.float8_e4m3fn])
def test_bits_are_summed_in_any_layout(dtype: torch.dtype) -> None:
    """Equal values give equal sums however they lie in memory; another bit another sum."""
    values = torch.randn(6, 4).to(dtype)
    across = values.t().contiguous().t()
    one = replica_check._sum_of_bits(values)
    assert one is not None and torch.equal(one, replica_check._sum_of_bits(across))
    byte = values.view(torch.uint8)
    byte[3, 1] ^= 1
    assert not torch.equal(one, replica_check._sum_of_bits(values))
    assert replica_check._sum_of_bits(torch.eye(2).to_sparse()) is None


@pytest.mark.parametrize(("ranks", "options"), [("ab", ()), ("abcd", ("--tp", "2"))])
def test_ranks_that_come_apart_end_their_world(start: Start, ranks: str, options: tuple[str, ...]) -> None:
    """One bit of the last rank's parameters, of whole replicas and of parts of one: the world ends at the next look
    with the rank, the parameter and the step, and what was trained since is in no checkpoint."""
    control = start("--pace", "0.002", "--apart", "6", "--epochs", "2", *options)
    control.start(*ranks)
    assert control.exits(*ranks) == [EXIT_LOST] * len(ranks), control.story()
    said = {message["error"] for message in control.all("failed") if message["differs"]}
    other = len(ranks) // 2 - 1
    [sentence] = said
    assert f"rank {len(ranks) - 1} holds another value of body.0.weight than rank {other} after step" in sentence
    assert "after step 15" in sentence or "after step 16" in sentence
    assert not list((control.directory / "job" / "checkpoints").glob("step-*"))


STREAM = """
import sys
import torch
import slurm_elastic.trainer_shim as elastic

def blocks():
    generator = torch.Generator().manual_seed(0)
    while True:
        tokens = torch.randint(0, 50, (4, 17), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]

job = elastic.join(batch=8, same_inputs="meant" in sys.argv)
torch.manual_seed(2)
net = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net = job.replicate(net)
job.keep(optimizer=optimizer)
stream = blocks()
while job.next(5):
    micros = job.share(1 if "company" in sys.argv else 3)
    for _ in micros:
        x, y = next(stream)
        (torch.nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten()) / len(micros)).backward()
    optimizer.param_groups[0]["lr"] *= 0.5 if "rate" in sys.argv and job.rank else 1
    optimizer.step()
    optimizer.zero_grad()
"""


SAME_INPUTS = "ranks 0 and 1 gave the model the same inputs in the first step of this world"
OTHER_RATE = "holds another lr of optimizer's group 0 than rank"


@pytest.mark.parametrize(
    ("words", "says"), [((), SAME_INPUTS), (("meant",), ""), (("company",), ""), (("meant", "rate"), OTHER_RATE)]
)
def test_ranks_on_the_same_inputs_or_with_another_rate_are_refused(
    zygote: Zygote, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    """A stream that both ranks begin alike, of which one takes two blocks and the other one: the first step is the
    last. Not where that is meant, nor where a rank has no part of the iteration and computes for company. So does a
    rate that one rank sets otherwise: started again it would be set so again."""
    script = tmp_path / "stream.py"
    script.write_text(STREAM)
    control = Control(zygote, tmp_path, list(words), script)
    try:
        control.start("a", "b")
        assert control.exits("a", "b") == [bool(says)] * 2, control.story()
        assert says in control.story() and (SAME_INPUTS in control.story()) == (says == SAME_INPUTS)
    finally:
        control.close()


@pytest.mark.parametrize(
    ("mine", "other", "refused"),
    [
        (torch.arange(12.0), torch.arange(12.0), True),
        (torch.arange(12.0), torch.arange(12.0) + 1, False),
        (torch.arange(12.0), torch.arange(12.0).flip(0), False),
        (torch.zeros(3, 8), torch.zeros(3, 8), False),
        (torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 1, 0]), False),
    ],
    ids=["same", "other", "in another order", "constant", "few values"],
)
def test_which_inputs_tell(
    made: list[elastic.Job], monkeypatch: pytest.MonkeyPatch, mine: torch.Tensor, other: torch.Tensor, refused: bool
) -> None:
    """Equal inputs, however they are handed over. A constant, or a batch of few values, may be equal on any two ranks;
    of ranks that hold one replica together one speaks; what is computed without gradients is no training."""
    job, *_ = trained(made)
    check = job._session.replica_check

    def said(*inputs: torch.Tensor, part: bool = True) -> list[int]:
        check.entered(World(generation=1, rank=0, size=2, groups=MagicMock()), {kind_of(CPU)})
        check.takes_part(part)
        with torch.no_grad():
            check.note_inputs((torch.arange(20.0),), {})
        for tensor in inputs:
            check.note_inputs(({"x": [tensor, "text"]},), {"scale": 2.0})
        return check._inputs

    everyone = [said(mine), said(other, torch.arange(30.0))]
    monkeypatch.setattr(objects, "gather", lambda value, group: everyone)
    world = World(generation=1, rank=0, size=2, groups=MagicMock())
    if refused:
        with pytest.raises(TrainingError, match="ranks 0 and 1 gave the model the same inputs"):
            check._check_inputs(world)
    else:
        check._check_inputs(world)
    sent: list[list[int]] = []
    monkeypatch.setattr(objects, "gather", lambda value, group: sent.append(value) or [value, []])
    for place, size, part in ((0, 2, True), (1, 2, True), (0, 1, False)):
        said(torch.arange(12.0), part=part)
        check._check_inputs(World(generation=1, rank=place, size=2, groups=MagicMock(), layout=Layout((("tp", size),))))
    assert [bool(value) for value in sent] == [True, False, False]


def test_no_checkpoint_of_states_that_differ(start: Start) -> None:
    """A checkpoint, asked for between two looks: the ranks compare first."""
    control = start("--hold-from", "21", "--apart", "20")
    control.start("a", "b")
    control.wait(lambda _, message: message["type"] == "beat" and message["step"] >= 21)
    control.send("a", {"type": "checkpoint"})
    assert control.exits("a", "b", hold=True) == [EXIT_LOST] * 2, control.story()
    assert all("body.0.weight" in message["error"] for message in control.all("failed"))
    assert not control.all("saved")


def test_the_second_difference_ends_the_job() -> None:
    """The first one goes back to the last checkpoint, whatever has been trained since; the second is no accident."""
    drive = Drive().up()
    drive.say("10.n1.0", "saved", step=50, samples=500, path="p")
    why = "rank 1 holds another value of weight than rank 0 after step 99"
    for worker in drive.members():
        drive.say(worker, "failed", generation=1, error=why, differs=True)
    assert drive.context.mode is Mode.RESTARTING
    assert drive.every(Print)[-1].text == f"{why}; starting again from the checkpoint of step 50"
    drive.die_when_killed()
    drive.settle()
    assert drive.context.mode is Mode.RUNNING
    drive.say(drive.members()[0], "saved", step=90, samples=900, path="p")
    drive.say(drive.members()[1], "failed", generation=drive.context.generation, error=why, differs=True)
    assert drive.every(Print)[-1].text == f"{why}; for the second time, giving up"
    drive.die_when_killed()
    assert drive.every(Exit) == [Exit(1)]


def test_a_vote_carries_a_word_now_and_then(made: list[elastic.Job]) -> None:
    """At first soon, then every hundred steps, and where a rank has asked because a minute is over."""
    job, *_ = trained(made)
    check: ReplicaCheck = job._session.replica_check
    check.entered(World(generation=1, rank=0, size=2, groups=MagicMock()), {kind_of(CPU)})
    votes = [check.add_to(job._session.membership.vote(False, False, 0.0)[1], 0) for _ in range(300)]
    assert [n for n, vote in enumerate(votes, 1) if vote.word is not None] == [4, 16, 64, 100, 200, 300]
    check._looked_at -= 61
    assert check.add_to(votes[0], 0).look and not check.add_to(votes[0], 1).look


def test_the_step_after_the_first_gives_no_part_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks compute the same for company in a world's first step, where that has fewer samples than ranks; on a GPU the
    inputs are compared when the next one is done, of which each rank has a part."""
    check, world, told = ReplicaCheck(MagicMock(), MagicMock(), CPU), MagicMock(size=2, speaks=True), list[Any]()
    monkeypatch.setattr(objects, "gather", lambda value, group: told.append(value) or [value, value])
    check.entered(world, {1})
    check.note_inputs((torch.arange(64.0),), {})
    check.takes_part(False)
    check.taken()
    check.takes_part(True)
    check._check_inputs(world)
    assert told == [[]]
