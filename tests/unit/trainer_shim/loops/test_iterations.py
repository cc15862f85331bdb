"""A loop that stays the script's, in real gloo worlds: over iterations, with all that such scripts do by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from worker_harness import SCRIPT, Control, Start, Zygote, alone, difference, result

from slurm_elastic.trainer_shim.control.worker_client import EXIT_LOST
from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS

cuts = pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")
OWN = SCRIPT.with_name("own_loop_train.py")
EPOCHS = SCRIPT.with_name("own_epochs_train.py")
GAN = SCRIPT.with_name("own_gan_train.py")
KEPT = ("iter_num", "best_val_loss", "lr")


@pytest.fixture
def begin(zygote: Zygote, tmp_path: Path) -> Iterator[Start]:
    """As the fixture `start`, of the script whose loop is its own."""
    made: list[Control] = []

    def make(*args: str, script: Path = OWN) -> Control:
        made.append(Control(zygote, tmp_path, list(args), script))
        return made[-1]

    yield make
    for control in made:
        control.close()


def drawn(directory: Path, name: str = "final") -> dict[tuple[int, int], set[tuple[int, ...]]]:
    """What was drawn for each micro batch of each iteration, by whatever rank, and however often. A rank without a part
    of an iteration draws its first micro batch for company: the same, too."""
    found: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for path in directory.glob(f"drawn-{name}.*.jsonl"):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            found.setdefault((entry["iteration"], entry["micro"]), set()).add(tuple(entry["starts"]))
    return found


def said(directory: Path, name: str = "final") -> dict[int, Any]:
    lines = (directory / f"said-{name}.jsonl").read_text().splitlines()
    return {entry["iteration"]: entry["loss"] for entry in map(json.loads, lines)}


def undisturbed(zygote: Zygote, directory: Path, *args: str) -> dict[str, Any]:
    """One process, whose files are named `still`. It is the last --name that counts."""
    still = directory / "still"
    still.mkdir()
    return alone(zygote, still, *args, script=OWN)


@pytest.mark.parametrize("end", [(), ("--limit",)])
def test_resized_iterations_equal_undisturbed_ones(
    zygote: Zygote, begin: Start, tmp_path: Path, end: tuple[str, ...]
) -> None:
    """1 -> 3 -> 2 -> 3 -> 1 workers, rank 0 replaced, 7 micro batches that do not divide: each micro batch of each
    iteration once, with the samples, parameters, schedule, variables and evaluations of a run in one process. Another
    batch is answered, and is not taken."""
    control = begin("--hold-from", "0", "--pace", "0.01", *end)
    control.start("a")
    for names in ("abc", "bc", "cde"):
        control.resize(*names)
    control.rebatch(99)
    control.resize("e")
    assert control.exits(*"abcde") == [0] * 5, control.story()
    control.checked(samples=7, epochs=60, worlds=6)
    assert "a loop of the script's own keeps its batch" in control.story()
    ours, theirs = result(tmp_path), undisturbed(zygote, tmp_path, *end)
    assert difference(ours, theirs) < 1e-12
    assert ours["iter_num"] == 60
    for key in KEPT:
        assert ours[key] == pytest.approx(theirs[key], rel=1e-12)
    (name,) = [path.name.split(".")[0].removeprefix("drawn-") for path in (tmp_path / "still").glob("drawn-*")]
    assert drawn(tmp_path) == drawn(tmp_path / "still", name)
    assert said(tmp_path) == pytest.approx(said(tmp_path / "still", name), rel=1e-6)


def test_killed_and_started_again_from_a_checkpoint(zygote: Zygote, begin: Start, tmp_path: Path) -> None:
    """One of three killed after a checkpoint: the others find out in the script's own backward() or at the boundary,
    and leave for another world, which goes on from there with other sizes; samples and results as undisturbed."""
    control = begin("--hold-from", "0", "--pace", "0.01")
    control.start("a", "b")
    control.resize("a", "b", "c")
    control.send("a", {"type": "checkpoint"})
    saved = control.wait(lambda _, message: message["type"] == "saved")
    control.kill("b")
    assert control.exits("a", "b", "c", hold=True) == [EXIT_LOST, -9, EXIT_LOST], control.story()
    assert [message for message in control.all("failed") if "broke" in message["error"]], control.story()
    control.members = []
    control.start("d", "e", source="checkpoint")
    control.resize("e")
    assert control.exits("d", "e") == [0, 0], control.story()
    assert f"at step {saved['step']}," in (tmp_path / "d.log").read_text()
    control.checked(samples=7, epochs=60, restarts=1)
    ours, theirs = result(tmp_path), undisturbed(zygote, tmp_path)
    assert difference(ours, theirs) < 1e-12
    for key in KEPT:
        assert ours[key] == pytest.approx(theirs[key], rel=1e-12)
    (name,) = [path.name.split(".")[0].removeprefix("drawn-") for path in (tmp_path / "still").glob("drawn-*")]
    assert drawn(tmp_path) == drawn(tmp_path / "still", name)
    done = [message for message in control.all("done") if message["finished"]]
    assert done and done[-1]["step"] == 60


@cuts
def test_sharded_iterations_in_mixed_precision(zygote: Zygote, begin: Start, tmp_path: Path) -> None:
    """A MixedPrecisionPolicy, beside prefetching, reshard_after_forward and activation checkpointing, in each of the
    worlds 2 -> 4 -> 3 -> 2: the samples of a run in one process, which computes in double precision, and its parameters
    but for the rounding of single precision; they themselves, and the sums, stay in double."""
    control = begin("--hold-from", "0", "--pace", "0.01", "--sharded", "--mixed")
    control.start("a", "b")
    for names in ("abcd", "bcd", "cd"):
        control.resize(*names)
    assert control.exits(*"abcd") == [0] * 4, control.story()
    control.checked(samples=7, epochs=60, worlds=4)
    ours, theirs = result(tmp_path), undisturbed(zygote, tmp_path, "--sharded")
    assert {value.dtype for value in ours["model"].values()} == {torch.float64}
    assert 1e-12 < difference(ours, theirs) < 1e-3
    (name,) = [path.name.split(".")[0].removeprefix("drawn-") for path in (tmp_path / "still").glob("drawn-*")]
    assert drawn(tmp_path) == drawn(tmp_path / "still", name)
    assert said(tmp_path) == pytest.approx(said(tmp_path / "still", name), rel=1e-3)


@cuts
def test_sharded_iterations_resized_and_killed(zygote: Zygote, begin: Start, tmp_path: Path) -> None:
    """job.shard() of a model on the meta device, with activation checkpointing, fully_shard() and prefetching as a
    script has them: 7 micro batches that ranks have unequal numbers of, clipping and GradScaler by the script,
    2 -> 4 -> 2 -> 1 -> 3 workers, a kill and a restart from a checkpoint: samples, parameters, variables and
    evaluations as in one process."""
    control = begin("--hold-from", "0", "--pace", "0.01", "--sharded")
    control.start("a", "b")
    control.resize(*"abcd")
    control.resize(*"bd")
    control.resize("d")
    control.resize(*"def")
    control.send("d", {"type": "checkpoint"})
    control.wait(lambda _, message: message["type"] == "saved" and message["step"] > 0)
    control.kill("e")
    assert control.exits(*"def", hold=True) == [EXIT_LOST, -9, EXIT_LOST], control.story()
    assert "Traceback" not in (tmp_path / "d.log").read_text() + (tmp_path / "f.log").read_text()
    control.members = []
    control.start("g", "h", source="checkpoint")
    assert control.exits("g", "h") == [0, 0], control.story()
    control.checked(samples=7, epochs=60, restarts=1)
    ours, theirs = result(tmp_path), undisturbed(zygote, tmp_path, "--sharded")
    assert difference(ours, theirs) < 1e-12
    for key in KEPT:
        assert ours[key] == pytest.approx(theirs[key], rel=1e-12)
    (name,) = [path.name.split(".")[0].removeprefix("drawn-") for path in (tmp_path / "still").glob("drawn-*")]
    assert drawn(tmp_path) == drawn(tmp_path / "still", name)
    assert said(tmp_path) == pytest.approx(said(tmp_path / "still", name), rel=1e-6)


def test_a_rank_that_dies_in_the_scripts_backward(zygote: Zygote, begin: Start, tmp_path: Path) -> None:
    """No optimizer of another rank takes a step with gradients that are not whole: it leaves, asks to be tried again,
    and says why; the state saved before goes on as undisturbed."""
    control = begin("--hold-from", "12", "--die", "9")
    control.spawn("a", "b", "c")
    control.ready("a", "b", "c")
    control.world("a", "b", "c", source="fresh")
    assert control.exits("a", "b", "c", hold=True) == [EXIT_LOST, -9, EXIT_LOST], control.story()
    assert "Traceback" not in (tmp_path / "a.log").read_text() + (tmp_path / "c.log").read_text()
    control.members = []
    control.start("d", "e", source="fresh")
    assert control.exits("d", "e") == [0, 0], control.story()
    assert difference(result(tmp_path), undisturbed(zygote, tmp_path)) < 1e-12
    control.checked(samples=7, epochs=60)


def test_totals_that_differ_are_told(zygote: Zygote, begin: Start, tmp_path: Path) -> None:
    """Gradients would be weighted wrongly without a word; what a joiner has not asked for before is no difference."""
    control = begin("--hold-from", "0", "--odd", "2")
    control.start("a", "b")
    control.resize("a", "b", "c")
    assert control.exits("a", "b", "c", hold=False) == [1, 1, 1], control.story()
    for name in "abc":
        said_there = (tmp_path / f"{name}.log").read_text()
        assert "in the iteration before this one: 7 on ranks 0 2, 8 on rank 1; accepted" in said_there


def test_steps_that_differ_are_told(begin: Start, tmp_path: Path) -> None:
    """A counter that only one rank has may decide over a step: ranks would drift apart without a word."""
    control = begin("--apart", "3", script=EPOCHS)
    control.spawn("a", "b")
    control.ready("a", "b")
    control.world("a", "b", source="fresh")
    assert control.exits("a", "b") == [1, 1], control.story()
    for name in "ab":
        assert (
            "in the iteration before this one: AdamW on rank 0, none on rank 1;"
            in (tmp_path / f"{name}.log").read_text()
        )


@pytest.mark.parametrize("kind", [(), pytest.param(("--sharded",), marks=cuts)])
def test_several_models_and_backward_passes_resized(
    zygote: Zygote, begin: Start, tmp_path: Path, kind: tuple[str, ...]
) -> None:
    """Two backward passes into one step, two steps of a critic for one of its generator, uneven shares of 10 samples,
    one model's result given to the other, resized 1 -> 3 -> 4 -> 2: the parameters of both, and what is counted, as in
    one process."""
    control = begin("--hold-from", "0", "--pace", "0.01", *kind, script=GAN)
    control.start("a")
    for names in ("abc", "abcd", "bd"):
        control.resize(*names)
    assert control.exits(*"abcd") == [0] * 4, control.story()
    control.checked(samples=20, epochs=40, worlds=4)
    ours, theirs = result(tmp_path), alone(zygote, tmp_path, script=GAN)
    assert difference(ours, theirs) < 1e-11
    assert ours["steps"] == theirs["steps"] == 120


def test_more_ranks_than_parts(zygote: Zygote, begin: Start, tmp_path: Path) -> None:
    """Of 2 samples and 3 ranks, one computes for company, and it does not show."""
    control = begin("--batch", "2", "--iterations", "6", script=GAN)
    control.start(*"abc")
    assert control.exits(*"abc") == [0] * 3, control.story()
    ours, theirs = result(tmp_path), alone(zygote, tmp_path, "--batch", "2", "--iterations", "6", script=GAN)
    assert difference(ours, theirs) < 1e-12
    control.checked(samples=4, epochs=6)


def test_epochs_with_steps_of_the_scripts_own(zygote: Zygote, begin: Start, tmp_path: Path) -> None:
    """job.loader() hands out batches, and backward, step, schedule by epoch, validation and best result are the
    script's: resized 1 -> 3 -> 2, killed after a checkpoint and resized again, all is as in one process."""
    control = begin("--hold-from", "0", "--pace", "0.01", "--workers", "1", script=EPOCHS)
    control.start("a")
    control.resize("a", "b", "c")
    control.resize("b", "c")
    control.send("b", {"type": "checkpoint"})
    control.wait(lambda _, message: message["type"] == "saved")
    control.kill("c")
    assert control.exits("b", "c", hold=True) == [EXIT_LOST, -9], control.story()
    control.members = []
    control.start("d", source="checkpoint")
    control.resize("d", "e", "f")
    assert control.exits("d", "e", "f") == [0] * 3, control.story()
    control.checked(samples=203, epochs=3, restarts=1, steps=33)
    ours, theirs = result(tmp_path), alone(zygote, tmp_path, script=EPOCHS)
    assert difference(ours, theirs) < 1e-12
    assert ours["validations"] == pytest.approx(theirs["validations"], rel=1e-9) and len(ours["validations"]) == 3
    for key in ("best_loss", "lr", "global_step", "samples"):
        assert ours[key] == pytest.approx(theirs[key], rel=1e-9)


def test_a_pass_left_early_ends_its_epoch(zygote: Zygote, begin: Start, tmp_path: Path) -> None:
    """The step that was taken before the `break` counts."""
    control = begin("--leave", "3", script=EPOCHS)
    control.start("a", "b")
    assert control.exits("a", "b") == [0, 0], control.story()
    ours, theirs = result(tmp_path), alone(zygote, tmp_path, "--leave", "3", script=EPOCHS)
    assert ours["global_step"] == theirs["global_step"] == 12
    assert difference(ours, theirs) < 1e-12
