"""State that is no tensor, parameters that are switched off and on, sparse gradients: as in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_harness import SCRIPT, Control, Start, Zygote, alone, difference, result

from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS

cuts = pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")
ODD = SCRIPT.with_name("odd_parts_train.py")


@pytest.fixture
def begin(zygote: Zygote, tmp_path: Path) -> Iterator[Start]:
    made: list[Control] = []

    def make(*args: str) -> Control:
        made.append(Control(zygote, tmp_path, list(args), ODD))
        return made[-1]

    yield make
    for control in made:
        control.close()


@pytest.mark.parametrize(
    "kind",
    [
        ("--kind", "factors"),
        pytest.param(("--kind", "factors", "--strategy", "fsdp"), marks=cuts),
        ("--kind", "critic"),
        ("--kind", "half a critic"),
        ("--kind", "words"),
        ("--kind", "thaw"),
    ],
    ids=" ".join,
)
def test_resized_as_in_one_process(zygote: Zygote, begin: Start, tmp_path: Path, kind: tuple[str, ...]) -> None:
    """1 -> 2 workers, the first of them replaced; one kind from a checkpoint, too."""
    control = begin("--hold-from", "12", *kind)
    control.start("a")
    control.resize("a", "b")
    control.resize("b", "c")
    last = "bc"
    if "thaw" in kind:
        control.send("b", {"type": "checkpoint"})
        control.wait(lambda _, message: message["type"] == "saved")
        for name in last:
            control.kill(name)
        control.exits(*last, hold=True)
        control.members = []
        control.start("d", source="checkpoint")
        control.resize(*(last := "de"))
    assert control.exits(*last) == [0, 0], control.story()
    assert difference(result(tmp_path), alone(zygote, tmp_path, *kind, script=ODD)) < 1e-12
