"""The end of a probe's jobs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_elastic.daemon.probe import trial
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
