"""Parts of a step in proportion to how fast ranks compute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import audited
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from local_jobs import refused, wrapped
from waiting import wait_until
from worker_harness import SCRIPT, Control, Zygote, alone, difference, result

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.data.sampling import Shares
from slurm_elastic.trainer_shim.training import audit
from slurm_elastic.trainer_shim.training.speeds import GAIN, Speeds, of_device, weights_of
from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS

WEIGHTED = SCRIPT.with_name("weighted_train.py")
cuts = pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")


@given(st.lists(st.integers(0, 9000), min_size=1, max_size=12), st.sampled_from((1, 2, 3)))
def test_parts_are_those_that_take_as_long_on_every_rank(speeds: list[int], unit: int) -> None:
    """A replica is as fast as its slowest rank, and one of which nothing is known as the others; what is settled stays,
    also where speeds come a little different."""
    speeds = speeds * unit
    known = [speed for speed in speeds if speed]
    if not known:
        assert weights_of(speeds, unit, ()) == () and weights_of(speeds, unit, (3, 4)) == (3, 4)
        return
    mean = max(1, sum(known) // len(known))
    groups = [speeds[first : first + unit] for first in range(0, len(speeds), unit)]
    replicas = tuple(min(speed or mean for speed in group) for group in groups)
    shorter = sum(replicas) / len(replicas) / min(replicas) > GAIN
    assert weights_of(speeds, unit, ()) == (replicas if shorter else ())
    assert weights_of(speeds, unit, replicas) is replicas
    assert weights_of([0] * len(speeds), unit, replicas) is replicas


def test_ranks_compare_soon_and_then_seldom() -> None:
    """At steps that all ranks count alike; and not at all where parts are equal."""
    speeds = Speeds(wanted=True)
    speeds.entered([0, 0], 1, step=100)
    assert [step for step in range(100, 1000) if speeds.due(step)] == [108, 124, 156, 220, 348, 604, 860]
    assert not any(Speeds(wanted=False).due(step) for step in range(1000))
    speeds.measured(0, 1.0)
    assert speeds.own == 0
    speeds.measured(8, 0.25)
    assert speeds.own == 32000 and speeds.heard([32000, 8000], 1) and not speeds.heard([32100, 8000], 1)
    assert Shares(2, 1, weights=speeds.weights).of_all(100) == [80, 20]
    assert of_device(torch.device("cpu"), 8, 2) > 0


@pytest.fixture
def uneven(zygote: Zygote, tmp_path: Path) -> Iterator[Control]:
    control = Control(zygote, tmp_path, ["--shares", "speed", "--hold-from", "0"], WEIGHTED)
    yield control
    control.close()


def parts(control: Control) -> dict[tuple[int, ...], int]:
    """How often the ranks have had so many samples of a whole step, in steps of loops over a dataset."""
    steps: dict[tuple[int, int, int], dict[int, int]] = {}
    for line in audit.read(control.audit):
        if line.get("batch") == 8:
            place = line["size"], line["generation"], line["step"]
            steps.setdefault(place, {})[line["rank"]] = len(line["indices"])
    found = [tuple(sizes[rank] for rank in sorted(sizes)) for (size, *_), sizes in steps.items() if len(sizes) == size]
    return {sizes: found.count(sizes) for sizes in found}


@pytest.mark.parametrize("mode", ["ddp", pytest.param("fsdp", marks=cuts), "loader", "share"])
def test_unequal_parts_are_exact(zygote: Zygote, uneven: Control, tmp_path: Path, mode: str) -> None:
    """On ranks of which one is six times as fast, and one becomes slow in the middle of a pass, over a resize, in micro
    batches, with losses that are means over labelled tokens: the parameters of whole batches, to 1e-12 a sample; a rank
    has nothing in some short steps."""
    uneven.args += ["--mode", mode, "--epochs", "4"]
    for name, speeds in (("a", "6000"), ("b", "1000"), ("c", "6000 500")):
        uneven.spawn(name, SPEEDS=speeds)
    uneven.ready("a", "b")
    uneven.running(uneven.world("a", "b", source="fresh"))
    uneven.resize("a", "b", "c")
    assert uneven.exits("a", "b", "c") == [0] * 3, uneven.story()
    plain = alone(zygote, tmp_path, "--mode", "plain", "--epochs", "4", script=WEIGHTED)
    assert difference(result(tmp_path), plain) < 1e-10
    if mode != "share":
        assert audited.check(uneven.audit, samples=90, epochs=4).ok
        found = parts(uneven)
        assert (6, 2) in found or (7, 1) in found, found
        assert any(sizes[0] >= 3 * max(sizes[1:]) for sizes in found if len(sizes) == 3), found


def test_a_slow_rank_gets_less(uneven: Control) -> None:
    """Speeds as they are measured: of two ranks one needs four times as long for a sample."""
    uneven.args = ["--shares", "speed", "--epochs", "100000", "--pace", "0"]  # without a hold, which slows both
    uneven.spawn("a", NAP="0.004")
    uneven.spawn("b", NAP="0.016")
    uneven.ready("a", "b")
    uneven.running(uneven.world("a", "b", source="fresh"))
    wait_until(lambda: any(slow * 2 < fast for fast, slow in parts(uneven)))


def test_what_goes_with_it(made: list[elastic.Job]) -> None:
    """A step in a fixed order has parts of its own."""
    with refused(r"join\(shares='fair'\) is not known; accepted: 'equal', 'speed'"):
        elastic.join(batch=4, shares="fair")
    with refused(
        r"join\(deterministic=..., shares=...\) does not go with job.wrap\(strategy='ddp'\); accepted: one of them"
    ):
        wrapped(made, deterministic=True, shares="speed")
