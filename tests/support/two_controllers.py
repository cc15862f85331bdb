"""A private Slurm of which slurmctld runs on two hosts: n3's is the primary, head's takes over from it.

Jobs belong in the partition `train`, which is n1 and n2.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from sandbox_of_hosts.sandbox import HostsSandbox, HostsSpec
from waiting import wait_until

PRIMARY = "n3"
STANDS_BY_S = 30.0
"""How long the backup may take to hand over."""
SPEC = HostsSpec(
    nodes=3,
    hosts="full",
    primary=PRIMARY,
    with_accounting=False,
    extra_slurm_conf=("SlurmctldTimeout=8", "PartitionName=train Nodes=n[1-2] State=UP"),
)


class Controllers:
    """Takes the primary away, and brings it back."""

    def __init__(self, hosts: HostsSandbox) -> None:
        self.hosts = hosts

    def lose(self, what: str = "process") -> None:
        """SIGKILL the primary, once it has saved what it knows; or take its whole host off the network, and with it
        what answers that nobody listens there: who connects to it waits."""
        self._wait_for_saved_state()
        if what == "host":
            self.hosts.daemons.stop(f"host-{PRIMARY}")
            return
        os.kill(self.hosts.daemons.pid(f"slurmctld-{PRIMARY}"), signal.SIGKILL)
        wait_until(lambda: not self.hosts.daemons.pid(f"slurmctld-{PRIMARY}"), 30)

    def wait_for_backup(self) -> None:
        """Until head's slurmctld has taken over: squeue asks again for so long."""
        wait_until(lambda: self.hosts.run(["squeue"]).returncode == 0, 120, self.log)

    def restore(self) -> None:
        """The primary is back, and in charge; the backup stands by."""
        if not self.hosts.daemons.pid(f"host-{PRIMARY}"):
            self.hosts.start_host(PRIMARY)
        self.hosts.start_daemon(f"slurmctld-{PRIMARY}")
        wait_until(self._knows_gpus, 60, self.log)
        try:
            wait_until(self._stands_by, STANDS_BY_S, self.log)
        except AssertionError:  # Slurm's own: it was seen to save its state, hand over, and hang
            os.kill(self.hosts.daemons.pid("slurmctld"), signal.SIGKILL)
            wait_until(lambda: not self.hosts.daemons.pid("slurmctld"), 30)
            self.hosts.start_daemon("slurmctld")
            wait_until(self._stands_by, STANDS_BY_S, self.log)

    def _stands_by(self) -> bool:
        """Whether the backup is done with handing over, or has never been in charge."""
        said = (self.hosts.dir / "log" / "slurmctld.log").read_text()
        return said.rfind("slurmctld running in background mode") > said.rfind("Performing RPC: REQUEST_CONTROL")

    def _knows_gpus(self) -> bool:
        """Until nodes have registered, Slurm grants a job that names no type of GPU none of those it asks for."""
        shown = self.hosts.run(["scontrol", "-o", "show", "node"]).stdout
        return "SlurmdStartTime=None" not in shown

    def log(self) -> str:
        files = sorted(self.hosts.dir.glob("log/slurmctld*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text()[-3000:]}" for file in files)

    def _wait_for_saved_state(self) -> None:
        """What slurmctld has not saved yet, no backup can know; it saves some seconds after a change."""
        began, state = time.time(), self.hosts.dir / "state" / "job_state"
        answer = self.hosts.run(["sbatch", "--hold", "--output=/dev/null", "--wrap", "true"])
        assert answer.returncode == 0, answer.stderr

        def saved() -> bool:
            with contextlib.suppress(FileNotFoundError):
                return state.stat().st_mtime > began
            return False

        wait_until(saved, 60)


@contextlib.contextmanager
def two_controllers() -> Iterator[Controllers]:
    """Up; this thread has the network of head's host, where a selasticd of the tests listens."""
    with HostsSandbox.up(SPEC) as hosts, hosts.network():
        yield Controllers(hosts)
