"""Models that several ranks hold together, in real gloo worlds: units of ranks, and what they share."""

from __future__ import annotations

from pathlib import Path

import pytest
from shim_harness import Start, Zygote, alone, difference, result

from slurm_elastic.trainer_shim import audit


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_tensor_parallel_training_equals_one_process(
    zygote: Zygote, start: Start, tmp_path: Path, strategy: str
) -> None:
    """(dp, tp) = (1, 2) -> (2, 2) -> (1, 2) -> (3, 2), with every first member replaced, micro batches, gradients
    clipped over parts of tensors: each sample once, and the parameters of one unsharded process to 1e-12."""
    arguments = ["--micro", "20", "--clip", "0.05", "--epochs", "2"]
    control = start("--pace", "0.01", "--tp", "2", "--strategy", strategy, *arguments)
    control.start("a", "b")
    for names in ("abcd", "cd", "cdefgh"):
        control.resize(*names)
    assert control.exits(*"abcdefgh") == [0] * 8, control.story()
    found = audit.check(control.audit, samples=1003, epochs=2)
    assert found.ok and found.worlds == 4, found
    assert difference(result(tmp_path), alone(zygote, tmp_path, *arguments)) < 1e-12


def test_a_world_that_is_no_multiple_of_the_unit_fails_in_one_sentence(start: Start) -> None:
    """Three workers cannot hold replicas of two ranks; no step is taken."""
    control = start("--tp", "2")
    control.spawn("a", "b", "c")
    control.ready("a", "b", "c")
    control.world("a", "b", "c", source="fresh")
    assert control.exits("a", "b", "c") == [1, 1, 1]
    assert "needs a multiple of 2 workers, and this world has 3" in control.story()
    assert not control.audit.exists() or not any("indices" in line for line in audit.read(control.audit))
