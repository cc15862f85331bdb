"""What the supervisor reads from Slurm's own clock, on a real one."""

from __future__ import annotations

import time

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.protocol.text.times import slurms_time
from slurm_elastic.trainer_shim.allocation import commands


def test_slurm_says_its_time(sandbox: Sandbox) -> None:
    """slurmctld is on this host, so its time lies between two looks at the clock here."""
    before = int(time.time())
    found = slurms_time(sandbox.run(commands.show_slurms_time()).stdout)
    assert found is not None and before <= found <= time.time()
