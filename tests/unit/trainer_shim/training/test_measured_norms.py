"""A measured step's norms are read when the GPU has them; nobody waits at one rank, unless the rate depends on them."""

from __future__ import annotations

from typing import Any

import pytest
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
