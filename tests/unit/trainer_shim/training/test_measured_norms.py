"""A measured step's norms are read when the GPU has them; nobody waits at one rank, unless the rate depends on them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from local_jobs import DATA, loss_of, wrapped

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.parallel.gradient_norms import Arriving


@pytest.mark.parametrize(("rule", "reads_at"), [("sqrt", 3), ("linear", 3), ("adascale", 1)])
def test_norms_that_are_still_on_their_way(
    made: list[elastic.Job], monkeypatch: pytest.MonkeyPatch, rule: str, reads_at: int
) -> None:
    """They come when two more steps are done, and meanwhile no others are taken up."""
    job, net, _ = wrapped(made, lr=rule, max_batch=64)
    read: list[tuple[int, Arriving]] = []
    here = Arriving.read

    def reads(squares: Arriving) -> list[float]:
        read.append((job.global_step, squares))
        return here(squares)

    made_first: list[Arriving] = []
    begin = Arriving.__init__

    def begins(squares: Arriving, *given: Any) -> None:
        made_first.append(squares)
        begin(squares, *given)

    monkeypatch.setattr(Arriving, "__init__", begins)
    monkeypatch.setattr(Arriving, "read", reads)
    monkeypatch.setattr(Arriving, "arrived", property(lambda _: job.global_step >= 3))
    for _ in job.epochs(3):
        for batch in job.loader(DATA):
            job.step(loss_of(net, batch))
    assert read and read[0] == (reads_at, made_first[0])


class OneSize(torch.nn.Module):
    """As a CUDA graph: it computes on what it has copied to a place of so many rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.linear, self.place = torch.nn.Linear(3, 1), torch.zeros(rows, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.place + x)


@pytest.mark.parametrize("sizes", [{}, {"micro_batch": 8, "slice": 8}])
def test_a_model_of_one_size_is_told_how_to_get_it(
    made: list[elastic.Job], capfd: pytest.CaptureFixture[str], sizes: dict[str, int]
) -> None:
    """One rank cuts a measured step in two, the first one too: its error comes with what keeps all parts alike."""
    job = elastic.join(batch=8, **sizes)
    made.append(job)
    model = OneSize(8)
    net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    try:
        for _ in job.epochs(1):
            for batch in job.loader(DATA):
                job.step(loss_of(net, batch))
    except RuntimeError:
        assert not sizes and "the model failed on 4 samples" in capfd.readouterr().err
    else:
        assert sizes and job.samples == 16


def _noise(made: list[elastic.Job], scaler: torch.amp.GradScaler | None, bad: int = -1) -> tuple[float, ...]:
    """What is known of the noise after two passes; the loss of step `bad` overflows."""
    torch.manual_seed(0)
    job = elastic.join(batch=8, max_batch=64, lr="adascale")
    made.append(job)
    model = torch.nn.Linear(3, 1)
    net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), scaler=scaler)
    for _ in job.epochs(2):
        for batch in job.loader(DATA, shuffle=False):
            job.step(loss_of(net, batch) * (1e38 if job.global_step == bad else 1.0))
    noise = job._session.state.progress.noise
    job.close()
    return noise


def test_noise_is_measured_beside_a_gradient_scaler(made: list[elastic.Job]) -> None:
    """Of the gradients as they are, not as the loss was scaled; a step that overflows is left out of it."""
    plain = _noise(made, None)
    assert plain[2] > 0
    assert _noise(made, torch.amp.GradScaler("cpu", init_scale=2.0**10)) == pytest.approx(plain, rel=1e-6)
    skipped = _noise(made, torch.amp.GradScaler("cpu", init_scale=2.0**10), bad=1)
    assert all(map(math.isfinite, skipped)) and skipped[2] > 0
