"""What a script does between two passes over the data, or by leaving one, takes effect once, whatever is restarted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from local_jobs import DATA, loss_of, refused, wrapped
from torch.utils.data import TensorDataset

import slurm_elastic.trainer_shim as elastic


def test_parameters_frozen_or_released_between_passes_stay_so_after_a_restart(
    made: list[elastic.Job], tmp_path: Path
) -> None:
    """`if epoch == 1: release` is not run by a worker that begins in epoch 1, or later: it takes the flags over.
    Groups added to an optimizer under way could not be taken over, and are refused."""

    def run(count: int) -> tuple[elastic.Job, Any, Any]:
        job, net, optimizer = wrapped(made, checkpoints=tmp_path, checkpoint_every_s=0.0)
        net.bias.requires_grad_(False)
        for epoch in job.epochs(3):
            if epoch == 1:
                net.bias.requires_grad_(True)
            for batch in job.loader(DATA):
                job.step(loss_of(net, batch))
                job._session.saving.wait(10)
                if job.global_step == count:
                    job.close()
                    return job, net, optimizer
        job.close()
        return job, net, optimizer

    assert run(4)[1].bias.requires_grad
    job, net, optimizer = wrapped(made, checkpoints=tmp_path)
    net.bias.requires_grad_(False)
    for _ in job.epochs(3):
        assert net.bias.requires_grad
        optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})
        for batch in job.loader(DATA):
            with refused(r"a SGD has 2 parameter groups and had 1 when job.wrap\(\) got it"):
                job.step(loss_of(net, batch))
            job.stop()


class Counter:
    """User state that is not idempotent: an early stopper's patience, a schedule by epoch."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_code_between_passes_takes_effect_once_whatever_is_restarted(made: list[elastic.Job], tmp_path: Path) -> None:
    """A checkpoint written by job.once() between passes, and one in the middle of a pass: in the run that goes on from
    either, what stands before and behind the pass has its effect on kept objects and rates once for each epoch."""

    def run(dies: str) -> tuple[list[str], float, list[int], int]:
        job, net, optimizer = wrapped(made, checkpoints=tmp_path, checkpoint_every_s=0.0)
        counter, inside = Counter(), []
        average = torch.optim.swa_utils.AveragedModel(net.module)
        job.keep(counter=counter, Average=average)
        try:
            for epoch in job.epochs(2):
                counter.seen.append(f"head {epoch}")
                optimizer.param_groups[0]["lr"] /= 2
                for batch in job.loader(DATA):
                    job.step(loss_of(net, batch))
                    inside.append(job.once(lambda job=job: job.global_step))
                    job._session.saving.wait(10)
                    if dies == f"in {job.global_step}":
                        raise InterruptedError
                counter.seen.append(f"tail {epoch}")
                average.update_parameters(net.module)
                optimizer.param_groups[0]["lr"] /= 2
                job.once(print)
                if dies == f"behind {epoch}":
                    raise InterruptedError
        except InterruptedError:
            job._session.saving.wait(10)
        job.close()
        return counter.seen, optimizer.param_groups[0]["lr"], inside, int(average.n_averaged)

    assert run("in 2")[2] == [1, 2]
    assert run("behind 0")[2] == [3]
    seen, rate, inside, averaged = run("never")
    assert seen == ["head 0", "tail 0", "head 1", "tail 1"]
    assert rate == pytest.approx(0.1 / 16)
    assert inside == [4, 5, 6] and averaged == 2


def test_a_loop_left_early_is_followed_by_a_whole_pass(made: list[elastic.Job]) -> None:
    """`break` out of a first loader: a second one in the same epoch begins at its own beginning."""
    job, net, _ = wrapped(made)
    sizes = []
    for _ in job.epochs(1):
        for batch in job.loader(TensorDataset(*DATA[:12])):
            job.step(loss_of(net, batch))
            break
        for batch in job.loader(DATA):
            job.step(loss_of(net, batch))
            sizes.append(len(batch[0]))
    assert sizes == [8, 8, 4]


def test_an_error_in_the_middle_of_a_step_saves_nothing(made: list[elastic.Job], tmp_path: Path) -> None:
    """Parameters that have been stepped, at a position before that step, would be stepped twice after a restart."""
    job, net, optimizer = wrapped(made, checkpoints=tmp_path / "checkpoints")

    def fail(*_: Any) -> None:
        raise InterruptedError

    def train() -> None:
        for _ in job.epochs(1):
            for batch in job.loader(DATA):
                if job.global_step == 1:
                    optimizer.register_step_post_hook(fail)
                job.step(loss_of(net, batch))

    with pytest.raises(InterruptedError):
        train()
    job.close()
    assert not list((tmp_path / "checkpoints").glob("step-*"))
