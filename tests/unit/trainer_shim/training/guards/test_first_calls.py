"""What ranks with a part of the batch each would train otherwise is refused in the first step, also of one rank."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from local_jobs import DATA, refused
from torch import nn

import slurm_elastic.trainer_shim as elastic


class Model(nn.Module):
    """One that may remember something of a call. change: what a call does to it, with its output; gives the output."""

    def __init__(self, change: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.body, self.norm, self.change = nn.Linear(3, 4), nn.BatchNorm1d(4), change
        self.register_buffer("center", torch.zeros(4))
        self.hidden: torch.Tensor | None = None
        self.calls, self.shown = 0, torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(self, self.norm(self.body(x)))


def recurrent(model: Any, out: torch.Tensor) -> torch.Tensor:
    out = out if model.hidden is None else out + 0.5 * model.hidden
    model.hidden = out.detach()
    return out


def recurrent_later(model: Any, out: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = out + 0.5 * getattr(model, "later", torch.zeros(1))
    model.later = found.detach()
    return found


def annealed(model: Any, out: torch.Tensor) -> torch.Tensor:
    model.calls += 1
    return out * (1 - 0.5**model.calls)


def centred(model: Any, out: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        model.center.lerp_(out.mean(0), 0.1)
    return out - model.center


def behind_autograd(model: Any, out: torch.Tensor) -> torch.Tensor:
    model.center.data = 0.9 * model.center + out.detach().amax(0)
    return out


def communicates(model: Any, out: torch.Tensor) -> torch.Tensor:
    mean = out.detach().mean(0)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(mean)
    return centred(model, out)


def of_weights(model: Any, out: torch.Tensor) -> torch.Tensor:
    model.center.copy_(model.body.bias.detach())
    model.calls, model.shown = model.calls + 1, out.detach()
    return out - model.center


def as_it_is(model: Any, out: torch.Tensor) -> torch.Tensor:
    return out


class Reduced(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return communicates(self, self.norm(self.body(x)))


def mean(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(out, y.expand_as(out))


def among_samples(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out @ out.t(), torch.arange(len(out)))


def beside_others(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out @ (y * torch.arange(1.0, 5)).t(), torch.arange(len(out)))


def hardest(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    apart = torch.cdist(out, out) + torch.eye(len(out))
    return F.relu(1 - apart.min(1).values).mean()


def normalised(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return mean((out - out.mean(0)) / (out.std(0) + 1e-3), y)


def root(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return mean(out, y).sqrt()


def classes(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out, (y[:, 0] > 0).long(), label_smoothing=0.1, weight=torch.arange(1.0, 5))


def trains(made: list[elastic.Job], model: nn.Module, loss: Any = mean, way: str = "wrap", **options: Any) -> None:
    job = elastic.join(batch=4, **options)
    made.append(job)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    net = job.wrap(model, optimizer) if way == "wrap" else job.replicate(model)
    if way == "replicate":
        job.keep(optimizer=optimizer)
    for _ in job.epochs(1):
        for x, y in job.loader(DATA):
            if way == "wrap":
                job.step(loss(net(x), y))
            else:
                optimizer.zero_grad()
                loss(net(x), y).backward()
                optimizer.step()
    assert job.global_step == 5 and torch.Tensor.backward.__module__ == "torch._tensor"


@pytest.mark.parametrize("way", ["wrap", "replicate"])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (recurrent, "attribute 'hidden'"),
        (recurrent_later, "attribute 'later'"),
        (annealed, "attribute 'calls'"),
        (centred, "buffer 'center'"),
        (behind_autograd, "buffer 'center'"),
        (of_weights, ""),
        (as_it_is, ""),
    ],
)
def test_what_a_call_leaves_to_the_next_is_refused(
    made: list[elastic.Job], change: Callable[..., torch.Tensor], named: str, way: str
) -> None:
    """But for what changes nothing, and what weights alone decide."""
    with refused(named) if named else nullcontext():
        trains(made, Model(change), way=way)


def test_what_is_meant_or_agreed_on_trains(made: list[elastic.Job]) -> None:
    trains(made, Model(recurrent), meant=["hidden"])
    made.pop().close()
    trains(made, Model(centred), meant="center")
    made.pop().close()
    trains(made, Reduced(as_it_is))
    made.pop().close()
    trains(made, Model(as_it_is), among_samples, meant=["loss"])


@pytest.mark.parametrize("way", ["wrap", "replicate"])
@pytest.mark.parametrize("loss", [among_samples, beside_others, hardest, normalised, root, mean, classes])
def test_a_loss_in_which_rows_act_on_each_other_is_refused(made: list[elastic.Job], loss: Any, way: str) -> None:
    """Other than the means over samples."""
    with nullcontext() if loss in (mean, classes) else refused("the loss is no mean over samples"):
        trains(made, Model(as_it_is), loss, way)


class Views(nn.Module):
    """Two views of each sample in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(torch.cat([x, 2 * x]))
        return found


def test_views_of_a_sample_may_act_on_each_other(made: list[elastic.Job]) -> None:
    trains(made, Views(), lambda out, y: -F.cosine_similarity(*out.chunk(2)).mean())
    made.pop().close()
    with refused("the loss is no mean over samples"):
        trains(made, Views(), lambda out, y: -F.cosine_similarity(*out.chunk(2), dim=0).mean())
