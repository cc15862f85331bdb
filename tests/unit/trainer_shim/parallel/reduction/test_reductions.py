"""A reduction of somebody else's: it needs one class and one row; and what goes together with which reduction."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from local_jobs import refused, wrapped
from worker_harness import SCRIPT, Control, Zygote, alone, difference, result

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.parallel import choice
from slurm_elastic.trainer_shim.parallel.reduction.base import ByBucket
from slurm_elastic.trainer_shim.world.layout import Layout

MAXIMUM = SCRIPT.with_name("maximum_train.py")


def test_a_reduction_of_one_class(zygote: Zygote, tmp_path: Path) -> None:
    """The maximum, on two ranks, in micro batches, with a last step that one rank has whole: each step is that of the
    largest of the ranks' gradients; and two more workers, who take its votes by themselves, can join."""
    control = Control(zygote, tmp_path, ["--micro", "2", "--pace", "0"], MAXIMUM)
    try:
        control.start("a", "b")
        assert control.exits("a", "b") == [0] * 2, control.story()
        by_hand = alone(zygote, tmp_path, "--by-hand", "2", script=MAXIMUM)
        assert difference(result(tmp_path), by_hand) < 1e-12
    finally:
        control.close()
    control = Control(zygote, tmp_path, ["--epochs", "9", "--hold-from", "0"], MAXIMUM)
    try:
        control.start("c", "d")
        control.resize("c", "d", "e")
        assert control.exits("c", "d", "e") == [0] * 3, control.story()
    finally:
        control.close()


class Mine(ByBucket):
    def combine(self, *_: object) -> torch.futures.Future[list[torch.Tensor]]:
        raise AssertionError("nobody is there")


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(choice.REDUCTIONS, "mine", Mine)
    monkeypatch.setattr(choice, "TOGETHER", (*choice.TOGETHER, choice.Row("mine", choice.DDP)))


def test_what_does_not_go_with_it_is_refused_before_training(made: list[elastic.Job], mine: None) -> None:
    """Each with one sentence that says what does."""
    with refused(r"join\(combine='median'\) is not known; accepted: 'mean', 'adasum', 'mine'"):
        elastic.join(batch=4, combine="median")
    for name, value in (("deterministic", True), ("lr", "adascale")):
        with refused(rf"join\({name}=.*\) does not go with combine='mine'; accepted: combine='mean'"):
            elastic.join(batch=4, combine="mine", **{name: value})
    job, net, _ = wrapped(made, combine="mine")
    for _ in job.epochs(1):
        for x, _y in job.loader(torch.utils.data.TensorDataset(torch.randn(8, 3), torch.randn(8, 1))):
            with refused(r"job.step\(weight=...\) does not go with join\(combine='mine'\)"):
                job.step(net(x).mean(), weight=1.0)
            job.stop()
            break


@pytest.mark.parametrize("axes", [0, 1, 2])
@pytest.mark.parametrize("reduction", ["mean", "mine", choice.FIXED_ORDER])
def test_only_what_the_table_has_goes_together(mine: None, reduction: str, axes: int) -> None:
    """Each call, with each reduction, and ranks that hold a replica together along so many axes."""
    calls = {row.call for row in choice.TOGETHER}
    fixed = reduction == choice.FIXED_ORDER
    for call, (combine, shards) in itertools.product(calls, [("mean", 8) if fixed else (reduction, 0)]):
        rows = [row for row in choice.TOGETHER if (row.reduction, row.call) == (reduction, call)]
        layout = Layout(tuple((f"axis{number}", 2) for number in range(axes)))
        if rows and rows[0].axes >= axes:
            choice.check_together(combine, shards, layout, "equal", call)
            continue
        with refused(rf"does not go with {call}; accepted: ".replace("(", r"\(").replace(")", r"\)")):
            choice.check_together(combine, shards, layout, "equal", call)
