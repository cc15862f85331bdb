"""A loss that is the mean over something else than samples: the same training on any number of ranks, in any micro
batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from worker_harness import SCRIPT, Control, Zygote, alone, difference, result

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS

cuts = pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")
WEIGHTED = SCRIPT.with_name("weighted_train.py")


@pytest.mark.parametrize("mode", ["ddp", pytest.param("fsdp", marks=cuts), "deterministic", "loader", "share"])
def test_weighted_losses_are_exact(zygote: Zygote, tmp_path: Path, mode: str) -> None:
    """Cross entropy over labelled tokens, on one worker, then two, then three, in micro batches: the parameters of a
    plain loop over whole batches, though the mean over samples of such means would be another training."""
    control = Control(zygote, tmp_path, ["--mode", mode, "--hold-from", "0"], WEIGHTED)
    try:
        control.start("a")
        control.resize("a", "b")
        control.resize("a", "b", "c")
        assert control.exits("a", "b", "c") == [0] * 3, control.story()
    finally:
        control.close()
    plain = alone(zygote, tmp_path, "--mode", "plain", script=WEIGHTED)
    assert difference(result(tmp_path), plain) < 1e-10


def test_what_a_weight_may_be(made: list[elastic.Job]) -> None:
    """Bad ones are named; a micro batch without any weight counts for nothing, and its loss has to be a number."""
    job = elastic.join(batch=4, micro_batch=2)
    made.append(job)
    model = torch.nn.Linear(3, 1)
    net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.randn(8, 3))
    wrong: list[tuple[float, float, str]] = [
        (-1.0, 1.0, r"job.step\(weight=-1.0\) is not accepted; accepted: a number, from 0"),
        (float("nan"), 1.0, r"job.step\(weight=nan\)"),
        (
            0.0,
            float("nan"),
            r"job.step\(loss, weight=0\) was given a loss of nan, .* accepted: the sum, divided by max",
        ),
    ]
    before = model.weight.detach().clone()
    with pytest.raises(TrainingError, match="for some micro batches of a step; give it for each"):
        for _ in job.epochs(1):
            for number, (x,) in enumerate(job.loader(data)):
                loss = net(x).mean()
                if number == 0:
                    for weight, factor, words in wrong:
                        with pytest.raises(TrainingError, match=words):
                            job.step(loss * factor, weight=weight)
                job.step(loss, weight=0.0 if number < 2 else 1.0 if number == 2 else None)
                assert torch.equal(model.weight, before)
    with pytest.raises(TrainingError, match=r"job.weigh\(\) was called before job.share"):
        job.weigh(1.0)
