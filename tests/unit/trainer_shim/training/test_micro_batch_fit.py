"""The largest micro batch in real worlds of workers whose memories differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until
from worker_harness import Control, Zygote

from slurm_elastic.trainer_shim.data.micro_batch_probe import MARGIN, PRECISION

BATCH = 300
SCRIPT = Path(__file__).parents[3] / "support" / "training_scripts" / "fit_train.py"


@pytest.fixture
def control(zygote: Zygote, tmp_path: Path) -> Iterator[Control]:
    control = Control(zygote, tmp_path, [], script=SCRIPT)
    yield control
    control.close()


def micros(control: Control, generation: int) -> set[int]:
    """The sizes of micro batches that any rank has computed in that world, once it has done a few."""

    def seen() -> list[int]:
        lines = [line for file in control.directory.glob("*.micros") for line in file.read_text().splitlines()]
        return [size for world, size in map(json.loads, lines) if world == generation]

    return set(wait_until(lambda: sizes if len(sizes := seen()) > 60 else [], 60, control.story))


def fits(sizes: set[int], capacity: int, ranks: int) -> bool:
    """With the margin free, and in the fewest equal parts of a rank's slice that the search's precision allows."""
    most = int((1 - MARGIN) * capacity)
    share = -(-BATCH // ranks)
    equal = {-(-share // -(-share // limit)) for limit in range(int(most * (1 - PRECISION)) - 1, most + 1)}
    return max(sizes) <= most and max(sizes) in equal


def test_all_ranks_compute_what_the_smallest_memory_holds(control: Control) -> None:
    """A joiner with less memory finds its own limit before it joins, and all keep to it; without it the others' counts
    again. No rank ever runs out of memory, and every rank keeps its margin free."""
    control.spawn("a", CAPACITY="80")
    control.spawn("b", CAPACITY="64")
    control.ready("a", "b")
    control.running(first := control.world("a", "b", source="fresh"))
    assert fits(micros(control, first), 64, 2), micros(control, first)
    control.spawn("c", CAPACITY="23")
    control.ready("c")
    control.running(second := control.world("a", "b", "c"))
    assert fits(micros(control, second), 23, 3), micros(control, second)
    control.running(third := control.world("a"))
    assert fits(micros(control, third), 80, 1), micros(control, third)
    (control.directory / "stop").touch()
    assert control.exits("a", "b", "c") == [0, 0, 0], control.story()
    assert "out of memory" not in control.story()
