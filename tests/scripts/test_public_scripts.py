"""Training scripts as their authors wrote them, with the diffs of examples/diffs, on a private real Slurm.

The scripts are not part of this repository: they are copied from SELASTIC_SCRIPTS=FOLDER with checkouts by the names
below, or fetched from where they are published. Each is run twice: left alone, and resized up, down, up and down again
and then killed. What the model is given in each step is compared sample by sample, with a record of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import script_data
import seen_samples
import torch
from fake_daemon import FakeDaemon
from kill_targets import workers
from local_run import NAMESPACE, kill, rehearsal
from training_job import ROOT, SLOW, SlurmJob, submit_script
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.protocol.messages import Shape

DIFFS = ROOT / "examples" / "diffs"
TORCHVISION = """
if "slurm_elastic.trainer_shim.node.agent" in sys.orig_argv:
    import torchvision_operators
"""
"""Of a sitecustomize."""
BATCH_SCRIPT = """#!/bin/bash
#SBATCH --nodes=1 --gpus-per-node=1 --ntasks-per-node=1 --time=30
#SBATCH --comment=elastic:gpus=1-8 --open-mode=append
exec selastic run {program} "$@"
"""


@dataclass(frozen=True)
class Script:
    """One public script."""

    checkout: str
    repository: str
    commit: str
    folder: str
    """Of what is copied, within the checkout."""
    program: str
    goal: int
    """Changed lines, added and removed."""
    words: str
    prepare: Callable[[Path], None]
    line: str
    """A line of its progress, as an expression: (iteration), (epoch, batch of the epoch) or (epoch)."""
    progress: tuple[tuple[int, ...], ...]
    """The numbers of all those lines."""
    steps: int
    metric: str
    """A line with what counts in the end: (number, value). Empty: what it saves counts."""
    tolerance: float
    """How far, relatively, a metric may be from that of the run that was left alone; or, where there are seeds, the
    last one from what they give, as a number."""
    seeds: tuple[str, ...] = ()
    """Words of more runs that are left alone: where a model sees only a rank's part of a batch (batch normalisation),
    the same samples do not give the same numbers."""
    check: Callable[[Path, Path], None] = lambda resized, alone: None
    """What else has to be true of the run that was resized and killed, beside the one that was left alone."""
    slower: float = 0.1
    """Seconds that a step is longer than the one before it, so that there is time for all that is done to it."""
    first_call: bool = False
    """Of a step's calls of the model only the first is given data; the others what models have made."""


EXAMPLES, EXAMPLES_COMMIT = "https://github.com/pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8"


def pictures(folder: Path, validation: str = "val") -> None:
    """Three kinds of pictures, to train on and to validate with."""
    script_data.images(folder / "train", classes=3, of_each=40, size=32)
    script_data.images(folder / validation, classes=3, of_each=8, size=32)


def summary_is_whole(resized: Path, _: Path) -> None:
    """timm has one table of epochs with one head and a row for each, and so have the results printed at its end."""
    [summary] = resized.glob("output/train/*/summary.csv")
    head, *rows = summary.read_text().splitlines()
    assert head.startswith("epoch,") and [row.partition(",")[0] for row in rows] == list("012345"), (head, rows)
    result = (resized / "out.txt").read_text().partition("--result\n")[2].partition("\n]")[0] + "]"
    assert sorted(entry["epoch"] for entry in json.loads(result)) == list(range(6))


def models_agree(resized: Path, alone: Path) -> None:
    """The FSDP2 example prints nothing of its training: the whole model that it has written is what counts."""
    found, expected = (torch.load(folder / "model.pt", weights_only=True) for folder in (resized, alone))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


def averages_agree(resized: Path, alone: Path) -> None:
    """What diffusers saves at the end of a pass are the averaged weights, which its hooks of save_state() write."""
    from safetensors.torch import load_file

    found, expected = (
        load_file(folder / "out/unet/diffusion_pytorch_model.safetensors") for folder in (resized, alone)
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-3, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


UNET = {
    "sample_size": 16,
    "layers_per_block": 1,
    "block_out_channels": [8, 16],
    "norm_num_groups": 4,
    "attention_head_dim": 4,
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
}
OWN_NOISE = {
    "torch.randn(clean_images.shape, dtype=weight_dtype, device=clean_images.device)": "torch.sin(1000 * clean_images)",
    """torch.randint(
                0, noise_scheduler.config.num_train_timesteps, (bsz,), device=clean_images.device
            ).long()""": "(clean_images[:, 0, 0, 0] * 1e4).long() % 1000",
}
"""Of train_unconditional: what draws noise for a rank's part, and what makes it of the samples."""


def diffusion(folder: Path) -> None:
    """Pictures, a small model, and noise that does not depend on who draws it."""
    for package in ("diffusers", "datasets", "tensorboard"):
        pytest.importorskip(package)
    script_data.images(folder / "data", classes=3, of_each=32, size=16)
    (folder / "unet").mkdir()
    (folder / "unet/config.json").write_text(json.dumps({"_class_name": "UNet2DModel", **UNET}))
    script = folder / "train_unconditional.py"
    text = script.read_text()
    for drawn, made in OWN_NOISE.items():
        assert text.count(drawn) == 1
        text = text.replace(drawn, made)
    script.write_text(text)


def longer(folder: Path) -> None:
    """The FSDP2 example does ten iterations, whatever it is told: too few to be resized four times in them."""
    script = folder / "example.py"
    text = script.read_text()
    assert text.count("job.next(10)") == 1
    script.write_text(text.replace("job.next(10)", "job.next(60)"))


def pets(folder: Path) -> None:
    """Pictures named as those of the pets, and a create_model() that has no weights to fetch."""
    script_data.named_images(folder / "pets", classes=3, of_each=200, size=48)
    (folder / "timm.py").write_text(script_data.TIMM)


SCRIPTS = {
    "nanogpt": Script(
        checkout="nanoGPT",
        repository="https://github.com/karpathy/nanoGPT",
        commit="3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
        folder=".",
        program="train.py",
        goal=15,
        words="--dataset=toy --device=cpu --dtype=float32 --compile=False --n_layer=1 --n_head=2 --n_embd=32 "
        "--block_size=16 --batch_size=4 --gradient_accumulation_steps=6 --max_iters=100 --eval_interval=10 "
        "--eval_iters=4 --warmup_iters=5 --lr_decay_iters=100 --learning_rate=1e-2",
        prepare=lambda folder: script_data.text(folder / "data/toy"),
        line=r"^iter (\d+): loss",
        progress=tuple((number,) for number in range(101)),
        steps=101,
        metric=r"^step (\d+): train loss \S+, val loss (\S+)",
        tolerance=1e-3,
    ),
    "dcgan": Script(
        checkout="examples",
        repository=EXAMPLES,
        commit=EXAMPLES_COMMIT,
        folder="dcgan",
        program="main.py",
        goal=20,
        words="--dataset=fake --workers=0 --ndf=4 --ngf=4 --nz=10 --niter=3",
        prepare=lambda folder: None,
        line=r"^\[(\d+)/3\]\[(\d+)/16\] Loss_D",
        progress=tuple((epoch, batch) for epoch in range(3) for batch in range(16)),
        steps=48,
        metric=r"^\[(\d+)/3\]\[\d+/16\] Loss_D: \S+ Loss_G: (\S+)",
        tolerance=0,
        seeds=("--manualSeed=2", "--manualSeed=3"),
        first_call=True,
    ),
    "imagenet": Script(
        checkout="examples",
        repository=EXAMPLES,
        commit=EXAMPLES_COMMIT,
        folder="imagenet",
        program="main.py",
        goal=30,
        words="data --arch=shufflenet_v2_x0_5 --epochs=7 --batch-size=16 --lr=0.01 --workers=0 --print-freq=1",
        prepare=lambda folder: pictures(folder / "data"),
        line=r"^Epoch: \[(\d+)\]\[\s*(\d+)/8\]",
        progress=tuple((epoch, batch) for epoch in range(7) for batch in range(1, 9)),
        steps=56,
        metric=r"^ \*\s+(Acc@1) (\S+)",
        tolerance=10,
        seeds=("--seed=2", "--seed=3"),
    ),
    "timm": Script(
        checkout="pytorch-image-models",
        repository="https://github.com/huggingface/pytorch-image-models",
        commit="aa4b5850c1543fa488abf260f18390eda46cf85d",
        folder=".",
        program="train.py",
        goal=30,
        words="data --model=resnet10t --num-classes=3 --img-size=32 --epochs=6 --batch-size=16 --lr=0.01 --workers=1 "
        "--warmup-epochs=0 --no-prefetcher --log-interval=1 --device=cpu",
        prepare=lambda folder: pictures(folder / "data", validation="validation"),
        line=r"^Train: (\d+) \[\s*(\d+)/8 ",
        progress=tuple((epoch, batch) for epoch in range(6) for batch in range(8)),
        steps=48,
        metric=r"^Test: \[\s*(\d+)/1\].*Acc@1:\s+\S+ \(\s*([\d.]+)\)",
        tolerance=10,
        seeds=("--seed=2", "--seed=3"),
        check=summary_is_whole,
    ),
    "fsdp2": Script(
        checkout="examples",
        repository=EXAMPLES,
        commit=EXAMPLES_COMMIT,
        folder="distributed/FSDP2",
        program="example.py",
        goal=20,
        words="--explicit-prefetching",
        prepare=longer,
        line="",
        progress=(),
        steps=60,
        metric="",
        tolerance=0,
        check=models_agree,
    ),
    "accelerate": Script(
        checkout="accelerate",
        repository="https://github.com/huggingface/accelerate",
        commit="16cb6eb80dd9aa8b4df1a63ef57863e455d53b83",
        folder="examples",
        program="cv_example.py",
        goal=16,
        words="--data_dir=pets --cpu",
        prepare=pets,
        line=r"^epoch (\d+): ",
        progress=((0,), (1,), (2,)),
        steps=24,
        metric=r"^epoch (\d+): (\S+)",
        tolerance=1e-3,
        slower=0.4,
    ),
    "diffusers": Script(
        checkout="diffusers",
        repository="https://github.com/huggingface/diffusers",
        commit="58eb52c0803ea9af3abec60841c2a093bdf1f951",
        folder="examples/unconditional_image_generation",
        program="train_unconditional.py",
        goal=8,
        words="--train_data_dir=data --cache_dir=cache --model_config_name_or_path=unet --resolution=16 "
        "--output_dir=out --train_batch_size=12 --num_epochs=5 --eval_batch_size=2 --ddpm_num_inference_steps=4 "
        "--save_images_epochs=2 --save_model_epochs=1 --checkpointing_steps=10 --lr_warmup_steps=5 --use_ema",
        prepare=diffusion,
        line=r"^\d.* Saved state to out/checkpoint-(\d+)$",
        progress=((10,), (20,), (30,), (40,)),
        steps=40,
        metric="",
        tolerance=0,
        check=averages_agree,
        slower=0.4,
    ),
}


@pytest.fixture(params=SCRIPTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def changed_lines(name: str) -> tuple[int, int]:
    """Lines that a diff adds, and that it removes."""
    lines = (DIFFS / f"{name}.diff").read_text().splitlines()
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    return added, sum(line.startswith("-") and not line.startswith("---") for line in lines)


def checkout(script: Script) -> Path:
    """The script's repository at the commit that the diff is for; skips where it cannot be had."""
    given = os.environ.get("SELASTIC_SCRIPTS")
    place = Path(given) / script.checkout if given else ROOT / "build" / "scripts" / script.checkout
    if not given and not (place / script.folder / script.program).exists():
        place.mkdir(parents=True, exist_ok=True)
        for words in (
            ["init", "--quiet"],
            ["fetch", "--quiet", "--depth=1", script.repository, script.commit],
            ["checkout", "--quiet", "FETCH_HEAD"],
        ):
            if problem := refused(words, place):
                pytest.skip(
                    f"{script.repository} cannot be fetched here ({problem}); to run this test, give a folder with a "
                    f"checkout of it named {script.checkout}: make test-scripts SCRIPTS=FOLDER"
                )
    if not (place / script.folder / script.program).exists():
        pytest.skip(f"{place} has no {script.program}; accepted: a checkout of {script.repository}")
    return place / script.folder


def refused(words: list[str], place: Path) -> str:
    """What git has said, where it failed."""
    try:
        done = subprocess.run(["git", *words], cwd=place, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "no answer"
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def copied(script: Script, name: str, folder: Path) -> None:
    """A copy of the script with its diff applied, and its data."""
    shutil.copytree(checkout(script), folder, ignore=shutil.ignore_patterns(".git"), dirs_exist_ok=True)
    subprocess.run(["git", "apply", str(DIFFS / f"{name}.diff")], cwd=folder, check=True)
    script.prepare(folder)
    (folder / "job.sbatch").write_text(BATCH_SCRIPT.format(program=script.program))


def test_a_script_becomes_elastic_by_few_lines(
    empty_sandbox: Sandbox, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 -> 3 -> 1 -> 2 -> 1 GPUs and a killed worker: each step is given the samples of the run that was left alone,
    its progress is printed once, but for what was done again after the kill, and what it measures is the same."""
    script = SCRIPTS[name]
    tmp_path.chmod(0o755)
    added, removed = changed_lines(name)
    with capsys.disabled():
        print(f"\n{name}: {added} lines added, {removed} removed; at most {script.goal}")
    assert added + removed <= script.goal
    alone, resized = tmp_path / "alone", tmp_path / "resized"
    others = [tmp_path / f"seed{number}" for number in range(len(script.seeds))]
    words = dict(zip((alone, resized, *others), ("", "", *script.seeds), strict=True))
    with FakeDaemon() as quiet, FakeDaemon() as daemon:

        def start(folder: Path) -> SlurmJob:
            copied(script, name, folder)
            folder.chmod(0o755)
            record = seen_samples.CUSTOM.format(folder=str(folder / "seen"), first_call=script.first_call)
            if folder != resized:
                (folder / "go").touch()
            arguments = f"{script.words} {words[folder]}".split()
            its = daemon if folder == resized else quiet
            custom = SLOW.replace("0.03", str(script.slower)) + TORCHVISION + record
            return submit_script(empty_sandbox, folder, "job.sbatch", its, *arguments, custom=custom)

        job, left = start(resized), start(alone)
        base = job.base()
        for more in ((Shape(1, 2, 2),), (), (Shape(1, 1, 1),), ()):
            job.resize(base, *more, steps=0)
        assert kill(*workers(empty_sandbox, job.id)), job.story()  # and its loader workers
        out = resized / "out.txt"
        wait_until(lambda: "restored from" in out.read_text(), 120, job.story)
        job.go()
        job.ends()
        left.ends()
        for folder in others:
            start(folder).ends()
    samples = {folder: seen_samples.by_step(folder / "seen", folder / "audit") for folder in (alone, resized)}
    assert len(samples[alone]) == script.steps and samples[resized] == samples[alone], job.story()
    if script.line:
        progress_is_whole(script, job)
    script.check(resized, alone)
    if script.metric:
        metrics_agree(script, alone, resized, others)


def test_a_script_is_rehearsed(tmp_path: Path, name: str) -> None:
    """`selastic rehearse` says of each of them that all held: samples, parameters, schedules, files and lines."""
    script = SCRIPTS[name]
    copied(script, name, tmp_path)
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{TORCHVISION}")
    path = f"{tmp_path}:{NAMESPACE}:{ROOT / 'tests' / 'support'}"
    code, text = rehearsal(tmp_path, script.program, *script.words.split(), PYTHONPATH=path)
    assert code == 0 and "FAIL" not in text, text


def printed(expression: str, text: str) -> list[tuple[str, ...]]:
    return [found if isinstance(found, tuple) else (found,) for found in re.findall(expression, text, re.MULTILINE)]


def progress_is_whole(script: Script, job: SlurmJob) -> None:
    """Every line is there once; those of the steps that a kill has set back are there once before it and once after."""
    before, restored, after = (job.folder / "out.txt").read_text().partition("restored from")
    assert restored, job.story()
    first, second = (
        [script.progress.index(tuple(map(int, found))) for found in printed(script.line, part)]
        for part in (before, after)
    )
    assert first == list(range(len(first))), (first, job.story())
    assert second == list(range(second[0], len(script.progress))), (second, job.story())
    assert second[0] <= len(first), (first[-1], second[0])


def last(script: Script, folder: Path) -> float:
    """The last of what a script has measured."""
    values = printed(script.metric, (folder / "out.txt").read_text())
    return float(values[-1][-1])


def metrics_agree(script: Script, alone: Path, resized: Path, others: list[Path]) -> None:
    """What the script itself measures is what it measures when it is left alone, or within what seeds make of it."""
    expected = {number: float(value) for number, value in printed(script.metric, (alone / "out.txt").read_text())}
    if script.seeds:
        values = [last(script, folder) for folder in (alone, *others)]
        margin = max(max(values) - min(values), script.tolerance)
        assert min(values) - margin <= last(script, resized) <= max(values) + margin, (values, script)
        return
    for number, value in printed(script.metric, (resized / "out.txt").read_text()):
        assert float(value) == pytest.approx(expected[number], rel=script.tolerance), (number, script)
