"""The least privilege in Slurm that selasticd works with, on a cluster whose users see nothing of each other."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from own_sandbox import OwnSandbox
from waiting import wait_until

from slurm_elastic.daemon.api.auth import hides_jobs
from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.daemon.sandbox.config import ACCOUNT
from slurm_elastic.daemon.slurm import CommandClient, Size
from slurm_elastic.protocol.errors import SlurmRefused

OWNER, DAEMON = "games", "daemon"
"""Who has the job, and as whom the daemon runs."""


class Cluster:
    """A private Slurm with PrivateData, seen by the daemon's user."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def may(self, *command: str) -> bool:
        """Whether Slurm lets the daemon's user do it."""
        return self.sandbox.run(command, user=DAEMON).returncode == 0

    def admin(self, *words: str) -> None:
        """sacctmgr, as root."""
        answer = self.sandbox.run(["sacctmgr", "-i", *words])
        assert answer.returncode == 0, answer.stdout + answer.stderr

    def job(self, *options: str) -> str:
        """A running job of another user on three nodes."""
        self.sandbox.run(["scancel", "-u", OWNER])
        command = ["sbatch", "--parsable", "-A", ACCOUNT, "-o", "/dev/null", "-N3", "--gres=gpu:4", *options]
        job = self.sandbox.run([*command, "--wrap", "sleep 600"], user=OWNER).stdout.strip()
        wait_until(lambda: self.state(job, user=None) == "RUNNING", 30)
        return job

    def state(self, job: str, user: str | None = DAEMON) -> str:
        """The job's state as that user sees it."""
        return self.sandbox.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"], user=user).stdout.strip()

    def actions(self, job: str) -> dict[str, bool]:
        """What the daemon does to a job, in the order in which it can be tried, and whether Slurm allows it."""
        return {
            "see": self.state(job) == "RUNNING",
            "shrink": self.may("scontrol", "update", f"JobId={job}", "NodeList=n1,n2"),
            "comment": self.may("scontrol", "update", f"JobId={job}", "Comment=x"),
            "cancel": self.may("scancel", job),
        }

    def drains(self) -> bool:
        """Whether the daemon's user could take a node away from everyone: more than it needs."""
        return self.may("scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=test")


@pytest.fixture(scope="module")
def cluster(can_run_slurm: None) -> Iterator[Cluster]:
    """Three nodes, accounting, and everyone's jobs hidden from others."""
    extra = ("PrivateData=jobs,usage,users,accounts,reservations",)
    with OwnSandbox.up(SandboxSpec(nodes=3, extra_slurm_conf=extra)) as sandbox:
        yield Cluster(sandbox)


def test_an_ordinary_user_cannot_manage_others_jobs(cluster: Cluster) -> None:
    """Without a grant selasticd is harmless: it sees no job of others and changes none."""
    assert cluster.actions(cluster.job()) == {"see": False, "shrink": False, "comment": False, "cancel": False}


def test_a_coordinator_can_do_all_that_the_daemon_does(cluster: Cluster) -> None:
    """Coordinator of the accounts whose jobs are elastic is enough, and it is no say over nodes or other accounts."""
    cluster.admin("add", "account", "closed", "cluster=sandbox")
    cluster.admin("add", "coordinator", "account=closed", f"names={DAEMON}")
    job = cluster.job()
    wait_until(
        lambda: DAEMON in cluster.sandbox.run(["sacctmgr", "-n", "show", "account", "closed", "withcoord"]).stdout
    )
    assert not any(cluster.actions(job).values()), "coordinator of another account"
    cluster.admin("add", "coordinator", f"account={ACCOUNT}", f"names={DAEMON}")
    # slurmctld hears of it from slurmdbd, a moment later.
    wait_until(lambda: cluster.state(job) == "RUNNING", 30)
    assert all(cluster.actions(job).values())
    assert not cluster.drains()
    # As `selasticd --check` learns of it.
    client = CommandClient(str(cluster.sandbox.layout.slurm_conf))
    assert client.coordinated(DAEMON) == {ACCOUNT, "closed"} and client.coordinated(OWNER) == frozenset()
    assert client.slurm_user() == "root" and hides_jobs(client.private_data())
    cluster.admin("delete", "coordinator", f"account={ACCOUNT},closed", f"names={DAEMON}")


@pytest.mark.parametrize(
    "options", [(), ("--ntasks-per-node=4", "--cpus-per-task=2")], ids=["one task", "a task a GPU"]
)
def test_a_coordinator_can_requeue_at_another_size(cluster: Cluster, options: tuple[str, ...]) -> None:
    """Other nodes and other GPUs on each, though only an operator may change the tasks on a node, or make the
    reservation that would keep the nodes meanwhile."""
    cluster.admin("add", "coordinator", f"account={ACCOUNT}", f"names={DAEMON}")
    job = cluster.job(*options)
    wait_until(lambda: cluster.state(job) == "RUNNING", 30)
    daemon = CommandClient(
        str(cluster.sandbox.layout.slurm_conf), prefix=("setpriv", f"--reuid={DAEMON}", "--clear-groups", "--")
    )
    with pytest.raises(SlurmRefused):
        daemon.reserve("selastic-1", ["n1", "n2"], OWNER, 1)
    daemon.requeue(int(job))
    wait_until(lambda: cluster.state(job) == "PENDING", 60)
    ready = time.monotonic() + 2.0  # see SlurmClient.resize_waiting
    wait_until(lambda: time.monotonic() > ready)
    daemon.resize_waiting(int(job), Size(2, 2))
    wait_until(lambda: cluster.state(job) == "RUNNING", 60)
    held = daemon.snapshot().jobs[int(job)]
    assert (held.num_nodes, held.gpus, held.gpus_per_node) == (2, 4, 2)
    cluster.admin("delete", "coordinator", f"account={ACCOUNT}", f"names={DAEMON}")


def test_an_operator_can_too(cluster: Cluster) -> None:
    """Operator covers all accounts at once, and still cannot touch nodes or the configuration."""
    job = cluster.job()
    wait_until(lambda: cluster.state(job) == "", 30)
    cluster.admin("modify", "user", DAEMON, "set", "adminlevel=Operator")
    wait_until(lambda: cluster.state(job) == "RUNNING", 30)
    assert all(cluster.actions(job).values())
    assert not cluster.drains()
    assert not cluster.may("scontrol", "reconfigure")
    # As selasticd learns whom else to take for an admin.
    assert DAEMON in CommandClient(str(cluster.sandbox.layout.slurm_conf)).operators()
