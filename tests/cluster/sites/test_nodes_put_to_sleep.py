"""Nodes that are powered down, woken up and rebooted while a job grows onto them and trains there: their slurmd and all
processes end, and come back when Slurm's own programs for it say so."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kill_targets import end_node
from live_daemon import live_daemon
from own_sandbox import OwnSandbox
from sandbox_jobs import cancel_all
from site_cluster import SiteCluster
from training import on
from training_job import Start, TrainingJob
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec

ASKS = """#!/bin/sh
# Slurm's word to whoever has the nodes' power: "on", "off" or "reboot", and the nodes; of a reboot slurmd -N tells it.
slurmd=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$PPID/status)  # over the shell that it runs RebootProgram with
nodes=${1:-$(tr '\\0' '\\n' </proc/$slurmd/cmdline | sed -n '/^-N$/{n;p}')}
for node in $(SLURM_CONF=DIR/slurm.conf scontrol show hostnames "$nodes"); do echo "WORD $node" >>DIR/power; done
"""
PROGRAMS = {"ResumeProgram": "on", "SuspendProgram": "off", "RebootProgram": "reboot"}
CONF = (
    "SuspendTime=86400",
    "SuspendTimeout=5",
    "ResumeTimeout=60",
    "SlurmdTimeout=20",
    "ReturnToService=2",
    *(f"{program}=DIR/{program}" for program in PROGRAMS),
)


class Power:
    """The nodes' power: does what Slurm's programs ask for, in the order in which they do."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox, self._file, self._over = sandbox, sandbox.dir / "power", threading.Event()
        self.done: list[str] = []
        """"on n2", "off n2", in order, since it was told to forget."""
        self._read = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def forget(self) -> None:
        self.done = []

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _serve(self) -> None:
        while not self._over.wait(0.05):
            asked = self._file.read_text().splitlines() if self._file.exists() else []
            for line in asked[self._read :]:
                word, node = line.split()
                if word != "on":
                    end_node(self._sandbox, node)
                if word != "off":  # -b: Slurm waits for a node that has booted since it asked
                    daemons, slurmd = self._sandbox.daemons, f"slurmd-{node}"
                    daemons.spawn(slurmd, [*daemons.command(slurmd), "-b"])
                self.done.append(line)
                self._read += 1


@pytest.fixture(scope="module")
def powered(can_run_slurm: None) -> Iterator[tuple[SiteCluster, Power]]:
    """Three nodes, and who has their power. A cluster of its own: what has slept is not to be met by other tests."""
    folder = Path(tempfile.mkdtemp(prefix="selastic-power-"))
    folder.chmod(0o755)
    spec = SandboxSpec(
        nodes=3,
        with_accounting=False,
        extra_slurm_conf=tuple(line.replace("DIR", str(folder)) for line in CONF),
        extra_files={name: ASKS.replace("DIR", str(folder)).replace("WORD", word) for name, word in PROGRAMS.items()},
    )
    with OwnSandbox.up(spec, directory=folder) as sandbox, contextlib.closing(Power(sandbox)) as power:
        yield SiteCluster(sandbox), power


@pytest.fixture
def power(powered: tuple[SiteCluster, Power]) -> Power:
    """Nothing is asked of it yet."""
    powered[1].forget()
    return powered[1]


@pytest.fixture
def site(powered: tuple[SiteCluster, Power]) -> Iterator[SiteCluster]:
    """In place of the session's site, for `start`."""
    cancel_all(powered[0].sandbox)
    yield powered[0]
    cancel_all(powered[0].sandbox)


def test_a_reboot_waits_for_the_companion_and_then_happens(site: SiteCluster, power: Power, start: Start) -> None:
    """Slurm holds back `scontrol reboot`: training stays until it is told to leave, and the node reboots then."""
    training = start("--gres=gpu:1 -wn1")
    companion = training.grow("n2")
    site.sandbox.run(["scontrol", "reboot", "ASAP", "nextstate=resume", "n2"])
    wait_until(lambda: "REBOOT_REQUESTED" in flags(site, "n2"), 30, node(site, "n2"))
    training.trains_on(10)
    assert power.done == []
    training.resize(training.base()[:1], steps=0)
    training.slurm("scancel", str(companion.slurm_job_id))  # as selasticd does now
    wait_until(lambda: power.done == ["reboot n2"], 60, node(site, "n2"))
    wait_until(lambda: flags(site, "n2") == {"IDLE"}, 60, node(site, "n2"))
    training.trained_once()
    assert training.state() == "RUNNING"


def test_a_companion_wakes_its_node_and_training_outlives_its_sleep(
    site: SiteCluster, power: Power, start: Start
) -> None:
    """A node that sleeps is woken up for a companion; put to sleep under it, it takes the companion and not one step of
    the base's; and it is woken up for the next one."""
    update(site, "n2", "power_down_force")
    wait_until(lambda: "off n2" in power.done and flags(site, "n2") >= {"IDLE", "POWERED_DOWN"}, 60, node(site, "n2"))
    training = start("--gres=gpu:1 -wn1")
    first = training.grow("n2")
    assert power.done == ["off n2", "on n2"] and first.nodes == ("n2",)
    update(site, "n2", "power_down_force")
    alone_again(training)
    wait_until(lambda: "POWERED_DOWN" in flags(site, "n2"), 60, node(site, "n2"))
    training.resize(training.base(), on("n2"), steps=0)
    assert power.done == ["off n2", "on n2"] * 2
    training.trained_once()
    assert training.state() == "RUNNING"


def test_idle_nodes_sleep_until_a_job_needs_them(
    site: SiteCluster, power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service `power`, one idle node kept: n3 and n2 sleep. A job that asks for n2 wakes it and runs, also where
    the daemon is killed meanwhile; off again, the rest is woken."""
    wait_until(lambda: all(flags(site, name) == {"IDLE"} for name in ("n1", "n2", "n3")), 60, node(site, "n2"))
    asleep = {"IDLE", "POWERED_DOWN"}
    with live_daemon(site.sandbox, monkeypatch, 'services = ["power=act"]\nsite_interval_s = 1.0') as selasticd:
        wait_until(lambda: flags(site, "n2") >= asleep <= flags(site, "n3"), 60, selasticd.log)
        assert sorted(power.done) == ["off n2", "off n3"] and flags(site, "n1") == {"IDLE"}
        selasticd.kill()
        job = site.sbatch("-N1", "-wn2", "--gres=gpu:1")
        selasticd.start()
        wait_until(lambda: site.squeue(job, "%T") == "RUNNING", 60, node(site, "n2"))

        def told() -> dict[str, Any]:
            return dict(json.loads(selasticd.selastic("power", "--json").stdout))

        wait_until(lambda: told()["woken"] == 1, 60, selasticd.log)
        found = told()
        assert {row["node"]: row["state"] for row in found["nodes"]}["n2"] == "busy" and found["asleep_h"] > 0
        assert sorted(power.done) == ["off n2", "off n3", "on n2"]
        assert "1 wake-ups of 1 nodes" in selasticd.selastic("power").stdout
        selasticd.kill(15)
        selasticd.more = "site_interval_s = 1.0"
        selasticd.start()
        wait_until(lambda: flags(site, "n3") == {"IDLE"}, 60, selasticd.log)
        assert "power is off" in selasticd.selastic("power").stderr


def alone_again(training: TrainingJob) -> None:
    """Steps are done by the base alone."""
    wait_until(lambda: len(training.base()) == 1, 90, training.story)
    training.trains_on(5)


def update(site: SiteCluster, name: str, state: str) -> None:
    answer = site.sandbox.run(["scontrol", "update", f"nodename={name}", f"state={state}"])
    assert answer.returncode == 0, answer.stderr


def flags(site: SiteCluster, name: str) -> set[str]:
    """A node's state and its flags, as scontrol has them: {"IDLE", "POWERED_DOWN"}."""
    shown = site.sandbox.run(["scontrol", "-o", "show", "node", name]).stdout
    return set(next(word.partition("=")[2] for word in shown.split() if word.startswith("State=")).split("+"))


def node(site: SiteCluster, name: str) -> Callable[[], str]:
    return lambda: site.sandbox.run(["scontrol", "show", "node", name]).stdout
