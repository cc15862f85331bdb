"""The settings that a probe leads to."""

from __future__ import annotations

from typing import Any

import pytest
import tomli

from slurm_elastic.daemon.probe.command import settings_to_write
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.protocol.messages import REFUSED, WORKS, Tried


@pytest.mark.parametrize(
    ("tried", "settings", "said"),
    [
        ([Tried("salloc", WORKS, "", 0.1), Tried("sbatch", WORKS, "", 1), Tried("epilog", WORKS, "", 0.2)], {}, ""),
        ([Tried("salloc", REFUSED, "no"), Tried("sbatch", WORKS, "", 1.0)], {"companion_by": "sbatch"}, ""),
        ([Tried("salloc", WORKS, "", 60.0)], {"companion_wait_s": 120}, "granted after 60 s"),
        ([Tried("epilog", WORKS, "", 12.0)], {"release_by": "job"}, "if the epilog (12 s) cleans"),
        ([Tried("epilog", WORKS, "", 200.0)], {"release_by": "job", "release_s": 400}, "200 s after a job"),
        ([Tried("shrink", REFUSED, "fixed")], {"release_by": "job"}, "via=companion+component"),
        ([Tried(name, REFUSED, "no") for name in ("salloc", "sbatch")], {}, "via=shrink+component"),
        ([Tried("rights", REFUSED, "may not")], {}, "coordinator or an operator"),
        ([Tried("gpus", REFUSED, "both 0")], {}, "# two jobs on one node get the same GPUs"),
        ([Tried("network", REFUSED, "n2 does not reach n1")], {}, "# nodes do not reach each other"),
    ],
)
def test_settings(tried: list[Tried], settings: dict[str, Any], said: str) -> None:
    """Lines that selasticd takes, each with its reason."""
    text = "\n".join(settings_to_write(tried))
    assert tomli.loads(text) == ({"resizes": settings} if settings else {}) and said in text
    Settings(**settings)
