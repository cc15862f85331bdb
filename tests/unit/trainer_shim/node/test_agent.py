"""What an agent makes for its workers."""

from __future__ import annotations

import multiprocessing.connection
import shutil
import tempfile
from pathlib import Path

import pytest

from slurm_elastic.trainer_shim.node import agent

NODE = {"SELASTIC_DEVICES": "node"}


@pytest.mark.parametrize("length", [1, 40, 80, 200])
def test_a_workers_sockets_have_a_place_whatever_tmpdir_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Below TMPDIR as long as a socket's path may be; else in /tmp. Python makes a socket there as loaders do."""
    place = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"), "x" * length)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    folder = agent.folder_for_sockets()
    try:
        assert Path(folder).parent == (place if length <= 40 else Path("/tmp"))
        name = tempfile.mktemp(prefix="listener-", dir=folder)
        with multiprocessing.connection.Listener(name, family="AF_UNIX") as listener:
            assert listener.address == name
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(place.parent)


@pytest.mark.parametrize(
    ("amd", "env", "expected", "told"),
    [
        (True, {"ROCR_VISIBLE_DEVICES": "2,3"}, ["2", "3"], {"ROCR_VISIBLE_DEVICES": "3"}),
        (True, {"HIP_VISIBLE_DEVICES": "1,0"}, ["1", "0"], {"HIP_VISIBLE_DEVICES": "0"}),
        (True, {"GPU_DEVICE_ORDINAL": "5,6"}, ["5", "6"], {"GPU_DEVICE_ORDINAL": "6"}),
        (True, {"CUDA_VISIBLE_DEVICES": "4,5"}, ["4", "5"], {"CUDA_VISIBLE_DEVICES": "5"}),
        (True, dict.fromkeys((agent.VISIBLE, *agent.OF_AMD), "2,3"), ["2", "3"], {"ROCR_VISIBLE_DEVICES": "3"}),
        (False, dict.fromkeys((agent.VISIBLE, *agent.OF_AMD), "2,3"), ["2", "3"],
         {**dict.fromkeys(agent.OF_AMD, "2,3"), "CUDA_VISIBLE_DEVICES": "3"}),
        (False, {"CUDA_VISIBLE_DEVICES": "4,5", **NODE}, ["4", "5"],
         {"CUDA_VISIBLE_DEVICES": "4,5", "LOCAL_RANK": "1", **NODE}),
        (True, {**dict.fromkeys((agent.VISIBLE, *agent.OF_AMD), "2,3"), **NODE}, ["2", "3"],
         {"ROCR_VISIBLE_DEVICES": "2,3", "LOCAL_RANK": "1", **NODE}),
        (False, {"CUDA_VISIBLE_DEVICES": "", **NODE}, [""], {"CUDA_VISIBLE_DEVICES": "", **NODE}),
        (False, {"ROCR_VISIBLE_DEVICES": "2,3"}, [""], {"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": ""}),
    ],
)  # fmt: skip
def test_a_worker_is_told_its_gpu_in_the_variable_that_its_driver_heeds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    amd: bool,
    env: dict[str, str],
    expected: list[str],
    told: dict[str, str],
) -> None:
    """Slurm sets one variable, or all. On AMD's GPUs the first that is set counts alone; else CUDA's does. With
    SELASTIC_DEVICES=node it stays as it is, and LOCAL_RANK says which GPU is the worker's."""
    monkeypatch.setattr(agent, "KFD", tmp_path if amd else tmp_path / "none")
    assert agent.gpus({**env, "SLURM_JOB_ID": "1"}) == expected
    own = agent.devices_of_worker(env, expected[-1], str(len(expected) - 1))
    assert {**env, **own} == told
