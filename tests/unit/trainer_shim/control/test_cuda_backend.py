"""SELASTIC_CUDA_BACKEND, SELASTIC_DEVICES: read in one place, refused before anything starts, and there in agents and
workers."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
import torch

from slurm_elastic.protocol.errors import ConfigError
from slurm_elastic.trainer_shim.allocation import start
from slurm_elastic.trainer_shim.control import cuda_backend
from slurm_elastic.trainer_shim.supervisor import cli
from slurm_elastic.trainer_shim.world import process_group


@pytest.mark.parametrize(("value", "expected"), [(None, "nccl"), ("", "nccl"), ("nccl", "nccl"), ("gloo", "gloo")])
def test_cuda_tensors_travel_by_what_was_chosen(monkeypatch: pytest.MonkeyPatch, value: str, expected: str) -> None:
    """NCCL where nothing is said; without GPUs there is gloo alone, whatever is said."""
    monkeypatch.setattr(os, "environ", {} if value is None else {cuda_backend.NAME: value})
    assert process_group.backend() == "gloo" or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert process_group.backend() == f"cpu:gloo,cuda:{expected}"


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        ({"CUDA_VISIBLE_DEVICES": "MIG-5c0f,MIG-77aa"}, "MIG"),
        ({"SLURM_SHARDS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0"}, "shards"),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50", "CUDA_VISIBLE_DEVICES": "0"}, "MPS"),
        ({"SLURM_SHARDS_ON_NODE": "0", "CUDA_VISIBLE_DEVICES": "0,1"}, ""),
        ({}, ""),
    ],
)
def test_workers_with_parts_of_gpus_talk_by_gloo_and_this_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], env: dict[str, str], parts: str
) -> None:
    """NCCL refuses two ranks on one GPU; all workers of the job get the choice. What is set counts, and is not said."""
    script = tmp_path / "train.py"
    script.touch()
    for given, backend, told in ((None, "gloo" if parts else "nccl", bool(parts)), ("nccl", "nccl", False)):
        whole = {"PATH": "/bin", **env, **({cuda_backend.NAME: given} if given else {})}
        assert start._agent_env(whole, in_slurm=True)[cuda_backend.NAME] == backend
        monkeypatch.setattr(os, "environ", dict(whole))
        parser = argparse.ArgumentParser()
        cli.add_arguments(parser)
        assert cli.run(parser.parse_args(["--dry-run", "--job-dir", str(tmp_path / "job"), str(script)])) == 0
        said = f"selastic: CUDA tensors travel by gloo, as this job holds parts of GPUs ({parts})"
        assert capsys.readouterr().err.startswith(said) == told


@pytest.mark.parametrize("value", ["mpi", "NCCL", "gloo,nccl", " "])
def test_another_value_is_refused_with_its_name(value: str) -> None:
    """One sentence: the variable, the value, what is accepted; also where it would decide how devices are shared."""
    with pytest.raises(ConfigError, match=f"^SELASTIC_CUDA_BACKEND={value} is not accepted; accepted: nccl, gloo$"):
        start._agent_env({cuda_backend.NAME: value}, in_slurm=False)


@pytest.mark.parametrize("in_slurm", [True, False])
def test_agents_are_told(in_slurm: bool) -> None:
    """Other SELASTIC_ variables of the user's shell belong to another run and are dropped; this one is not."""
    env = start._agent_env({cuda_backend.NAME: "gloo", "SELASTIC_WORKER": "w1"}, in_slurm)
    assert env[cuda_backend.NAME] == "gloo"
    assert "SELASTIC_WORKER" not in env
    assert env[cuda_backend.DEVICES] == "own"


NODE = {cuda_backend.DEVICES: "node"}


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({cuda_backend.DEVICES: "all"}, "SELASTIC_DEVICES=all is not accepted; accepted: own, node"),
        ({**NODE, cuda_backend.NAME: "gloo"}, "SELASTIC_DEVICES=node is not accepted where workers hold parts of GPUs"),
        ({**NODE, "CUDA_VISIBLE_DEVICES": "MIG-5c0f,MIG-77aa"}, "SELASTIC_DEVICES=node is not accepted where workers"),
    ],
)
def test_all_gpus_of_a_node_are_seen_where_each_is_one_workers(env: dict[str, str], why: str) -> None:
    """Else one sentence, before anything starts."""
    assert start._agent_env(NODE, in_slurm=True)[cuda_backend.DEVICES] == "node"
    with pytest.raises(ConfigError, match=f"^{why}"):
        start._agent_env(env, in_slurm=True)


@pytest.mark.parametrize(
    ("env", "number"),
    [
        ({"SELASTIC_CONTROL": "n1:9", "LOCAL_RANK": "3"}, 0),
        ({"SELASTIC_CONTROL": "n1:9", "LOCAL_RANK": "3", **NODE}, 3),
        ({"SELASTIC_CONTROL": "n1:9", **NODE}, 0),
        ({"LOCAL_RANK": "2", "RANK": "2"}, 2),
        ({}, 0),
    ],
)
def test_a_worker_computes_on_its_own_gpu(env: dict[str, str], number: int) -> None:
    """The only one that it sees, or that of LOCAL_RANK, as under torchrun."""
    assert cuda_backend.own_device(env) == number
