"""The jobs of a private Slurm that tests share: all of them cancelled, and every node idle again."""

from __future__ import annotations

from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox


def cancel_all(sandbox: Sandbox) -> None:
    """Cancel every job and wait until all nodes are idle again."""

    def nothing_left() -> bool:
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
            return False
        return not _in_use(sandbox)

    wait_until(nothing_left, 60, lambda: _story(sandbox))


def _in_use(sandbox: Sandbox) -> list[str]:
    return [name for name, state in sandbox.status().nodes.items() if state != "idle"]


def _story(sandbox: Sandbox) -> str:
    """The queue, and of nodes that are not idle what Slurm says and has logged."""
    nodes = _in_use(sandbox)
    shown = sandbox.run(["scontrol", "-o", "show", "node", *nodes]).stdout if nodes else ""
    log = (sandbox.dir / "log" / "slurmctld.log").read_text().splitlines()
    told = [line for line in log if any(name in line for name in nodes)]
    return "\n".join([sandbox.run(["squeue"]).stdout, shown, *told[-60:]])
