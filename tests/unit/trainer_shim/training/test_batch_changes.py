"""Real workers that take another batch in the world they are in: no group is made, no sample lost or repeated."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from waiting import wait_until
from worker_harness import Start, difference, result

from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS

cuts = pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")
STRATEGIES = ["ddp", pytest.param("fsdp", marks=cuts)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_steps_are_those_of_a_new_world(start: Start, tmp_path: Path, ranks: int, strategy: str) -> None:
    """After the same step the batch changes, once in place and once by a new world, as 0.2.0's supervisor has it: the
    parameters are the same to 1e-12 (float64; a new group adds up in another order), the schedule and the counts to
    the last bit, with accumulation. No store is opened for it, so no group is made."""
    names, found = "abcd"[:ranks], []
    sizes = ["--await-world", "20", "--micro", "9", "--batch", "50", "--strategy", strategy]
    for in_place in (True, False):
        folder = tmp_path / str(in_place)
        folder.mkdir()
        control = start(*sizes, directory=folder)
        control.spawn(*names, SELASTIC_JOB_DIR="")  # a switch of shards is put off for a checkpoint
        control.ready(*names)
        control.running(control.world(*names, source="fresh"))
        for name in names:
            wait_until((folder / f"{name}.awaits").exists, 60, control.story)
        control.running(control.world(*names, batch=77, in_place=in_place))
        assert control.exits(*names) == [0] * ranks, control.story()
        control.checked(samples=1003, epochs=3, worlds=2)
        assert len(control.all("store")) == (1 if in_place else 2), control.story()
        found.append(result(folder))
    assert difference(*found) < 1e-12
    names_of = set(found[0]) - {"model", "ema"}
    assert {key: found[0][key] for key in names_of} == {key: found[1][key] for key in names_of}


@pytest.mark.parametrize(("seed", "shards"), [(1, 0), (2, 47)])
def test_what_was_prefetched_is_neither_lost_nor_trained_twice(start: Start, seed: int, shards: int) -> None:
    """Batches change again and again under loader workers that read ahead, map-style and in shards that are read in
    order: every sample exactly once in every epoch."""
    generator = random.Random(seed)
    sizes = ["--samples", "601", "--epochs", "4", "--shards", str(shards)]
    control = start("--hold-from", "0", "--pace", "0.01", "--workers", "2", "--batch", "37", *sizes)
    control.start("a", "b")
    batches = [generator.randint(20, 80) for _ in range(6)]
    assert [control.rebatch(batch)["batch"] for batch in batches] == batches
    assert control.exits("a", "b") == [0, 0], control.story()
    control.checked(samples=601, epochs=4, worlds=7)


def test_the_log_says_it_as_a_resize(start: Start) -> None:
    """Batch, rate, noise scale and pause, as with a new world; and a resize follows as ever."""
    control = start("--hold-from", "0", "--optimizer", "SGD", "--samples", "2000")
    control.start("a", "b")
    running = control.rebatch(100)
    assert running["batch"] == 100 and running["pause_s"] > 0
    line = re.search(r"batch 50 -> 100 on 2 GPUs, lr \S+ -> \S+ \(linear\), pause \d+\.\d\d s", control.story())
    assert line, control.story()
    control.resize("b", "c", batch=64)
    control.rebatch(51)
    assert control.exits("a", "b", "c") == [0, 0, 0], control.story()
    control.checked(samples=2000, epochs=3, worlds=4)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_checkpoint_that_was_asked_for_comes(start: Start, workers: int) -> None:
    """Asked for while the batch changes, a checkpoint is written all the same; sharded models make no second group for
    it (one is made with a new world only)."""
    control = start("--hold-from", "0", "--workers", str(workers))
    control.start("a", "b")
    for batch in (64, 50, 80):
        before = len(control.all("saved"))
        control.send("a", {"type": "checkpoint"})
        control.rebatch(batch)
        control.wait(lambda _, m, before=before: m["type"] == "saved" and len(control.all("saved")) > before)
    assert control.exits("a", "b") == [0, 0], control.story()


@pytest.mark.parametrize("phase", ["change commit", "change take", "changed taken", "changed forward"])
@pytest.mark.parametrize("who", ["a", "b"])
def test_a_kill_at_any_moment_ends_in_one_of_the_two_states(start: Start, who: str, phase: str) -> None:
    """kill -9 of rank 0, or of another one, at each moment of the change: the others leave, and workers that start from
    the last checkpoint, at the old batch or at the new one, see every sample exactly once."""
    control = start("--hold-from", "0", "--epochs", "4")
    other = "b" if who == "a" else "a"
    control.spawn(other)
    control.spawn(who, FAIL=f"{phase}:9")
    control.ready("a", "b")
    control.running(control.world("a", "b", source="fresh"))
    control.send("a", {"type": "checkpoint"})
    control.wait(lambda _, message: message["type"] == "saved")
    control.world("a", "b", batch=80, in_place=True)
    assert control.exits(who, hold=True) == [-9], control.story()
    assert control.exits(other, hold=True) == [75], control.story()
    batch = random.Random(f"{who}{phase}").choice((50, 80))
    control.start("c", "d", source="checkpoint", batch=batch)
    assert control.exits("c", "d") == [0, 0], control.story()
    control.checked(samples=1003, epochs=4, restarts=1)
