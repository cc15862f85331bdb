"""State that a script changes in each step, and that no worker which joins would have, is named once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from local_jobs import DATA, loss_of

import slurm_elastic.trainer_shim as elastic


def listed(model: torch.nn.Module) -> Any:
    return [parameter.detach().clone() for parameter in model.parameters()]


def named(model: torch.nn.Module) -> Any:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def values(average: Any) -> list[torch.Tensor]:
    if isinstance(average, torch.nn.Module):
        return list(average.parameters())
    return list(average.values() if isinstance(average, dict) else average)


@pytest.mark.parametrize("made_of", [listed, named, copy.deepcopy])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("way", ["wrap", "replicate"])
def test_an_average_that_nobody_keeps_is_named(
    made: list[elastic.Job], capsys: pytest.CaptureFixture[str], way: str, kept: bool, made_of: Callable[[Any], Any]
) -> None:
    """Once, in the first steps. Sums for a line of output, gradients, the model and what is kept are not."""
    job = elastic.join(batch=4)
    made.append(job)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    average, total, weights = made_of(model), torch.zeros(()), list(model.parameters())
    net = job.wrap(model, optimizer) if way == "wrap" else job.replicate(model)
    if way == "replicate":
        job.keep(optimizer=optimizer)
    if kept and made_of is copy.deepcopy:
        job.keep(average=average)
    elif kept:
        job.keep({"average": average}, "average")
    for _ in job.epochs(2):
        for batch in job.loader(DATA):
            loss = loss_of(net, batch)
            if way == "wrap":
                job.step(loss)
            else:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
            total += loss.detach()
            with torch.no_grad():
                for entry, weight in zip(values(average), weights, strict=True):
                    entry.lerp_(weight, 0.1)
    said = [line for line in capsys.readouterr().out.splitlines() if "nobody keeps it" in line]
    assert [line.partition(" is ")[0] for line in said] == ["'average'"] * (not kept)
