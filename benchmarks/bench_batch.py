"""Loss and accuracy under ten random changes of the global batch, with each learning-rate rule, beside a fixed batch.

    python benchmarks/bench_batch.py [--quick] [--seeds 5] [--tasks digits,chars] [--changes mixed,up,down] [--uncapped]

Real data: scikit-learn's handwritten digits (SGD with momentum; digits-adam: AdamW), breast cancer and diabetes tables
(cancer, cancer-adam, diabetes, diabetes-adam: a perceptron), and the text of Python's standard library (AdamW, a small
transformer), with the nets and the rates of examples/demo; a fifth of each is held out. A run changes its batch ten
times, at random moments, to random sizes from half to eight times the batch that the rate was tuned for; the same ones
for every rule. --changes up: once, after a fifth, to eight times it; down: to a quarter. --uncapped: no noise scale is
measured, and so none caps a rule (adascale, which needs one, is left out). The shim's own loop, rules, ramps and noise
scale decide, in one process: what a batch does to the result does not depend on how many ranks share it (the tests
prove that), so none are started. Each number is the mean over the seeds of the held-out loss at the end, +- its
standard deviation; `to fixed` is the paired difference.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import _setup  # noqa: F401
import torch
from torch import nn
from torch.utils.data import Dataset, Subset

import slurm_elastic.trainer_shim as elastic

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "demo"))

from train_chars import CharTransformer, Windows
from train_digits import digits

RESIZES = 10
SMALLEST, LARGEST = 0.5, 8.0
"""Batches that are drawn, in units of the batch that the rate was tuned for; logarithmically."""
RATES = {"digits": (0.05, 0.01), "cancer": (0.01, 0.003), "diabetes": (0.003, 0.001)}
"""Of SGD, and of AdamW."""
LENGTH = 24


@dataclass(frozen=True)
class Task:
    """What is trained, and how: size of the data, the batch that the rate was tuned for."""

    name: str
    data: Dataset[tuple[torch.Tensor, torch.Tensor]]
    size: int
    model: Callable[[], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    base: int
    epochs: int


@dataclass(frozen=True)
class Outcome:
    """On what was held out."""

    loss: float
    accuracy: float
    steps: int
    worst_rise: float
    """The largest rise of the training loss's moving average within 40 base batches after a change."""


def digits_task(epochs: int, adam: bool = False) -> Task:
    """The convolutional net of the demo."""

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip

    data = digits()
    name = "digits, AdamW" if adam else "digits, SGD"
    return Task(name, data, len(data), model, optimizer("digits", adam), 64, epochs)


def table_task(name: str, adam: bool, epochs: int) -> Task:
    """A perceptron on one of scikit-learn's tables, standardised: classes, or a number (mean square error)."""
    from sklearn import datasets

    table = datasets.load_breast_cancer() if name == "cancer" else datasets.load_diabetes()
    x = torch.tensor(table.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(table.target)
    if name == "diabetes":
        y = ((y - y.mean()) / y.std()).float().unsqueeze(1)
    outputs = 1 if name == "diabetes" else 2

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, outputs))

    data = torch.utils.data.TensorDataset(x, y)
    return Task(f"{name}, {'AdamW' if adam else 'SGD'}", data, len(data), model, optimizer(name, adam), 16, epochs)


def optimizer(name: str, adam: bool) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """AdamW, or SGD with momentum, at the rate that did best, of three, at the fixed batch."""
    rate = RATES[name][adam]
    if adam:
        return lambda net: torch.optim.AdamW(net.parameters(), lr=rate)
    return lambda net: torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)


def chars_task(samples: int, epochs: int) -> Task:
    """The character transformer of the demo."""
    make = lambda net: torch.optim.AdamW(net.parameters(), lr=2e-3)  # noqa: E731
    return Task("chars, AdamW", Windows(samples, LENGTH), samples, lambda: CharTransformer(LENGTH), make, 64, epochs)


def loss_of(net: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return error_of(net(x), y)


def error_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cross entropy for classes, mean square error for numbers."""
    if y.is_floating_point():
        return nn.functional.mse_loss(out, y)
    return nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())


def evaluate(model: nn.Module, held_out: Dataset[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, float]:
    """Mean loss, share of right answers."""
    x, y = next(iter(torch.utils.data.DataLoader(held_out, batch_size=10_000)))
    with torch.no_grad():
        out = model(x)
        right = 0.0 if y.is_floating_point() else float((out.argmax(dim=-1) == y).float().mean())
        return float(error_of(out, y)), right


def changes(task: Task, samples: int, seed: int, kind: str) -> list[tuple[int, int]]:
    """(samples trained, batch from there on), in order."""
    if kind != "mixed":
        return [(task.epochs * samples // 5, task.base * 8 if kind == "up" else task.base // 4)]
    chance = random.Random(seed)
    moments = sorted(chance.sample(range(1, task.epochs * samples), RESIZES))
    sizes = [round(task.base * math.exp(chance.uniform(math.log(SMALLEST), math.log(LARGEST)))) for _ in range(RESIZES)]
    return list(zip(moments, sizes, strict=True))


def rebatch(job: elastic.Job, batch: int) -> None:
    """What a resize does to the batch, without another world."""
    session = job._session
    session.membership.batch = batch
    session._set_batch()
    session.reporting.entered(session.slicing())
    if session.feed is not None:
        session.feed.turn(session.state.progress.cursor, session.slicing())


def train(task: Task, rule: str, seed: int, plan: list[tuple[int, int]], capped: bool = True) -> Outcome:
    """One run; an empty plan is the fixed batch."""
    cut = random.Random(-seed).sample(range(task.size), task.size)
    fifth = task.size // 5
    training, held_out = Subset(task.data, cut[fifth:]), Subset(task.data, cut[:fifth])
    torch.manual_seed(seed)
    job = elastic.join(batch=task.base, lr=rule, seed=seed)
    torch.manual_seed(seed)
    model = task.model()
    optimizer = task.optimizer(model)
    horizon = job.steps(epochs=task.epochs, samples=len(training))
    net = job.wrap(model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=horizon))
    job._session.tuning.wants_noise = capped  # as under a supervisor; here it is a single rank that has to measure it
    job._session.model().measures = capped
    left, average, seen, rise = list(plan), 0.0, [], 0.0
    for _ in job.epochs(task.epochs):
        for x, y in job.loader(training):
            loss = loss_of(net, x, y)
            now = loss.item()
            average = 0.9 * average + 0.1 * now if average else now
            seen = [(at, before) for at, before in seen if job.samples - at < 40 * task.base]
            rise = max([rise, *(average - before for _, before in seen)])
            if job.step(loss) and left and job.samples >= left[0][0]:
                rebatch(job, left.pop(0)[1])
                seen.append((job.samples, average))
    steps = job.global_step
    job.close()
    model.eval()
    return Outcome(*evaluate(model, held_out), steps, rise)


def told(values: list[float], digits: int = 3) -> str:
    """Mean and standard deviation."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} +- {spread:.{digits}f}"


def bench(task: Task, seeds: int, kind: str, capped: bool) -> None:
    """The table of one task."""
    samples = task.size - task.size // 5
    print(
        f"{task.name}: batch {task.base}, {task.epochs} epochs of {samples} samples, {seeds} seeds, changes {kind}"
        + ("" if capped else ", without a noise scale")
    )
    print(f"  {'rule':12}{'loss':20}{'to fixed':20}{'accuracy':20}{'steps':9}{'worst rise':12}CPU s")
    fixed: list[Outcome] = []
    for rule in ("fixed", "none", "linear", "sqrt", "sde", "adascale", "auto"):
        if rule == "adascale" and not capped:
            continue
        begun = time.process_time()
        if rule == "fixed":
            found = [train(task, "none", seed, []) for seed in range(seeds)]
        else:
            found = [train(task, rule, seed, changes(task, samples, seed, kind), capped) for seed in range(seeds)]
        fixed = fixed or found
        difference = [own.loss - other.loss for own, other in zip(found, fixed, strict=True)]
        print(
            f"  {rule:12}{told([one.loss for one in found]):20}{told(difference):20}"
            f"{told([one.accuracy for one in found]):20}{statistics.mean(one.steps for one in found):<9.0f}"
            f"{max(one.worst_rise for one in found):<12.3f}{time.process_time() - begun:.0f}",
            flush=True,
        )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", default="digits,chars")
    parser.add_argument("--changes", default="mixed", metavar="mixed,up,down")
    parser.add_argument("--uncapped", action="store_true", help="without a noise scale")
    parser.add_argument("--quick", action="store_true", help="two seeds, few epochs")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    seeds = 2 if args.quick else args.seeds
    make: dict[str, Callable[[], Task]] = {
        "digits": lambda: digits_task(4 if args.quick else 20),
        "digits-adam": lambda: digits_task(4 if args.quick else 20, adam=True),
        "chars": lambda: chars_task(1024, 3) if args.quick else chars_task(4096, 12),
    }
    for name in ("cancer", "diabetes"):
        for adam in (False, True):
            make[name + "-adam" * adam] = functools.partial(table_task, name, adam, 5 if args.quick else 20)
    for name in args.tasks.split(","):
        for kind in args.changes.split(","):
            bench(make[name](), seeds, kind, capped=not args.uncapped)
    return 0


if __name__ == "__main__":
    sys.exit(main())
