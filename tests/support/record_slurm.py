"""Records what this machine's Slurm prints for every command of the daemon, for the unit tests of the parsers.

    python -m pytest tests/support/record_slurm.py                                  # tests/recorded/*-22.05.*
    TESTS=tests/support/record_slurm.py packaging/test-matrix trixie forky          # the same of 24.11 and 26.05

Not collected by itself. The jobs are those of `submit_all`; tests/unit/daemon/slurm/test_recorded.py says what must be
read.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from own_sandbox import OwnSandbox
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.daemon.sandbox.host import slurm_release
from slurm_elastic.daemon.slurm import CommandClient, Size, SlurmClient, commands
from slurm_elastic.protocol.errors import SlurmError

RECORDED = Path(__file__).parents[1] / "recorded"
SEPARATOR = "~~~"
ENFORCED = ("AccountingStorageEnforce=limits,qos",)
SHARES = (
    *(["account", "physics", "fairshare=30"], ["account", "optics", "parent=physics", "fairshare=2"]),
    *(["account", "chem", "fairshare=parent"], ["account", "idle", "fairshare=0"]),
    *(["user", "man", "account=optics", "fairshare=5"], ["user", "daemon", "account=optics", "fairshare=parent"]),
    *(["user", "games", "account=physics", "fairshare=4"], ["user", "man", "account=chem", "fairshare=2"]),
)
"""What sacctmgr adds before sshare is recorded."""
TREE = "SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=leaf2 Nodes=n[3-4]\nSwitchName=top Switches=leaf[1-2]\n"
"""topology.conf. n5 hangs on no switch."""
TREE_YAML = """- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: top
        children: leaf[1-2]
      - switch: leaf1
        nodes: n[1-2]
      - switch: leaf2
        nodes: n[3-4]
- topology: plain
  cluster_default: false
  flat: true
"""
"""topology.yaml of the same tree, which newer releases read in place of topology.conf."""
_READ = re.compile(
    r"^ *(?:ClusterName=|ParentAccount=|GrpJobs=|GrpTRES=|MaxJobs=|MaxTRESPJ=|QOS=|(?:Account|User) Limits|No |[^=\s]+$"
    r"|MaxJobsP[AU]=|MaxTRESP[AU]=)"
)
_OF_THIS_MACHINE = re.compile(r"\b(WorkDir|Command|SubmitLine|AllocNode:Sid)=\S*")


class Recorder(CommandClient):
    """A CommandClient that keeps what it ran and what came of it, shortened to what is read."""

    def __init__(self, slurm_conf: str) -> None:
        super().__init__(slurm_conf)
        self.calls: list[dict[str, Any]] = []

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        done = super()._run(command)
        if command == ["scontrol", "-V"]:
            return done
        out = done.stdout
        if "assoc_mgr" in command:
            out = "".join(f"{line}\n" for line in out.splitlines() if not line or _READ.match(line))
        elif command[-1] == "config":
            out = "".join(f"{line}\n" for line in out.splitlines() if line.startswith("AccountingStorageEnforce"))
        out = _OF_THIS_MACHINE.sub(r"\1=x", out)
        self.calls.append({"command": command, "stdout": out, "stderr": done.stderr, "returncode": done.returncode})
        return done


def scenario(client: SlurmClient, ids: dict[str, int]) -> dict[str, Any]:
    """Every call of the daemon, once where it works and once where Slurm refuses, in an order that can be replayed."""
    calls: dict[str, Any] = {
        "snapshot": client.snapshot,
        "site": client.site,
        "unreserve": lambda: client.unreserve("no-such"),
        "shrink": lambda: client.shrink(ids["plain"], ["n1"]),
        "shrink without the batch host": lambda: client.shrink(ids["whole"], ["n9"]),
        "shrink nothing": lambda: client.shrink(99_999, ["n1"]),
        "requeue what waits": lambda: client.requeue(ids["waits"]),
        "requeue without a script": lambda: client.requeue(ids["companion"]),
        "resize what runs": lambda: client.resize_waiting(ids["typed"], Size(1, 2)),
        "resize what waits": lambda: client.resize_waiting(ids["waits"], Size(2, 2)),
        "cancel a task": lambda: client.cancel(ids["task"]),
        "cancel a waiting component": lambda: client.cancel(ids["component"]),
        "cancel nothing": lambda: client.cancel(99_999),
    }
    outcome: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            outcome[name] = call()
        except SlurmError as error:
            outcome[name] = error
    return outcome


def submit_all(sandbox: Sandbox) -> dict[str, int]:
    """On five nodes of 4 GPUs: one job of each kind that the daemon tells apart, by name."""

    def submit(*options: str, user: str | None = None) -> int:
        answer = sandbox.run(["sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap=sleep 900"], user=user)
        assert answer.returncode == 0, answer.stderr
        return int(answer.stdout.split(";")[0])

    ids = {
        "plain": submit("-N2", "--gres=gpu:2", "--time=90", "--comment=elastic:gpus=2-8,batch=64-512", user="games"),
        "whole": submit("-N1", "--gpus-per-node=4", "--ntasks-per-node=4", "--mem=700", "-c2", "-w", "n3"),
        "typed": submit("-N1", "--gres=gpu:a100:1", "-w", "n4", "--comment=two\nlines ~ and |pipes|", "-J", "a b"),
        "total": submit("-N1", "--gpus=2", "-n2", "-w", "n4"),
        "array": submit("--array=0-4%1", "--gres=gpu:1", "-w", "n2"),
    }
    answer = sandbox.run(["salloc", "--no-shell", "-N1", "--gres=gpu:1", "-w", "n2", "-J", "selastic-1"])
    ids["companion"] = int(re.search(r"allocation (\d+)", answer.stderr).group(1))  # type: ignore[union-attr]
    wait_until(lambda: len(sandbox.run(["squeue", "-h", "-t", "R"]).stdout.splitlines()) == 6, 60)
    ids["waits"] = submit("-N2", "--gres=gpu:4", "--exclusive", "--mem-per-cpu=100", user="games")
    ids["later"] = submit("-N1", "--begin=now+2hours", "--gpus-per-task=2", "-n2")
    ids["component"] = submit("-N1", "--gres=gpu:4", ":", "-N2", "--gres=gpu:1", user="games") + 1
    sandbox.run(["scontrol", "update", "nodename=n5", "state=drain", "reason=test"])
    wait_until(lambda: sandbox.run(["squeue", "-h", "-t", "PD", "-o", "%r"]).stdout.count("Resources") >= 1, 60)
    told = sandbox.run(["squeue", "-h", "-t", "R", "-O", "JobID,ArrayTaskID"]).stdout.splitlines()
    ids["task"] = next(int(line.split()[0]) for line in told if line.split()[1] == "0")
    return ids


def limit(sandbox: Sandbox) -> None:
    """Limits of an association and of a QOS, and a reservation."""
    for words in (
        ["user", "games", "set", "GrpTRES=gres/gpu=16", "MaxTRESPerJob=gres/gpu=12", "MaxJobs=9"],
        ["qos", "normal", "set", "MaxTRESPerUser=gres/gpu=18", "MaxTRESPerJob=node=4", "GrpTRES=cpu=500"],
    ):
        assert sandbox.run(["sacctmgr", "-i", "modify", *words]).returncode == 0
    kept = ["Nodes=n5", "StartTime=now+1hour", "Duration=60", "Users=root"]
    assert sandbox.run(["scontrol", "create", "reservation", "ReservationName=maint", *kept]).returncode == 0
    wanted = ("node=4", "gres/gpu=12", "gres/gpu=16")
    wait_until(
        lambda: all(word in sandbox.run(["scontrol", "show", "assoc_mgr"]).stdout for word in wanted), 60, "limits"
    )


def test_record(can_run_slurm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes tests/recorded/slurm-RELEASE.json."""
    monkeypatch.setattr(commands, "_separator", lambda: SEPARATOR)
    with OwnSandbox.up(SandboxSpec(nodes=5, extra_slurm_conf=ENFORCED)) as sandbox:
        limit(sandbox)
        ids = submit_all(sandbox)
        client = Recorder(sandbox.env["SLURM_CONF"])
        scenario(client, ids)
        sandbox.daemons.stop("slurmctld")
        for call in (client.snapshot, lambda: client.shrink(ids["plain"], ["n1"]), lambda: client.cancel(ids["plain"])):
            with pytest.raises(SlurmError):
                call()
        release = ".".join(f"{part:02}" for part in client.release())
    text = json.dumps({"ids": ids, "calls": client.calls}, indent=1, ensure_ascii=False)
    (RECORDED / f"slurm-{release}.json").write_text(f"{text}\n")


def test_record_shares(can_run_slurm: None) -> None:
    """Writes tests/recorded/sshare-RELEASE.txt, of the accounts that test_fair_share.py reads."""
    with OwnSandbox.up(SandboxSpec()) as sandbox:
        for words in SHARES:
            assert sandbox.run(["sacctmgr", "-i", "add", *words]).returncode == 0, words
        client = Recorder(sandbox.env["SLURM_CONF"])
        wait_until(lambda: ("chem", "man") in client.shares().users, 60, "the new users")
        release = ".".join(f"{part:02}" for part in client.release())
    (RECORDED / f"sshare-{release}.txt").write_text(client.calls[-1]["stdout"])


@pytest.mark.parametrize("name", ["topology", "topology-yaml"])
def test_record_topology(can_run_slurm: None, name: str) -> None:
    """Writes tests/recorded/topology-RELEASE.txt: of a tree of two leaves, and of the same in topology.yaml."""
    yaml = name == "topology-yaml"
    if yaml and slurm_release(SandboxSpec()) < (25, 5):
        pytest.skip("this Slurm knows no topology.yaml")
    files = {"topology.yaml": TREE_YAML} if yaml else {"topology.conf": TREE}
    lines = ("TopologyPlugin=topology/tree",)
    with OwnSandbox.up(
        SandboxSpec(nodes=5, with_accounting=False, extra_slurm_conf=lines, extra_files=files)
    ) as sandbox:
        client = Recorder(sandbox.env["SLURM_CONF"])
        client.site()
        release = ".".join(f"{part:02}" for part in client.release())
    shown = next(call["stdout"] for call in client.calls if call["command"][-1] == "topology")
    (RECORDED / f"{name}-{release}.txt").write_text(shown)
