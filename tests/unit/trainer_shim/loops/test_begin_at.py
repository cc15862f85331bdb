"""A training that was begun without the job goes on in it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from local_jobs import DATA, loss_of, refused, wrapped
from worker_harness import SCRIPT, Control, Zygote, alone, difference, result

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.training import audit

EPOCHS = SCRIPT.with_name("own_epochs_train.py")


def losses(job: elastic.Job, net: object, epochs: int) -> list[tuple[int, int, float]]:
    seen = []
    for epoch in job.epochs(epochs):
        for batch in job.loader(DATA):
            loss = loss_of(net, batch)
            job.step(loss)
            seen.append((epoch, job.global_step, loss.item()))
    return seen


Foreign = dict[str, dict[str, Any]]


def begun(made: list[elastic.Job], saved: Foreign, **options: Any) -> tuple[elastic.Job, Any, Callable[[], Foreign]]:
    """A script that loads what an earlier program has saved, and what it would save itself."""
    job = elastic.join(batch=8, lr="none", **options)
    made.append(job)
    parts = {"model": torch.nn.Linear(3, 1)}
    parts["optimizer"] = torch.optim.SGD(parts["model"].parameters(), lr=0.1, momentum=0.9)
    parts["scheduler"] = torch.optim.lr_scheduler.LinearLR(parts["optimizer"], 1.0, 0.0, job.steps(2, 20))
    for name, state in saved.items():
        parts[name].load_state_dict(copy.deepcopy(state))
    net = job.wrap(*parts.values())
    return job, net, lambda: {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}


def test_epochs_steps_and_schedule_go_on(made: list[elastic.Job], tmp_path: Path) -> None:
    """As the whole training in one job: order, rates and results of what is left. A checkpoint of the job wins."""
    start = {"model": torch.nn.Linear(3, 1).state_dict()}
    job, net, _ = begun(made, start)
    whole = losses(job, net, 2)
    job.close()
    job, net, save = begun(made, start)
    assert losses(job, net, 1) == whole[:3]
    foreign = save()
    job.close()
    for epochs, left in ((2, whole[3:]), (3, None)):
        job, net, _ = begun(made, foreign, checkpoints=tmp_path)
        job.begin_at(epoch=1, step=3, samples=20)
        found = losses(job, net, epochs)
        assert job.samples == 20 * epochs
        assert found == left or [step for _, step, _ in found] == [7, 8, 9]
        job.close()


@pytest.fixture
def control(zygote: Zygote, tmp_path: Path) -> Iterator[Control]:
    control = Control(zygote, tmp_path, ["--begin", "1", "11", "60", "--hold-from", "0", "--pace", "0.01"], EPOCHS)
    yield control
    control.close()


def test_joiners_do_not_begin_again(zygote: Zygote, control: Control, tmp_path: Path) -> None:
    """1 -> 3 -> 2 workers, from the middle of the second of three epochs on: as in one process."""
    control.start("a")
    control.resize("a", "b", "c")
    control.resize("b", "c")
    assert control.exits(*"abc") == [0] * 3, control.story()
    ours, theirs = result(tmp_path), alone(zygote, tmp_path, "--begin", "1", "11", "60", script=EPOCHS)
    assert difference(ours, theirs) < 1e-12
    assert ours["global_step"] == theirs["global_step"] == 11 + 8 + 11
    assert ours["samples"] == theirs["samples"] == 220 + 143 + 203
    trained = [line for line in audit.read(control.audit) if "indices" in line]
    assert sum(len(line["indices"]) for line in trained if line["epoch"] == 1) == 143


def test_what_is_no_place_to_begin_is_refused(made: list[elastic.Job]) -> None:
    job, net, _ = wrapped(made)
    with refused(r"job.begin_at\(epoch=-1\) is not accepted"):
        job.begin_at(-1)
    job.begin_at(in_epoch=20)
    with refused(r"begin_at\(in_epoch=20\) is not accepted for a pass over 20 samples"):
        losses(job, net, 1)
    with refused("after the loop had begun"):
        job.begin_at(1)
