"""Lightning, Transformers and Accelerate scripts resized while they train: as an unresized run, sample by sample."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import audited
import pytest
import stand_in
import torch
from waiting import run, wait_until
from worker_harness import NAMESPACE, Control, Zygote, difference, result
from worker_harness import alone as alone_in

from slurm_elastic.trainer_shim.training import audit
from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS

FOLDER = Path(__file__).parents[3] / "support" / "training_scripts"
SCRIPTS = {name: FOLDER / f"{name}_train.py" for name in ("lightning", "transformers", "accelerate")}
ROUNDING = {"lightning": 1e-12, "transformers": 1e-7, "accelerate": 1e-12}
"""A language model's loss is computed in single precision, whatever the model's is."""
Start = Callable[..., Control]


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    """With SELASTIC_ON_STAND_IN its workers have the stand-in for a GPU and NCCL (tests/nccl_standin)."""
    given = "SELASTIC_ON_STAND_IN" in os.environ
    more = stand_in.environment(here=True) if given else {}
    zygote = Zygote(*(["standin"] if given else []), "lightning.pytorch", "transformers.trainer", "accelerate", **more)
    yield zygote
    zygote.close()


@pytest.fixture
def start(zygote: Zygote, tmp_path: Path) -> Iterator[Start]:
    """start("lightning", "--hold-from", "0") -> the supervisor's side of a training."""
    controls: list[Control] = []

    def make(framework: str, *args: str) -> Control:
        controls.append(Control(zygote, tmp_path, list(args), script=FOLDER / f"{framework}_train.py"))
        return controls[-1]

    yield make
    for control in controls:
        control.close()


@pytest.fixture(scope="module")
def alone(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """What the same script comes to in one process that no supervisor knows of; computed once for each framework."""
    found: dict[str, dict[str, Any]] = {}

    def run(framework: str) -> dict[str, Any]:
        if framework not in found:
            folder, name = tmp_path_factory.mktemp("alone"), f"alone-{time.monotonic_ns()}"
            log = folder / "log"
            zygote.spawn(name, SCRIPTS[framework], ["--pace", "0", str(folder)], {}, log)
            assert zygote.wait(name) == 0, log.read_text()
            found[framework] = torch.load(folder / "final.pt", map_location="cpu", weights_only=False)
        return found[framework]

    return run


def compare(one: dict[str, Any], other: dict[str, Any], rounding: float) -> None:
    """Parameters to the rounding of a sum's order, everything else exactly."""
    models = one["model"], other["model"]
    assert max(float((models[0][key] - models[1][key]).abs().max()) for key in models[0]) < rounding
    rest = [{key: value for key, value in facts.items() if key not in ("model", "val_loss")} for facts in (one, other)]
    assert rest[0] == rest[1]
    assert one["val_loss"] == pytest.approx(other["val_loss"], rel=1e-5)


@pytest.mark.parametrize("framework", SCRIPTS)
def test_a_resized_training_equals_an_unresized_one(
    start: Start, alone: Callable[[str], dict[str, Any]], tmp_path: Path, framework: str
) -> None:
    """1 -> 3 -> 2 -> 3 -> 1 workers, the first ones replaced, slices that do not divide, accumulation: every sample
    once an epoch; parameters, schedule, epochs, steps and evaluations as without a resize (float64)."""
    control = start(framework, "--hold-from", "0", "--micro", "5")
    control.start("a")
    pauses = [control.resize(*names)["pause_s"] for names in ("abc", "bc", "cde", "e")]
    assert control.exits(*"abcde") == [0] * 5, control.story()
    control.checked(samples=403, epochs=3)
    compare(
        torch.load(tmp_path / "final.pt", map_location="cpu", weights_only=False), alone(framework), ROUNDING[framework]
    )
    assert max(pauses) < 20  # who waits in vain for somebody waits for 30


def test_accelerates_trackers_are_those_of_rank_0(start: Start, tmp_path: Path) -> None:
    """1 -> 3 -> 2 workers, rank 0 replaced: who is rank 0 logs, each step once, and with the settings once."""
    control = start("accelerate", "--hold-from", "0")
    control.start("a")
    control.resize("a", "b", "c")
    control.resize("b", "c")
    assert control.exits(*"abc") == [0] * 3, control.story()
    files = [list(map(json.loads, path.read_text().splitlines())) for path in sorted(tmp_path.glob("events-*.jsonl"))]
    assert [len([line for line in lines if "size" in line]) for lines in files] == [1, 0]
    steps = [line["step"] for lines in files for line in lines if "step" in line]
    assert steps == list(
        range(1, torch.load(tmp_path / "final.pt", map_location="cpu", weights_only=False)["steps"] + 1)
    )


@pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")
@pytest.mark.parametrize("framework", ["transformers", "accelerate"])
def test_a_sharded_training_resized_and_killed(
    start: Start, alone: Callable[[str], dict[str, Any]], tmp_path: Path, framework: str
) -> None:
    """elastic(strategy="fsdp"), 2 -> 4 -> 2 workers, then killed and restarted by three: as replicas in one process,
    and what the framework saves is whole."""
    control = start(framework, "--hold-from", "0", "--micro", "5", "--strategy", "fsdp")
    control.start("a", "b")
    for names in ("abcd", "bd"):
        control.resize(*names)
    control.send("b", {"type": "checkpoint"})
    control.wait(lambda _, message: message["type"] == "saved" and message["step"] > 0)
    for name in "bd":
        control.kill(name)
    control.exits("b", "d", hold=True)
    control.start("e", "f", "g", source="checkpoint")
    assert control.exits(*"efg") == [0, 0, 0], control.story()
    control.checked(samples=403, epochs=3)
    compare(
        torch.load(tmp_path / "final.pt", map_location="cpu", weights_only=False), alone(framework), ROUNDING[framework]
    )


@pytest.mark.parametrize(
    ("script", "after", "who"),
    [
        *((script, after, "first last") for script in ("plain", "own_epochs", "accelerate") for after in ("abc", "ab")),
        *((script, "abc", "first") for script in ("own_loop", "lightning", "transformers")),
    ],
)
def test_an_error_in_the_first_step_of_a_world_waits_for_nobody(
    start: Start, script: str, after: str, who: str
) -> None:
    """2 -> 3 and 3 -> 2 workers, and in the first step of that world the last one, or the first, raises: it is said at
    once, and its process ends while the others are in backward. Who has trained with it before goes back where a
    joiner has failed."""
    before = "ab" if after == "abc" else "abc"
    for fails in [{"first": after[0], "last": after[-1]}[word] for word in who.split()]:
        control = start(script, "--hold-from", "0", *(() if script == "own_loop" else ("--samples", "4003")))
        control.spawn(*(name for name in before if name != fails))
        if fails in before:
            control.spawn(fails, RAISE="2")
        control.ready(*before)
        control.running(control.world(*before, source="fresh"))
        for name in set(after) - set(before):
            control.spawn(name, RAISE="2" if name == fails else "")
            control.ready(name)
        control.world(*after)
        said = control.wait(lambda worker, m, name=fails: worker == name and m["type"] == "failed")
        assert said["error"] == "ValueError: this rank fails" and not said.get("survived")
        assert control.exits(fails, hold=True) == [1], control.story()
        assert not [m for worker, m in control.said if m["type"] == "done" and worker == fails]
        for name in before if script in ("plain", "accelerate") and fails not in before else ():
            back = control.wait(lambda worker, m, name=name: worker == name and m["type"] == "failed")
            assert back["survived"], control.story()
        control.close()


@pytest.mark.parametrize("framework", SCRIPTS)
def test_a_killed_training_goes_on_from_its_checkpoint(
    start: Start, alone: Callable[[str], dict[str, Any]], tmp_path: Path, framework: str
) -> None:
    """Both workers killed in the middle of an epoch: three new ones go on from the last checkpoint, the framework's own
    counters and the module's own state with it; a fourth start finds the training finished."""
    control = start(framework, "--pace", "0.01", "--hold-from", "27")
    control.start("a", "b")
    wait_until(lambda: any(line.get("step") == 26 for line in audit.read(control.audit)), 60, control.story)
    control.send("a", {"type": "checkpoint"})
    control.wait(lambda _, message: message["type"] == "saved")
    for name in "ab":
        control.kill(name)
    control.exits("a", "b")
    control.start("c", "d", "e", source="checkpoint")
    assert control.exits(*"cde") == [0, 0, 0], control.story()
    steps = control.checked(samples=403, epochs=3, restarts=1).steps
    compare(
        torch.load(tmp_path / "final.pt", map_location="cpu", weights_only=False), alone(framework), ROUNDING[framework]
    )
    control.spawn("f")
    control.ready("f")
    control.world("f", source="checkpoint")
    assert control.exits("f") == [0], control.story()
    control.checked(samples=403, epochs=3, steps=steps)


def test_a_script_of_diffusers_with_three_lines_changed(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """Grown, killed behind a save_state() of its own and begun again: averaged weights that hooks save, and both counts
    of steps, are those of an undisturbed run; before the loop one worker makes the directory and the trackers."""
    options = ("--samples", "403")
    undisturbed = alone_in(zygote, tmp_path, *options, script=FOLDER / "diffusion_train.py")
    control = start("diffusion", *options, "--hold-from", "27")
    control.spawn("a", SELASTIC_MAIN="1")
    control.ready("a")
    control.running(control.world("a", source="fresh"))
    control.resize("a", "b")
    control.wait(lambda _, message: message["type"] == "saved" and message["step"] >= 10)
    wait_until(lambda: any(line.get("step") == 26 for line in audit.read(control.audit)), 60, control.story)
    for name in "ab":
        control.kill(name)
    control.exits("a", "b", hold=True)
    control.spawn("c", SELASTIC_MAIN="1")
    control.spawn("d")
    control.ready("c", "d")
    control.running(control.world("c", "d", source="checkpoint"))
    assert control.exits("c", "d") == [0, 0], control.story()
    control.checked(samples=403, epochs=3, restarts=1)
    disturbed = result(tmp_path)
    assert difference(disturbed, undisturbed) < 1e-12
    assert difference({"model": disturbed["ema"]}, {"model": undisturbed["ema"]}) < 1e-12
    assert {disturbed[key] for key in ("global_step", "ema_step")} == {63}
    files = [list(map(json.loads, path.read_text().splitlines())) for path in tmp_path.glob("run-*.jsonl")]
    assert {line["step"] for lines in files for line in lines} >= set(range(1, 64))
    assert "save_state(" in (tmp_path / "a.log").read_text()


def test_a_script_of_transformers_without_a_trainer(zygote: Zygote, start: Start, tmp_path: Path) -> None:
    """Grown, killed in its second pass and begun again by two: it ends after max_train_steps, in the middle of the
    third, with the parameters, the rate and the last perplexities of an undisturbed run."""
    undisturbed = alone_in(zygote, tmp_path, script=FOLDER / "clm_train.py")
    control = start("clm", "--hold-from", "27")
    control.spawn("a", SELASTIC_MAIN="1")
    control.ready("a")
    control.running(control.world("a", source="fresh"))
    control.resize("a", "b")
    wait_until(lambda: any(line.get("step") == 26 for line in audit.read(control.audit)), 60, control.story)
    control.send("a", {"type": "checkpoint"})
    control.wait(lambda _, message: message["type"] == "saved" and message["step"] >= 22)
    for name in "ab":
        control.kill(name)
    control.exits("a", "b", hold=True)
    control.spawn("c", SELASTIC_MAIN="1")
    control.spawn("d")
    control.ready("c", "d")
    control.running(control.world("c", "d", source="checkpoint"))
    assert control.exits("c", "d") == [0, 0], control.story()
    disturbed = result(tmp_path)
    assert difference(disturbed, undisturbed) < 1e-12
    assert (disturbed["steps"], disturbed["lr"]) == (undisturbed["steps"], undisturbed["lr"]) == (50, undisturbed["lr"])
    assert list(disturbed["perplexities"]) == [1, 2]
    assert all(undisturbed["perplexities"][epoch] == pytest.approx(v) for epoch, v in disturbed["perplexities"].items())


@pytest.mark.parametrize("framework", SCRIPTS)
def test_the_same_script_under_torchrun(
    zygote: Zygote, alone: Callable[[str], dict[str, Any]], tmp_path: Path, framework: str
) -> None:
    """Three processes with torchrun's variables train as one does: neither library starts a world of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    names = [f"torchrun-{time.monotonic_ns()}-{rank}" for rank in range(3)]
    for rank, name in enumerate(names):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SELASTIC_AUDIT": str(tmp_path / "audit")}
        zygote.spawn(name, SCRIPTS[framework], ["--pace", "0", str(tmp_path)], env, tmp_path / "log")
    assert [zygote.wait(name, 120) for name in names] == [0, 0, 0], (tmp_path / "log").read_text()
    assert audited.check(tmp_path / "audit", samples=403, epochs=3).ok
    # The Trainer shares out its evaluation here, and fills up the last batches: its mean is a little off.
    found = {
        **torch.load(tmp_path / "final.pt", map_location="cpu", weights_only=False),
        "val_loss": alone(framework)["val_loss"],
    }
    compare(found, alone(framework), ROUNDING[framework])


@pytest.mark.parametrize("framework", SCRIPTS)
def test_the_rate_follows_the_batch(start: Start, framework: str) -> None:
    """With another global batch, in place and by a new world, the steps are fewer, the samples the same, and the log
    says batch and rate."""
    control = start(framework, "--hold-from", "0", "--lr", "sqrt")
    control.start("a", "b")
    control.rebatch(80)
    control.resize("a", "b", batch=60)
    assert control.exits("a", "b") == [0, 0], control.story()
    assert control.checked(samples=403, epochs=3).steps < 63
    log = (control.directory / "a.log").read_text()
    assert "batch 20 -> 80 on 2 GPUs" in log and "batch 80 -> 60 on 2 GPUs" in log and "(sqrt)" in log


WRONG = """
import lightning.pytorch as pl, torch, warnings
warnings.filterwarnings("ignore")
from torch.utils.data import DataLoader, TensorDataset
from slurm_elastic.trainer_shim.lightning import ElasticStrategy
from slurm_elastic.protocol.errors import TrainingError
class Module(pl.LightningModule):
    def __init__(self, manual=False):
        super().__init__()
        self.automatic_optimization, self.net, self.skips = manual is not True, torch.nn.Linear(1, 1), manual
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if self.skips == "rest" else None
    def training_step(self, batch, batch_idx):
        return None if self.skips == "step" else self.net(batch[0]).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
data = TensorDataset(torch.ones(8, 1))
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
weighted = torch.utils.data.WeightedRandomSampler([1.0] * 8, 8)
for options, manual, loader in [
    (dict(max_steps=5), False, DataLoader(data)),
    (dict(max_epochs=1, accumulate_grad_batches=2), False, DataLoader(data)),
    (dict(max_epochs=1, limit_train_batches=2), False, DataLoader(data)),
    (dict(max_epochs=1), True, DataLoader(data)),
    (dict(max_epochs=1), "rest", DataLoader(data)),
    (dict(max_epochs=1), "step", DataLoader(data)),
    (dict(max_epochs=1), False, DataLoader(data, sampler=weighted)),
    (dict(max_epochs=1), False, [DataLoader(data), DataLoader(data)]),
]:
    strategy = ElasticStrategy(batch=4)
    try:
        pl.Trainer(strategy=strategy, **options, **quiet).fit(Module(manual), loader)
    except TrainingError as error:
        print(error)
    strategy.job.close()

def tell(make):
    try:
        make()
    except TrainingError as error:
        print(error)

import slurm_elastic.trainer_shim.lightning as adapter
tell(lambda: ElasticStrategy(batch=4, unit={"tp": 2}))
adapter.PRIVATE.append((adapter.call, "_gone"))
tell(lambda: ElasticStrategy(batch=4))

from transformers import Trainer, TrainingArguments
from slurm_elastic.trainer_shim.transformers import elastic
net = torch.nn.Linear(1, 1)
args = dict(output_dir="/tmp", report_to=[], use_cpu=True)
for make in [
    lambda: elastic(net),
    lambda: elastic(Trainer(net, TrainingArguments(**args, max_steps=5))),
    lambda: elastic(Trainer(net, TrainingArguments(**args, num_train_epochs=1.5))),
    lambda: elastic(Trainer(net, TrainingArguments(**args)), unit={"tp": 2}),
    lambda: elastic(Trainer(net, TrainingArguments(**args, num_train_epochs=1))).train("checkpoint-5"),
]:
    tell(make)
import slurm_elastic.trainer_shim as shim
shim.job._current[0].close()

from accelerate import Accelerator, FullyShardedDataParallelPlugin
from slurm_elastic.trainer_shim.accelerate import elastic
again = Accelerator(cpu=True)
again.prepare(torch.nn.Linear(1, 1))
def train(order, *parts):
    accelerator = Accelerator(cpu=True)
    job = elastic(accelerator, batch=4)
    try:
        net = torch.nn.Linear(1, 1)
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        net, *rest = accelerator.prepare(net, *(part(net) if callable(part) else part for part in parts))
        for _ in job.epochs(1):
            for (x,) in rest[1]:
                for word in order:
                    if word == "backward":
                        accelerator.backward(net(x).mean())
                    else:
                        rest[0].step()
    finally:
        job.close()
sgd = lambda net: torch.optim.SGD(net.parameters(), 0.1)
for make in [
    lambda: elastic(net, batch=4),
    lambda: elastic(Accelerator(cpu=True), batch=4, deterministic=True),
    lambda: elastic(again, batch=4),
    lambda: train(["backward", "step"], sgd),
    lambda: train(["backward", "step"], DataLoader(data)),
    lambda: train(["backward"], sgd, DataLoader(data)),
    lambda: train(["step", "backward"], sgd, DataLoader(data)),
    lambda: train([], sgd, DataLoader(data)),
    lambda: elastic(Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2)), batch=4),
]:
    tell(make)
"""


COUNTED = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from slurm_elastic.trainer_shim.accelerate import elastic
accelerator = Accelerator(cpu=True)
job = elastic(accelerator, batch=4)
net = torch.nn.Linear(1, 1)
sgd = torch.optim.SGD(net.parameters(), 0.1)
net, sgd, loader = accelerator.prepare(net, sgd, DataLoader(TensorDataset(torch.ones(18, 1))))
job.begin_at(step=2, samples=8, in_epoch=8)
for _ in job.epochs(2):
    for step, (x,) in enumerate(loader):
        accelerator.backward(net(x).mean())
        sgd.step()
        print(step, end=" ")
"""


def test_enumerate_over_accelerates_loader_goes_on_within_a_pass() -> None:
    """Where a worker joins in it: `step` of the usual loops is that of the others."""
    done = run([sys.executable, "-c", COUNTED], env={"PYTHONPATH": str(NAMESPACE), "PATH": "/usr/bin:/bin"})
    assert done.stdout.split() == list("23401234"), done.stdout + done.stderr


def test_what_cannot_be_done_elastically_is_refused() -> None:
    """Steps of one size, accumulation by the Trainer, part of the data or of an epoch, manual optimization, samplers of
    one's own, two loaders, a framework's checkpoint: one sentence each, before any training."""
    env = {"PYTHONPATH": str(NAMESPACE), "PATH": "/usr/bin:/bin"}
    done = run([sys.executable, "-c", WRONG], env=env)
    said = done.stdout.splitlines()
    named: tuple[str, ...] = ("max_steps", "accumulate_grad_batches", "limit_train_batches", "manual", "returned -1")
    named += (
        "returned None",
        "WeightedRandomSampler",
        "one",
        "unit",
        "_gone, which the adapter uses; it was tested",
    )
    named += ("Linear", "max_steps", "part of an epoch", "elastic(unit=...)", "resume_from_checkpoint")
    named += ("Linear", "elastic(deterministic=...)", "after prepare()", "without the DataLoader", "0 optimizers")
    named += ("step() was not called after", "step() was called before", "for a batch", "fsdp_plugin")
    assert len(said) == len(named), done.stdout + done.stderr
    assert all(word in line for word, line in zip(named, said, strict=True)), said
