"""Kinds of training on the stand-in: a loop of the script's own, and models that fully_shard cuts up. `make
test-stand-in` runs the suites on CPUs of all kinds there."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from refused_worlds import refused
from worker_harness import SCRIPT, Control, Start, Zygote, alone, difference, result

OWN = SCRIPT.with_name("own_loop_train.py")


@pytest.fixture
def begin(zygote: Zygote, tmp_path: Path) -> Iterator[Start]:
    made: list[Control] = []

    def make(script: Path, *args: str) -> Control:
        made.append(Control(zygote, tmp_path, list(args), script))
        return made[-1]

    yield make
    for control in made:
        control.close()


@pytest.mark.parametrize("kind", [(), ("--sharded",)], ids=["replicated", "sharded"])
def test_a_loop_of_the_scripts_own_resized(zygote: Zygote, begin: Start, tmp_path: Path, kind: tuple[str, ...]) -> None:
    """1 -> 3 -> 2 workers, rank 0 replaced: parameters as in one process on the same device."""
    args = ["--hold-from", "0", "--iterations", "20", *kind]
    control = begin(OWN, *args)
    control.start("a")
    control.resize(*"abc")
    control.resize(*"bc")
    assert control.exits(*"abc") == [0, 0, 0], control.story()
    control.checked(samples=7, epochs=20, worlds=3)
    still = tmp_path / "still"
    still.mkdir()
    assert difference(result(tmp_path), alone(zygote, still, "--iterations", "20", *kind, script=OWN)) < 1e-12


def test_a_sharded_model_whose_joiner_dies_in_its_first_forward_goes_back(
    zygote: Zygote, begin: Start, tmp_path: Path
) -> None:
    """What fully_shard gathers there hangs, and is aborted: its parts are filled again in the old world, and the next
    grow succeeds, with nothing lost."""
    sizes = ["--micro", "12", "--samples", "1003", "--epochs", "1", "--strategy", "fsdp"]
    control = begin(SCRIPT, "--hold-from", "0", *sizes)
    control.start("a", "b")
    refused(control, "forward", signal.SIGKILL, "ab", ["forward"])
    control.resize("a", "b", "c")
    assert control.exits("a", "b", "c") == [0, 0, 0], control.story()
    control.checked(samples=1003, epochs=1, worlds=2, restarts=0)
    assert difference(result(tmp_path), alone(zygote, tmp_path, *sizes)) < 1e-12
