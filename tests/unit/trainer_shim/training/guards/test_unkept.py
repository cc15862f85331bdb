"""State that a script changes in each step, and that no worker which joins would have, is named once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from local_jobs import DATA, loss_of, refused

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
    tally = torch.zeros(4)  # of which more than a line of output follows nowhere
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
            tally += loss.detach()
            print(tally)
            with torch.no_grad():
                for entry, weight in zip(values(average), weights, strict=True):
                    entry.lerp_(weight, 0.1)
    said = [line for line in capsys.readouterr().out.splitlines() if "nobody keeps it" in line]
    assert [line.partition(" is ")[0] for line in said] == ["'average'"] * (not kept)


class Own:
    """An object of the script's."""

    state: Any = None


def bound(net: Any, x: torch.Tensor, own: Own) -> torch.Tensor:
    out: torch.Tensor = net(x) if own.state is None else net(x + own.state.mean())
    own.state = out.detach()
    return out


def in_a_list(net: Any, x: torch.Tensor, own: Own) -> torch.Tensor:
    own.state = own.state or [(torch.zeros(4, 4), torch.zeros(1))]
    out: torch.Tensor = net(x) - own.state[0][0].mean(0)
    own.state[0] = (out.detach(), torch.ones(1))
    return out


def in_place(net: Any, x: torch.Tensor, own: Own) -> torch.Tensor:
    own.state = torch.zeros(8, 4) if own.state is None else own.state
    out: torch.Tensor = net(x)
    out = out + (out.detach() @ own.state.clone().t()).mean()
    own.state[:4] = out.detach()
    return out


def of_a_teacher(net: Any, x: torch.Tensor, own: Own) -> torch.Tensor:
    own.state = copy.deepcopy(net.module) if own.state is None else own.state
    out: torch.Tensor = net(x)
    out = out - own.state(x).detach()
    for kept, now in zip(own.state.parameters(), net.parameters(), strict=True):
        kept.data.lerp_(now.detach(), 0.5)
    return out


def anew(net: Any, x: torch.Tensor, own: Own) -> torch.Tensor:
    own.state = torch.zeros(4, 4) if own.state is None else own.state
    own.state.copy_(net(x).detach())
    return net(x) - own.state


def for_output(net: Any, x: torch.Tensor, own: Own) -> torch.Tensor:
    out: torch.Tensor = net(x)
    own.state = out.detach()
    return out


@pytest.mark.parametrize("step", [bound, in_a_list, in_place, of_a_teacher, anew, for_output])
@pytest.mark.parametrize("meant", [False, True])
def test_what_goes_from_a_step_into_the_loss_of_the_next_is_refused(
    made: list[elastic.Job], step: Callable[..., torch.Tensor], meant: bool
) -> None:
    """In a variable, or an object of the script's; not what each step begins anew, or only shows."""
    job = elastic.join(batch=4, meant=["own.state"] if meant else [])
    made.append(job)
    model = torch.nn.Linear(3, 4)
    net, own = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01)), Own()

    def trains() -> None:
        for _ in job.epochs(1):
            for x, y in job.loader(DATA):
                job.step((step(net, x, own) - y).square().mean())

    if meant or step in (anew, for_output):
        trains()
        assert job.global_step == 5
    else:
        with refused("'own.state' goes from one step into the loss of the next, and nobody keeps it"):
            trains()
        assert job.global_step < 4


def test_a_hidden_state_is_refused(made: list[elastic.Job], capsys: pytest.CaptureFixture[str]) -> None:
    """As it's written most often, begun anew in each pass. Begun anew in each step it is none; a generator of the
    script's own is named."""
    job = elastic.join(batch=4)
    made.append(job)
    cell, generator = torch.nn.GRUCell(3, 4), torch.Generator().manual_seed(0)
    net = job.wrap(cell, torch.optim.SGD(cell.parameters(), lr=0.01))
    for _ in job.epochs(1):
        for x, _ in job.loader(DATA):
            hidden = None
            hidden = net(x + torch.randn(4, 3, generator=generator), hidden)
            job.step(hidden.square().mean())
    assert "'generator' is changed by each step" in capsys.readouterr().out
    made.pop().close()
    job = elastic.join(batch=4)
    made.append(job)
    net = job.wrap(cell, torch.optim.SGD(cell.parameters(), lr=0.01))
    with refused("'hidden' goes from one step into the loss"):
        for _ in job.epochs(1):
            hidden = None
            for number, (x, _) in enumerate(job.loader(DATA)):
                if number % 3 == 2:
                    hidden = None
                hidden = net(x, hidden)
                job.step(hidden.square().mean())
                hidden = hidden.detach()
