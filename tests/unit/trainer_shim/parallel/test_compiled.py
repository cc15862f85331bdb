"""What is compiled is compiled before a worker that joins says that it is ready."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_daemon import FakeDaemon
from local_run import Run
from made_worlds import made_world
from torch import nn
from training import on
from worker_harness import NAMESPACE

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.parallel.compiled import Calls, is_compiled
from slurm_elastic.trainer_shim.parallel.ddp import Replicated
from slurm_elastic.trainer_shim.parallel.own_backward import OwnBackward, Replica
from slurm_elastic.trainer_shim.world.process_group import World
from slurm_elastic.trainer_shim.world.rehearsal import quiet_world


class Net(nn.Module):
    """Running statistics, which a rehearsal is not to change, and two kinds of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, about: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"out": self.out(self.norm(x)) * about["scale"] + about["index"].unsqueeze(1)}


@pytest.fixture
def job_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELASTIC_JOB_DIR", str(tmp_path))
    monkeypatch.setenv("SELASTIC_CONTROL", "127.0.0.1:1")
    torch._dynamo.reset()
    return tmp_path


def counted() -> tuple[Callable[..., Any], list[int]]:
    """A backend for torch.compile, and the rows of what it has compiled."""
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        compiled.append(len(tensors[0]))
        return graph.forward

    return backend, compiled


def inputs(rows: int) -> tuple[torch.Tensor, dict[str, Any]]:
    return torch.randn(rows, 4), {"scale": 2, "index": torch.zeros(rows, dtype=torch.int64)}


def replicated(module: nn.Module) -> Any:
    return Replicated(module, {})


def own(module: nn.Module) -> Any:
    strategy = OwnBackward()
    strategy.add(Replica(module, {}, strategy))
    strategy.take(1.0)
    return strategy


@pytest.mark.parametrize("strategy_of", [replicated, own])
def test_a_joiner_compiles_what_the_others_call_before_it_is_ready(
    strategy_of: Callable[[nn.Module], Any], job_dir: Path
) -> None:
    """Shapes alone are kept; buffers, gradients and generators are as before; the real first call compiles nothing."""
    backend, _ = counted()
    running = strategy_of(torch.compile(Net(), backend=backend))
    calls = running._calls if strategy_of is replicated else running.models[0]._calls
    running.connect(World(1, 0, 1))
    calls.expect(8)
    called = running if strategy_of is replicated else running.models[0]
    called(*inputs(8))
    [known] = json.loads((job_dir / "compiled" / "model-0.json").read_text())
    assert known["args"]["list"][0] == {"tensor": [[8, 4], [4, 1], "float32", False]} and known["rows"] == 8

    torch._dynamo.reset()
    backend, compiled = counted()
    net = Net()
    joiner = strategy_of(torch.compile(net, backend=backend))
    before = torch.random.get_rng_state(), {name: value.clone() for name, value in net.state_dict().items()}
    joiner.compile_ahead({8, 6})
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert all(torch.equal(value, before[1][name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    assert len(compiled) >= 2, "both sizes"
    ahead = len(compiled)
    with quiet_world(1, 2) as world:
        joiner.connect(world)
        call = joiner if strategy_of is replicated else joiner.models[0]
        for rows in (8, 6):
            call(*inputs(rows))
        joiner.disconnect()
    assert len(compiled) == ahead


def test_what_is_not_compiled_costs_nothing(job_dir: Path) -> None:
    """No file is written, and nothing is rehearsed; a part that is compiled in place counts."""
    net = Net()
    assert not is_compiled(net)
    calls = Calls(net)
    calls.enter(World(1, 0, 1))
    calls.note(inputs(8), {})
    assert not (job_dir / "compiled").exists() and calls.read() == []
    net.out.compile()
    assert is_compiled(net)


def test_inputs_that_cannot_be_written_down_are_left_to_the_first_step(
    job_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As is a rehearsal that fails: it says so, and the real world does without."""
    backend, _ = counted()
    net = torch.compile(Net(), backend=backend)
    calls = Calls(net)
    calls.enter(World(1, 0, 1))
    calls.note((object(),), {})
    assert calls.read() == []
    calls.enter(World(2, 0, 1))
    calls.note((torch.ones(3, 7),), {})
    replicated(net).compile_ahead(set())
    assert "selastic: not compiled before the first step: " in capfd.readouterr().err


SCRIPT = """
import os, time, torch
import slurm_elastic.trainer_shim as elastic
job = elastic.join(batch=16, lr="none")
data = torch.utils.data.TensorDataset(torch.randn(64000, 4), torch.randint(0, 3, (64000,)))
def backend(graph, inputs):
    print(f"compiles in generation {job.generation}, with {os.environ['TORCHINDUCTOR_CACHE_DIR']}", flush=True)
    return graph.forward
model = torch.compile(torch.nn.Linear(4, 3), backend=backend)
net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
for epoch in job.epochs(1):
    for x, y in job.loader(data):
        job.step(torch.nn.functional.cross_entropy(net(x), y))
        time.sleep(0.02)
"""


def test_a_real_joiner_compiles_before_its_world_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The running world has noted its calls; the joiner compiles them, and the coming ones, and then no more."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # compiling in this process has set it
    with FakeDaemon() as daemon, contextlib.closing(Run(tmp_path, "--nproc", "2", "train.py", daemon=daemon)) as run:
        run.resize(run.base(), on(), steps=0)
        [log] = (run.job_dir / "logs").glob("1.*.log")
        said = [line for line in log.read_text().splitlines() if "compiles in generation" in line]
        assert said and all("generation -1" in line for line in said), said
        assert str(run.job_dir / "compiled") in said[0]


@pytest.mark.parametrize("size", [1, 2])
def test_a_graph_that_would_hold_communication_is_refused(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """By name, and in a world of several ranks alone; outside of a capture, and for a model called by itself, nothing
    is asked."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    capturing: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(capturing))
    with made_world(0, size, "fake") as world:
        model = Replicated(torch.nn.Linear(3, 1), {})
        model.connect(world)
        model(torch.ones(2, 3))
        capturing.append(True)
        if size == 1:
            model(torch.ones(2, 3))
        else:
            with pytest.raises(TrainingError, match=r"job\.wrap\(\) returned was called while a CUDA graph"):
                model(torch.ones(2, 3))
            model.module(torch.ones(2, 3))
        model.disconnect()


def test_a_script_may_compile_the_call_of_what_wrap_gives(tmp_path: Path) -> None:
    """What looks at a model's first calls is left out of what is compiled."""
    script = SCRIPT.replace("64000", "64").replace(
        "torch.compile(torch.nn.Linear(4, 3), backend=backend)", "torch.nn.Linear(4, 3)"
    )
    script = script.replace("(net(x)", "(run(x)").replace(
        "for epoch", "run = torch.compile(net, backend=backend)\nfor epoch"
    )
    (tmp_path / "train.py").write_text(script.replace("os.environ['TORCHINDUCTOR_CACHE_DIR']", "''"))
    env = {**os.environ, "PYTHONPATH": str(NAMESPACE)}
    ran = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0 and "compiles in generation" in ran.stdout, ran.stderr[-2000:]
