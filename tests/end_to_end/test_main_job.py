"""The main job, as `make demo` runs it, with selasticd killed in the middle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "demo.py"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kill", ["restart", "forever"])
def test_a_killed_daemon_changes_nothing_in_the_outcome(kill: str) -> None:
    """SIGKILL of selasticd midway: every job ends COMPLETED, every sample seen once, nothing left in Slurm.

    Restarted, it goes on to make room for an ordinary job and to take it back; not restarted, training goes on.
    """
    done = subprocess.run([sys.executable, DEMO, "--kill-daemon", kill], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "all checks hold" in done.stdout
    assert done.stdout.count("in each every sample exactly once") == 3
    assert ("rigid" in done.stdout) == (kill == "restart")
