"""`selastic sandbox …` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parent
NAMESPACE = SUPPORT.parents[1] / "packaging" / "namespace"


def sandbox_command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end, within two minutes, whatever its exit status."""
    return subprocess.run(
        [sys.executable, "-m", "slurm_elastic.client.main", "sandbox", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(NAMESPACE)},
        check=False,
    )
