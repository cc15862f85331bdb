"""Models that several ranks hold together, in real gloo worlds: units of ranks, and what they share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from worker_harness import Control, Start, Zygote, alone, difference, result

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.checkpoint import files
from slurm_elastic.trainer_shim.training import audit
from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS, CUTS_TWICE

BOTH = "fsdp" if CUTS_TWICE and CUTS_ON_CPUS else "ddp"
cuts = pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")
"""The strategy that is tried beside tensor parallelism wherever torch has both."""


@pytest.mark.parametrize("strategy", sorted({"ddp", BOTH}))
def test_a_tensor_parallel_training_equals_one_process(
    zygote: Zygote, start: Start, tmp_path: Path, strategy: str
) -> None:
    """(dp, tp) = (1, 2) -> (2, 2) -> (1, 2) -> (3, 2), with every first member replaced, micro batches, gradients
    clipped over parts of tensors: each sample once, and the parameters of one unsharded process to 1e-12."""
    arguments = ["--micro", "20", "--clip", "0.05", "--epochs", "2"]
    control = start("--hold-from", "0", "--tp", "2", "--strategy", strategy, *arguments)
    control.start("a", "b")
    for names in ("abcd", "cd", "cdefgh"):
        control.resize(*names)
    assert control.exits(*"abcdefgh") == [0] * 8, control.story()
    control.checked(samples=1003, epochs=2, worlds=4)
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


ENDLESS = ("--samples", "203", "--epochs", "400")
STOP = ("--stop", "40")


@pytest.fixture(scope="module")
def saved_by_two_by_two(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job directory whose newest checkpoint was written in parts by (dp, tp) = (2, 2)."""
    directory = tmp_path_factory.mktemp("parts")
    control = Control(zygote, directory, ["--pace", "0.2", "--tp", "2", "--strategy", BOTH, *ENDLESS])
    try:
        control.start(*"abcd")
        control.send("b", {"type": "checkpoint"})
        saved = control.wait(lambda _, message: message["type"] == "saved")
        found = files.check(Path(saved["path"]))
        assert found.parts and found.step == saved["step"] < 40
        parts = sorted(path.name for path in found.path.glob("__*"))
        assert parts == [f"__{rank}_0.distcp" for rank in range(4)]
    finally:
        control.close()
    assert control.exits(*"abcd") == [-9] * 4
    return directory / "job"


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        ("ab", ("--tp", "2", "--strategy", BOTH)),
        ("abcdef", ("--tp", "2", "--strategy", BOTH)),
        pytest.param("abcd", ("--tp", "1", "--strategy", "fsdp"), marks=cuts),
        ("abcd", ("--tp", "4")),
        ("ab", ("--strategy", "ddp")),
    ],
    ids=["1x2", "3x2", "4x1", "1x4", "replicas"],
)
def test_a_checkpoint_in_parts_is_read_at_any_shape(
    zygote: Zygote, start: Start, tmp_path: Path, saved_by_two_by_two: Path, workers: str, options: tuple[str, ...]
) -> None:
    """Saved at (dp, tp) = (2, 2): trained on at other shapes, and by replicas, it equals one process to 1e-12."""
    shutil.copytree(saved_by_two_by_two, tmp_path / "job")
    control = start("--pace", "0", *options, *ENDLESS, *STOP)
    control.generation = 7
    control.start(*workers, source="checkpoint")
    assert control.exits(*workers) == [0] * len(workers), control.story()
    assert "restored from" in control.story()
    ours, theirs = result(tmp_path), alone(zygote, tmp_path, *ENDLESS, *STOP)
    assert difference(ours, theirs) < 1e-12
    assert (ours["global_step"], ours["samples"]) == (theirs["global_step"], theirs["samples"])


def test_a_damaged_part_is_noticed(start: Start, tmp_path: Path, saved_by_two_by_two: Path) -> None:
    """One byte of one rank's file is another: the checkpoint does not verify, and is named."""
    shutil.copytree(saved_by_two_by_two, tmp_path / "job")
    (newest, *_) = files.all_of(tmp_path / "job" / "checkpoints")
    part = newest / "__2_0.distcp"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(TrainingError, match=r"__2_0\.distcp is not what was written"):
        files.check(newest)
