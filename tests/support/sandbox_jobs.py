"""The jobs of a private Slurm that tests share: all of them cancelled, and every node idle again."""

from __future__ import annotations

import time

from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox

LEAKED_S = 20.0
"""A slurmctld that was killed may count GPUs of a node as held for as long as it lives, though no job has them."""


def cancel_all(sandbox: Sandbox) -> None:
    """Cancel every job and wait until all nodes are idle again."""
    empty_since: float | None = None
    recounted = False

    def nothing_left() -> bool:
        nonlocal empty_since, recounted
        # %F: of an array its own id, since scancel does not know the raw ids of its tasks.
        jobs = sorted(set(sandbox.run(["squeue", "-h", "-o", "%F"]).stdout.split()))
        if jobs:
            # A task that ignores SIGTERM would cost each test the whole KillWait. KILL is no way around it: slurmctld
            # takes it for an ordinary cancellation. ALRM ends what does not expect it, without a core file.
            # Of those that run only: over one that waits scancel itself would wait, for a minute.
            running = sandbox.run(["squeue", "-h", "-t", "R", "-o", "%F"]).stdout.split()
            if running:
                sandbox.run(["scancel", "--signal=ALRM", "--full", *sorted(set(running))])
            sandbox.run(["scancel", *jobs])
            empty_since = None
            return False
        left = {name: state for name, state in sandbox.status().nodes.items() if state != "idle"}
        empty_since = empty_since or time.monotonic()
        if left and not recounted and time.monotonic() - empty_since > LEAKED_S:
            recounted = True
            shown = sandbox.run(["scontrol", "-o", "show", "node", *left]).stdout
            print(f"nodes in use without a job, Slurm is to count anew: {left}\n{shown}")
            sandbox.run(["scontrol", "reconfigure"])
        return not left

    wait_until(nothing_left, 60, lambda: sandbox.run(["squeue"]).stdout + sandbox.run(["sinfo", "-N"]).stdout)
