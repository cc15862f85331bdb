"""The end of a probe's jobs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from slurm_elastic.daemon.probe import trial
from slurm_elastic.daemon.probe.on_nodes import GPUS
from slurm_elastic.protocol.errors import ElasticError


def test_the_command_that_cancels_is_said_where_slurm_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs are still there: their user has to hear how they are cancelled."""
    scancel = tmp_path / "scancel"
    scancel.write_text("#!/bin/sh\necho 'Unable to contact slurm controller (connect failure)' >&2\nexit 1\n")
    scancel.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(trial, "ENDS_S", 0.2)
    with pytest.raises(ElasticError) as error, trial.Trial("gpu", "gpu:1") as jobs:
        jobs.one_more(1)
    assert re.search(f"to do it: scancel --user={jobs.user} --name={jobs.name}$", str(error.value))


def test_a_second_interrupt_says_the_command_that_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for a Slurm that takes its time, and leaves nobody without a way to end the jobs."""

    def again(*_: str, stdin: str = "") -> str:
        raise KeyboardInterrupt

    with pytest.raises(ElasticError, match="to do it: scancel --user="), trial.Trial("gpu", "gpu:1") as jobs:
        monkeypatch.setattr(jobs, "slurm", again)
        jobs.one_more(1)
        raise KeyboardInterrupt


@pytest.mark.parametrize("visible", ["1,3", ""])
def test_a_job_sees_its_own_gpus_where_devices_are_not_constrained(tmp_path: Path, visible: str) -> None:
    """nvidia-smi would list all of the node's; without it the numbers that Slurm gave."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\n[ -n "$2" ] || exit 1\nfor one in $(echo "$2" | tr , " "); do echo GPU-$one; done\n')
    smi.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": visible, "ROCR_VISIBLE_DEVICES": "7"}
    said = subprocess.run(["sh", "-c", GPUS], env=env, capture_output=True, text=True, check=True).stdout
    assert said.split() == (["GPU-1", "GPU-3"] if visible else ["7"])
