"""Real workers in real gloo worlds: resizes between two steps, with everything that must survive them."""

from __future__ import annotations

import errno
import os
import random
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
import torch
from waiting import run, wait_until
from worker_harness import BLOCKED, NAMESPACE, SCRIPT, Control, Start, Zygote, alone, difference, result

from slurm_elastic.trainer_shim.checkpoint import files
from slurm_elastic.trainer_shim.training import audit
from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS

cuts = pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")
KEPT = ("lr", "steps", "global_step", "samples")


def test_resized_training_equals_an_unresized_one(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """1 -> 3 -> 2 -> 3 -> 1 -> 2 workers, every first member replaced, slices and remainders that do not divide, with
    accumulation: every sample once per epoch, parameters, schedule and user state as without a resize (float64)."""
    control = start("--hold-from", "0", "--pace", "0.01", "--micro", "12")
    control.start("a")
    pauses = [control.resize(*names)["pause_s"] for names in ("abc", "bc", "cde", "e", "ef")]
    assert min(pauses) > 0
    assert control.exits(*"abcdef") == [0] * 6, control.story()
    control.checked(samples=1003, epochs=3, worlds=6, steps=63)
    ours, theirs = result(tmp_path), alone(zygote, tmp_path, "--micro", "12")
    assert difference(ours, theirs) < 1e-12
    assert {key: ours[key] for key in KEPT} == {key: theirs[key] for key in KEPT}
    assert ours["steps"] == 63


@pytest.mark.parametrize(("seed", "shards"), [(1, 0), (2, 47)])
def test_random_resizes_with_loader_workers(start: Start, tmp_path: Path, seed: int, shards: int) -> None:
    """Random worlds and batches with prefetching loader workers, map-style and in shards of 47 that are read in
    order: still every sample exactly once."""
    generator = random.Random(seed)
    sizes = ["--samples", "601", "--epochs", "3", "--shards", str(shards)]
    control = start("--hold-from", "0", "--pace", "0.01", "--workers", "1", "--batch", "37", *sizes)
    pool = iter("bcdefghijklmnop")
    control.start("a")
    members = ["a"]
    for _ in range(5):
        stay = generator.sample(members, generator.randint(1, len(members)))
        members = stay + [next(pool) for _ in range(generator.randint(0, 3 - len(stay)))]
        control.resize(*members, batch=generator.randint(20, 60))
    control.exits(*members)
    control.checked(samples=601, epochs=3, worlds=6)


def test_a_batch_changes_without_a_change_of_members(start: Start, tmp_path: Path) -> None:
    """The same workers go on with another global batch; log and messages say it."""
    control = start("--hold-from", "0", "--optimizer", "SGD", "--samples", "2000")
    control.start("a", "b")
    running = control.resize("a", "b", batch=100)
    assert running["batch"] == 100
    assert control.exits("a", "b") == [0, 0]
    control.checked(samples=2000, epochs=3)
    line = re.search(r"batch 50 -> 100 on 2 GPUs, lr \S+ -> \S+ \(linear\), pause \d+\.\d\d s", control.story())
    assert line, control.story()


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=cuts)])
@pytest.mark.parametrize(("shares", "samples"), [(1, 11), (2, 11), (3, 11), (4, 11), (4, 3)])
def test_gradients_are_the_global_batch_mean(
    zygote: Zygote, start: Start, tmp_path: Path, strategy: str, shares: int, samples: int
) -> None:
    """One SGD step (float32) over uneven slices, in micro batches of which ranks have unequal numbers, and with a rank
    that has no sample: the mean gradient over the global batch to 1e-6, of replicas and of shards."""
    sizes = ["--samples", str(samples), "--batch", str(samples), "--epochs", "1"]
    # At rate 1 the parameters differ by what the gradients do.
    arguments = [*sizes, "--optimizer", "SGD", "--rate", "1", "--dtype", "float32"]
    control = start(*arguments, "--micro", "2", "--strategy", strategy)
    names = "abcd"[:shares]
    control.start(*names)
    assert control.exits(*names) == [0] * shares
    assert difference(result(tmp_path), alone(zygote, tmp_path, *arguments)) < 1e-6


def test_more_workers_than_samples_in_a_step(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """Ranks without a share of a short step (2 samples, 4 ranks) compute for company, and it does not show; nor does it
    that a parameter is released in the second epoch."""
    arguments = ["--samples", "21", "--batch", "10", "--epochs", "2", "--release"]
    control = start(*arguments)
    control.start(*"abcd")
    assert control.exits(*"abcd") == [0] * 4
    control.checked(samples=21, epochs=2)
    assert difference(result(tmp_path), alone(zygote, tmp_path, *arguments)) < 1e-12


def test_unused_parameters_are_passed_through(start: Start) -> None:
    """wrap(find_unused_parameters=True) works, and agreement on a step with it."""
    control = start("--hold-from", "0", "--unused", "--micro", "9")
    control.start("a", "b")
    control.resize("b", "c")
    assert control.exits("a", "b", "c") == [0, 0, 0], control.story()
    control.checked(samples=1003, epochs=3)


def test_a_killed_world_goes_on_from_the_checkpoint(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """All workers killed after a checkpoint: fresh ones of another number restore it; nothing lost, nothing twice."""
    control = start("--hold-from", "0")
    control.start("a", "b")
    control.send("a", {"type": "checkpoint"})
    saved = control.wait(lambda _, message: message["type"] == "saved")
    assert files.check(Path(saved["path"])).step == saved["step"]
    for name in "ab":
        control.kill(name)
    assert control.exits("a", "b") == [-9, -9]
    control.start("c", "d", "e", source="checkpoint")
    assert control.exits("c", "d", "e") == [0, 0, 0], control.story()
    control.checked(samples=1003, epochs=3, restarts=1)
    assert difference(result(tmp_path), alone(zygote, tmp_path)) < 1e-12


@pytest.mark.parametrize(("seed", "shards"), [(3, 0), (4, 61)])
def test_random_kills_and_resizes_lose_nothing(start: Start, seed: int, shards: int) -> None:
    """Workers killed at random moments, in the middle of resizes too, and each time a restart from the last
    checkpoint at another size: in the end every sample of every epoch counts exactly once, of shards too."""
    generator = random.Random(seed)
    control = start("--hold-from", "0", "--every", "0.2", "--epochs", "16", "--workers", "0", "--shards", str(shards))
    names = (f"w{number}" for number in range(1000))
    members = [next(names)]
    control.start(*members)
    kills = 0
    for _ in range(10):
        stay = generator.sample(members, generator.randint(1, len(members)))
        new = [next(names) for _ in range(generator.randint(0, 3 - len(stay)))]
        control.spawn(*new)
        control.ready(*new)
        before, members = members, stay + new
        generation = control.world(*members, batch=generator.choice([0, 30, 50, 70]))
        if generator.random() < 0.5:
            control.running(generation)
            continue
        time.sleep(generator.random() * 0.15)  # a random moment is the point here
        control.kill(generator.choice(sorted({*before, *new})))
        kills += 1
        for name in {*before, *new}:
            control.kill(name)
        codes = control.exits(*{*before, *new})
        assert set(codes) <= {0, 75, -9}, control.story()
        members = [next(names) for _ in range(generator.randint(1, 3))]
        control.start(*members, source="checkpoint" if control.all("saved") else "fresh")
    assert control.exits(*members) == [0] * len(members), control.story()
    assert kills > 0
    control.checked(samples=1003, epochs=16, restarts=kills)


def test_survivors_of_a_killed_worker_leave_with_75(start: Start) -> None:
    """When a rank dies the others end by themselves, quietly: they ask to be tried again."""
    control = start("--pace", "0.01", "--epochs", "100")
    control.start("a", "b", "c")
    control.kill("b")
    assert control.exits("a", "b", "c") == [75, -9, 75], control.story()
    assert "Traceback" not in control.story()


def test_a_failing_script_fails_with_its_own_code(start: Start) -> None:
    """The rank whose script raises exits 1 with its traceback; the others exit 75."""
    control = start("--pace", "0.01", "--crash", "5")
    control.start("a", "b")
    assert control.exits("a", "b") == [75, 1], control.story()
    assert "ValueError: this script fails" in control.story()


def test_a_collective_of_rank_0_alone_is_named(start: Start) -> None:
    """In job.once() of replicas nobody would answer it, and all ranks wait for an hour."""
    control = start("--epochs", "1", "--evaluate", "0", "--collective")
    control.spawn("a", "b")
    control.ready("a", "b")
    control.world("a", "b", source="fresh")
    assert control.exits("a", "b") == [1, 1], control.story()
    said = "torch.distributed.barrier() was called inside job.once(evaluate), which rank 0 runs alone"
    assert control.story().count(said) >= 2, control.story()


def test_without_a_supervisor_workers_leave(start: Start) -> None:
    """A lost connection ends training workers, and those that wait for a world, with code 75."""
    control = start("--pace", "0.01", "--epochs", "1000")
    control.start("a", "b")
    control.spawn("c")
    control.ready("c")
    control.drop()
    codes = control.exits("a", "b", "c")
    assert codes == [75, 75, 75], control.story()


def test_a_world_called_off_leaves_the_old_one_alone(start: Start) -> None:
    """A grow that is aborted before its joiner is there never happens; the next one, with another number, does."""
    control = start("--hold-from", "0")
    control.start("a")
    called_off = control.world("a", "z", tell=False)  # z does not exist: it will never arrive
    control.wait(lambda _, message: message["type"] == "store" and message["generation"] == called_off)
    control.send("a", {"type": "abort", "generation": called_off})
    control.resize("a", "b")
    assert control.exits("a", "b") == [0, 0], control.story()
    control.checked(samples=1003, epochs=3)
    assert not [message for message in control.all("quiesced") if message["generation"] == called_off]


def test_a_world_that_does_not_form_lets_the_old_one_go_on(start: Start) -> None:
    """A member that does not arrive after the last step: after the timeout the old world trains on, and says so."""
    control = start("--hold-from", "0")
    control.start("a", "b")
    control.world("a", "b", "z", timeout_s=1.0, tell=False, joiners=0)
    failed = control.wait(lambda _, message: message["type"] == "failed")
    assert failed["survived"] and "2 of 3 workers arrived" in failed["error"]
    control.resize("b", "c")
    assert control.exits("a", "b", "c") == [0, 0, 0], control.story()
    control.checked(samples=1003, epochs=3, worlds=3 - 1, restarts=0)


def trained(control: Control) -> int:
    """The last step that any rank has contributed to."""
    return max((int(row["step"]) for row in audit.read(control.audit) if "indices" in row), default=0)


def test_a_joiner_that_does_not_get_through_costs_no_pause(start: Start) -> None:
    """Survivors leave for a world only once its joiners have reached its store: one behind a firewall says which
    address it does not reach, one that is stuck is given up, and meanwhile training goes on."""
    control = start("--hold-from", "0", "--pace", "0.05", "--epochs", "15")
    control.start("a", "b")
    control.spawn("c")
    control.ready("c")
    control.blocked.add("c")
    before = trained(control)
    blocked = control.world("a", "b", "c", timeout_s=6.0, tell=False)
    wait_until(lambda: trained(control) > before + 10, 60, control.story)
    assert not [message for message in control.all("failed") if message.get("survived")], "they have not stood still"
    failed = control.wait(lambda worker, message: worker == "c" and message["type"] == "failed")
    assert failed["generation"] == blocked
    assert f"does not reach the store of world {blocked} at 127.0.0.1 port {BLOCKED}" in failed["error"]
    for name in "ab":
        control.send(name, {"type": "abort", "generation": blocked})
    never = control.world("a", "b", "z", timeout_s=0.5, tell=False)
    given_up = control.wait(lambda worker, message: message["type"] == "failed" and message["generation"] == never)
    assert given_up["survived"] and "0 of 1 new workers came within" in given_up["error"]
    assert given_up["missing"] == [0, 1, 2]
    assert not {message["generation"] for message in control.all("quiesced")} & {blocked, never}
    control.resize("a", "b", "d")
    assert control.exits("a", "b", "d") == [0, 0, 0], control.story()
    control.checked(samples=1003, epochs=15, worlds=2)


def test_a_joiner_waits_for_another_world_when_its_first_is_called_off(start: Start) -> None:
    """A joiner, and a survivor, already waiting for one who never comes go back, and the next generation forms."""
    control = start("--hold-from", "0")
    control.start("a")
    control.spawn("b")
    control.ready("b")
    called_off = control.world("a", "b", "z", tell=False)
    control.wait(lambda _, message: message["type"] == "store" and message["generation"] == called_off)
    for name in "ab":
        control.send(name, {"type": "abort", "generation": called_off})
    control.running(control.world("a", "b"))
    assert control.exits("a", "b") == [0, 0], control.story()
    control.checked(samples=1003, epochs=3)


def test_a_joiner_whose_world_is_incomplete_leaves_with_75(start: Start) -> None:
    """In a fresh world that never completes, those who arrived say `failed` and exit 75 within the timeout."""
    control = start()
    control.spawn("a")
    control.ready("a")
    control.world("a", "z", source="fresh", timeout_s=1.0)
    failed = control.wait(lambda _, message: message["type"] == "failed")
    assert "1 of 2 workers arrived within 1 s" in failed["error"] and failed["missing"] == [1]
    assert control.exits("a") == [75]


def test_an_evaluation_is_made_once_per_epoch(start: Start) -> None:
    """Resizes in the middle of epochs, joiners included, repeat no evaluation; every epoch has one."""
    control = start("--hold-from", "0", "--evaluate", "0", "--epochs", "4")
    control.start("a")
    control.resize("a", "b", "c")
    control.resize("c", "d")
    assert control.exits(*"abcd") == [0] * 4, control.story()
    assert sorted(re.findall(r"evaluated (\d)", control.story())) == ["0", "1", "2", "3"]


def test_a_checkpoint_is_written_during_an_evaluation(start: Start) -> None:
    """Asked to hurry while rank 0 evaluates for seconds: the checkpoint of the last step is on disk before its end."""
    control = start("--hold-evaluation", "--evaluate", "0", "--epochs", "1")
    control.start("a", "b")
    # Both ranks have recorded all 21 steps: the evaluation has begun.
    wait_until(lambda: sum("indices" in line for line in audit.read(control.audit)) == 42)
    for name in "ab":
        control.send(name, {"type": "hurry", "deadline_s": 3})
    saved = control.wait(lambda _, message: message["type"] == "saved")
    assert saved["step"] == 21 and "evaluated" not in control.story()
    assert control.exits("a", "b") == [0, 0]


def test_a_finished_training_is_not_done_again(start: Start, tmp_path: Path) -> None:
    """The last checkpoint is marked as finished; a restart from it trains nothing and exits 0."""
    control = start("--epochs", "1", "--samples", "100")
    control.start("a")
    assert control.exits("a") == [0]
    assert control.all("done")[0]["samples"] == 100
    control.spawn("b")
    control.ready("b")
    control.world("b", source="checkpoint")
    assert control.exits("b") == [0]
    done = {"type": "done", "step": 2, "samples": 100, "epoch": 1, "finished": True, "unsaved": ""}
    assert control.all("done")[1] == done


@pytest.mark.parametrize("how", ["stop", "break"])
def test_a_training_may_end_early(start: Start, tmp_path: Path, how: str) -> None:
    """job.stop(), or leaving both loops: all ranks end after the same step, say done, and exit 0."""
    control = start("--stop", "7", "--leave", how)
    control.start("a", "b")
    assert control.exits("a", "b") == [0, 0], control.story()
    assert [(message["step"], message["finished"]) for message in control.all("done")] == [(7, False)] * 2
    assert result(tmp_path)["global_step"] == 7


def test_a_batch_beyond_the_limit(start: Start) -> None:
    """At the start a batch above max_batch fails the job in one sentence; in a resize the limit is used instead."""
    control = start("--hold-from", "0", "--max-batch", "80")
    control.spawn("a", "b")
    control.ready("a", "b")
    control.world("a", "b", batch=100, source="fresh")
    assert control.exits("a", "b") == [1, 1]
    assert "global batch 100 is outside the accepted range; accepted: 1 to 80" in control.story()
    control.start("c", batch=60)
    assert control.resize("c", batch=100)["batch"] == 80
    assert control.exits("c") == [0]


def test_rank_0_reports_what_it_measures(start: Start) -> None:
    """Reports carry the wire's fields, of the current world, without the first steps."""
    control = start("--pace", "0.02", "--epochs", "40")
    control.start("a", "b")
    report = control.wait(lambda _, message: message["type"] == "report", 30)
    assert report["generation"] == 1 and report["batch"] == 50 and report["accumulation"] == 1
    assert report["micro_batch"] == 25 and report["steps"] > 2
    assert 0.02 < report["step_time_median_s"] <= report["step_time_p90_s"]
    assert 0 < report["samples_per_s"] < 50 / 0.02
    in_epoch = min(1003, (report["step"] - report["epoch"] * 21) * 50)
    assert report["samples"] == report["epoch"] * 1003 + in_epoch
    assert report["samples_left"] == 40 * 1003 - report["samples"]
    control.close()


@cuts
def test_a_sharded_training_equals_an_unresized_one(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """strategy="fsdp" over 1 -> 3 -> 2 -> 3 -> 1 workers, every first member replaced: as one unsharded process."""
    control = start("--hold-from", "0", "--strategy", "fsdp", "--micro", "20")
    control.start("a")
    for names in ("abc", "bc", "cde", "e"):
        control.resize(*names)
    assert control.exits(*"abcde") == [0] * 5, control.story()
    control.checked(samples=1003, epochs=3, worlds=5)
    ours, theirs = result(tmp_path), alone(zygote, tmp_path, "--micro", "20")
    assert difference(ours, theirs) < 1e-12
    assert {key: ours[key] for key in KEPT} == {key: theirs[key] for key in KEPT}


@cuts
@pytest.mark.parametrize("cut", [(), ("--own-shard", "mesh"), ("--tp", "2")])
def test_a_model_on_meta_begins_and_goes_on_as_one_process(
    zygote: Zygote, start: Start, tmp_path: Path, cut: tuple[str, ...]
) -> None:
    """Made without memory: the first values do not depend on the number of ranks, joiners and a restart take over the
    others', and a rank that is alone holds all of it; averaged weights go along."""
    given = ("--meta", "--strategy", "fsdp", "--ema")
    control = start("--hold-from", "0", *given, *cut)
    control.start("a", "b")
    for names in ("abcd", "cd"):
        control.resize(*names)
    control.send("c", {"type": "checkpoint"})
    control.wait(lambda _, message: message["type"] == "saved")
    for name in "cd":
        control.kill(name)
    control.exits(*"cd", hold=True)
    control.start("e", "f", source="checkpoint")
    if "--tp" not in cut:
        control.resize("f")
    assert control.exits("e", "f") == [0, 0], control.story()
    control.checked(samples=1003, epochs=3)
    ours, theirs = result(tmp_path), alone(zygote, tmp_path, *given, *([] if "--tp" in cut else cut))
    assert difference(ours, theirs) < 1e-12
    assert max(float((ours["ema"][key] - value).abs().max()) for key, value in theirs["ema"].items()) < 1e-12


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=cuts)])
def test_averaged_weights_go_along(zygote: Zygote, start: Start, tmp_path: Path, strategy: str) -> None:
    """elastic.Average over 2 -> 3 -> 1 -> 2 workers, a kill of all and a restart from parts: as in one process."""
    control = start("--hold-from", "0", "--ema", "--strategy", strategy)
    control.start("a", "b")
    for names in ("abc", "c", "cd"):
        control.resize(*names)
    saved = len(control.all("saved"))
    control.send("c", {"type": "checkpoint"})
    wait_until(lambda: len(control.all("saved")) > saved, 60, control.story)
    for name in "cd":
        control.kill(name)
    control.exits("c", "d", hold=True)
    control.start("e", "f", "g", source="checkpoint")
    assert control.exits(*"efg") == [0] * 3, control.story()
    ours, theirs = result(tmp_path), alone(zygote, tmp_path, "--ema")
    assert ours["ema"].keys() == theirs["ema"].keys()
    assert max(float((ours["ema"][key] - value).abs().max()) for key, value in theirs["ema"].items()) < 1e-12
    assert difference({"model": ours["ema"]}, ours) > 1e-6


@cuts
def test_a_script_shards_by_itself(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """A shard= of one's own, with options of fully_shard, grows and shrinks on the mesh that it is given; job.save
    writes whole tensors."""
    control = start("--hold-from", "0", "--strategy", "fsdp", "--own-shard", "mesh", "--save")
    control.start("a", "b")
    for names in ("abcd", "bd"):
        control.resize(*names)
    assert control.exits(*"abcd") == [0] * 4, control.story()
    ours = result(tmp_path)
    assert difference(ours, alone(zygote, tmp_path)) < 1e-12
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    assert saved.keys() == ours["model"].keys()
    assert all(torch.equal(value, ours["model"][name]) for name, value in saved.items())


@cuts
def test_a_mesh_of_the_scripts_own_is_refused(start: Start) -> None:
    """It stays as it is at a resize: gloo aborts, and NCCL waits for ever."""
    control = start("--strategy", "fsdp", "--own-shard", "no mesh")
    control.spawn("a", "b")
    control.ready("a", "b")
    control.world("a", "b", source="fresh")
    assert control.exits("a", "b") == [1, 1], control.story()
    said = control.story()
    assert "sharded over a mesh of the script's own; accepted: job.wrap(shard=" in said


@cuts
def test_a_switch_of_shards_has_a_checkpoint_ahead_of_it(start: Start) -> None:
    """Before each switch of a sharded training the parts are on disk, and verify, beside the steps that go on; also
    where ranks have changed places in a world of the same size."""
    control = start("--hold-from", "0", "--strategy", "fsdp", "--epochs", "20")
    control.start("a", "b")
    for names in ("abc", "bc", "cb", "bcd", "d"):
        control.resize(*names)
        switched = control.all("quiesced")[-1]
        kinds = [(m["type"], m.get("generation", 0)) for _, m in control.said]
        (*_, saved) = control.all("saved")
        assert control.said.index(next(e for e in control.said if e[1] == saved)) < kinds.index(
            ("quiesced", switched["generation"])
        )
        assert files.check(Path(saved["path"])).step == saved["step"] <= switched["step"]
    assert "failed" not in control.story()


@cuts
def test_a_sharded_checkpoint_restores_anywhere(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """Saved by three shards, restored by two replicas; an evaluation on shards runs on all of them."""
    first = start("--hold-from", "0", "--strategy", "fsdp", "--evaluate", "0")
    first.start("a", "b", "c")
    first.send("b", {"type": "checkpoint"})
    first.wait(lambda _, message: message["type"] == "saved")
    for name in "abc":
        first.kill(name)
    first.exits("a", "b", "c")
    second = start("--pace", "0", "--evaluate", "0")
    second.generation = first.generation
    second.start("d", "e", source="checkpoint")
    assert second.exits("d", "e") == [0, 0], second.story()
    second.checked(samples=1003, epochs=3)
    assert difference(result(tmp_path), alone(zygote, tmp_path)) < 1e-12


@pytest.mark.parametrize("names", ["a", "abc"])
def test_the_noise_scale_is_that_of_the_data(start: Start, tmp_path: Path, names: str) -> None:
    """At a rate near zero, one rank and three uneven ones measure what per-sample gradients say, within a third."""
    frozen = ["--optimizer", "SGD", "--rate", "1e-12", "--samples", "4003", "--batch", "97", "--epochs", "10"]
    control = start(*frozen, "--pace", "0")
    control.start(*names)
    assert control.exits(*names) == [0] * len(names), control.story()
    trained = result(tmp_path)
    assert trained["noise_scale"] == pytest.approx(noise_scale_of(trained["model"]), rel=1 / 3)


def noise_scale_of(state: dict[str, torch.Tensor]) -> float:
    """tr(Sigma) / |G|^2 from the gradient of each sample of the script's data."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(4003, 8, generator=generator, dtype=torch.float64)
    y = torch.sin(x.sum(1, keepdim=True))
    parameters = {name: value for name, value in state.items() if name != "calls"}

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(x @ parameters["body.0.weight"].T + parameters["body.0.bias"])
        hidden = torch.tanh(hidden @ parameters["body.2.weight"].T + parameters["body.2.bias"])
        return ((hidden @ parameters["head.weight"].T + parameters["head.bias"] - y) ** 2).mean()

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    rows = torch.cat([grad.flatten(1) for grad in grads.values()], dim=1)
    mean = rows.mean(0)
    return float((rows - mean).square().sum(1).mean() / mean.square().sum())


def test_the_same_script_under_torchrun(zygote: Zygote, tmp_path: Path) -> None:
    """Two processes with torchrun's variables train as one does, without a supervisor."""
    environ = dict(os.environ, PYTHONPATH=str(NAMESPACE), OMP_NUM_THREADS="1")
    arguments = ["--samples", "101", "--epochs", "2", "--pace", "0"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    command += [*arguments, str(tmp_path)]
    done = run(command, 200, env=environ)
    assert done.returncode == 0, done.stderr
    assert difference(result(tmp_path), alone(zygote, tmp_path, *arguments)) < 1e-12


def test_sigterm_without_a_supervisor_saves_and_resumes(zygote: Zygote, tmp_path: Path) -> None:
    """One process with a job directory: SIGTERM ends it at a step with a checkpoint, and the next run goes on there."""
    environ = {"SELASTIC_JOB_DIR": str(tmp_path / "job"), "SELASTIC_AUDIT": str(tmp_path / "audit")}
    arguments = ["--hold-from", "0", str(tmp_path)]
    (hold := tmp_path / "hold").touch()
    first, second = f"first-{os.getpid()}", f"second-{os.getpid()}"
    zygote.spawn(first, SCRIPT, arguments, environ, tmp_path / "first.log")
    wait_until(lambda: sum("indices" in line for line in audit.read(tmp_path / "audit")) > 5)
    zygote.kill(first, signal.SIGTERM)
    assert zygote.wait(first) == 128 + signal.SIGTERM
    hold.unlink()
    zygote.spawn(second, SCRIPT, arguments, environ, tmp_path / "second.log")
    assert zygote.wait(second) == 0
    assert "restored from" in (tmp_path / "second.log").read_text()
    assert difference(result(tmp_path), alone(zygote, tmp_path)) < 1e-12


def listeners_of(pid: int) -> list[tuple[str, int]]:
    """Addresses on which a process listens."""
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    own = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    found = [line[1].split(":") for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own]
    return [(socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)) for address, port in found]


def test_nobody_connects_to_a_world_that_is_complete(zygote: Zygote, start: Start) -> None:
    """Neither to gloo's port, where idle connections take a worker's descriptors until it aborts, nor to the store."""
    control = start("--hold-from", "0", "--pace", "0.01")
    control.start("a", "b")
    for name in ("a", "b"):
        places = listeners_of(zygote.pids[control.prefix + name])
        assert places, "gloo does not listen here"
        for place in places:
            with socket.socket() as stranger:
                stranger.setblocking(False)
                assert stranger.connect_ex(place) == errno.EINPROGRESS
                with pytest.raises(OSError, match="not connected"):
                    stranger.getpeername()  # on a loopback it would be, by now
    control.resize("b", "c")
    assert control.exits("a", "b", "c") == [0, 0, 0], control.story()
