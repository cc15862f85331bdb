"""join(combine="adasum") in real worlds: resized, killed, beside a scaler, and what it is refused with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from local_jobs import DATA, loss_of, refused, wrapped
from worker_harness import SCRIPT, Control, Zygote, alone, difference, result

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.adapters.loop import check_options

ADASUM = SCRIPT.with_name("adasum_train.py")


@pytest.fixture
def controls(zygote: Zygote, tmp_path: Path) -> Iterator[list[Control]]:
    made: list[Control] = []
    yield made
    for control in made:
        control.close()


def begin(controls: list[Control], zygote: Zygote, folder: Path, *arguments: str) -> Control:
    folder.mkdir(exist_ok=True)
    controls.append(Control(zygote, folder, list(arguments), ADASUM))
    return controls[-1]


def enter(control: Control, *names: str, source: str = "survivor") -> None:
    """A world of these workers, each on a node of its own."""
    for name in names:
        if name not in control._connections:
            control.spawn(name, SELASTIC_AGENT_NODE=name)
            control.ready(name)
    control.running(control.world(*names, source=source))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_resizes_and_a_kill(controls: list[Control], zygote: Zygote, tmp_path: Path, optimizer: str) -> None:
    """From two ranks to three, to one, to two that begin anew after a kill; in micro batches, with gradients clipped
    and a last step of two samples: each step is the one by hand, of the ranks that had samples. One rank's is the plain
    optimizer's."""
    arguments = ["--optimizer", optimizer, "--micro", "2", "--epochs", "12", "--hold-from", "0", "--pace", "0.001"]
    control = begin(controls, zygote, tmp_path, *arguments)
    enter(control, "a", "b", source="fresh")
    enter(control, "a", "b", "c")
    control.send("a", {"type": "checkpoint"})
    control.wait(lambda _, message: message["type"] == "saved")
    control.kill("b")
    assert control.exits("b", hold=True) == [-9]
    assert 0 not in control.exits("a", "c", hold=True)
    enter(control, "d", source="checkpoint")
    enter(control, "d", "e", "f")
    assert control.exits("d", "e", "f") == [0] * 3, control.story()
    control.checked(samples=41, epochs=12, restarts=1)
    replayed = alone(zygote, tmp_path, *arguments, "--replay", script=ADASUM)
    assert difference(result(tmp_path), replayed) < 1e-12


def test_the_noise_scale_is_that_of_the_mean(controls: list[Control], zygote: Zygote, tmp_path: Path) -> None:
    """Of parameters that do not move, measured with a gradient scaler beside it; what is stepped with has no say."""
    runs = {"mean": "sgd", "adasum": "sgd", "by_steps": "adamw"}
    started = []
    for name, optimizer in runs.items():
        combine = "mean" if name == "mean" else "adasum"
        more = [
            "--combine",
            combine,
            "--optimizer",
            optimizer,
            "--rate",
            "0",
            "--epochs",
            "6",
            "--pace",
            "0",
            "--scaler",
        ]
        started.append(begin(controls, zygote, tmp_path / name, *more))
        enter(started[-1], *"abc", source="fresh")
    for control in started:
        assert control.exits(*"abc") == [0] * 3, control.story()
    expected, *measured = (torch.tensor(result(tmp_path / name)["noise"], dtype=torch.float64) for name in runs)
    assert expected[2] > 0.05
    for found in measured:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


def test_one_process_trains_as_without_it(made: list[elastic.Job]) -> None:
    """To the last bit; and a larger batch leaves the rate as it is."""
    found = []
    for combine in ("mean", "adasum"):
        torch.manual_seed(0)
        job, net, _ = wrapped(made, combine=combine, lr="none")
        for _ in job.epochs(2):
            for batch in job.loader(DATA):
                job.step(loss_of(net, batch))
        found.append(net.module.weight.detach().clone())
        job.close()
    assert torch.equal(*found)
    job, *_ = wrapped(made, combine="adasum")
    assert job._tuning.rule == "none"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lr": "linear"}, r"join\(lr='linear'\) does not go with combine='adasum', .*; accepted: lr='none'"),
        ({"lr": "adascale"}, r"join\(lr='adascale'\) does not go with combine='adasum'; accepted: combine='mean'"),
        ({"deterministic": True}, r"join\(deterministic=...\) does not go with combine='adasum'"),
        ({"shares": "speed"}, r"join\(combine=..., shares=...\) does not go with job.wrap\(strategy='ddp'\)"),
        ({"unit": {"tp": 1}}, r"join\(combine=..., unit=...\) does not go with job.wrap\(strategy='ddp'\)"),
    ],
)
def test_what_does_not_go_with_it(made: list[elastic.Job], options: dict[str, object], said: str) -> None:
    """One sentence before training."""
    with refused(said):
        wrapped(made, combine="adasum", **options)


def test_models_and_calls_that_do_not_go_with_it(made: list[elastic.Job]) -> None:
    """Each with one sentence that says what does."""
    job = elastic.join(batch=8, combine="adasum")
    made.append(job)
    table = torch.nn.Embedding(4, 2, sparse=True)
    with refused(r"combine='adasum'\) does not go with '0', of sparse gradients; accepted: combine='mean'"):
        job.wrap(torch.nn.Sequential(table), torch.optim.SGD(table.parameters(), lr=1))
    model = torch.nn.ParameterList([torch.zeros(2, dtype=torch.complex64)])
    with refused("does not go with '0', of complex numbers"):
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=1))
    model = torch.nn.Linear(2, 2)
    with refused(
        r"join\(combine=...\) does not go with job.wrap\(strategy='fsdp'\); accepted: job.wrap\(strategy='ddp'"
    ):
        job.wrap(model, torch.optim.SGD(model.parameters(), lr=1), strategy="fsdp")
    with refused(r"join\(combine=...\) does not go with job.replicate\(\)"):
        job.replicate(model)


def test_the_request_says_it(made: list[elastic.Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """combine= of the elastic request counts where the script says nothing; another one of the script's is refused, and
    so is a framework's loop."""
    monkeypatch.setenv("SELASTIC_COMBINE", "adasum")
    with refused(r"join\(combine='mean'\) does not fit the elastic request's combine=adasum"):
        elastic.join(batch=8, combine="mean")
    with refused(r"elastic\(combine=...\) is not possible"):
        check_options({}, "elastic")
    job, *_ = wrapped(made)
    assert job._tuning.combine == "adasum"
