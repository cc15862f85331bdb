"""What the killing campaign kills, how it is healed, and what must be true of the victim to be one.

Every victim is real: SIGKILL of the very process, SIGKILL of a whole node's processes, a route to the daemon that is no
more. Limit: all nodes are on one host, so a node that dies takes its processes and its slurmd, not its memory or disks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from local_run import keeps_logs
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox

SUPERVISOR = b"slurm_elastic.trainer_shim.supervisor.cli"


@dataclass(frozen=True)
class Process:
    """A living process of this sandbox's jobs, from its environment."""

    pid: int
    parent: int
    job: str
    """SLURM_JOB_ID: the base's, or the companion's."""
    node: str
    command: bytes
    agent: bool
    """An agent or a worker, not a supervisor or what helps either."""


def processes(sandbox: Sandbox) -> list[Process]:
    """All processes of jobs on this sandbox."""
    found = []
    mark = f"SLURM_CONF={sandbox.env['SLURM_CONF']}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environ = (path / "environ").read_bytes().split(b"\0")
            if mark not in environ:
                continue
            values = dict(item.decode(errors="replace").partition("=")[::2] for item in environ)
            if "SLURM_JOB_ID" not in values:
                continue
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_bytes()
            agent = "SELASTIC_SECRET" in values and SUPERVISOR not in command and not keeps_logs(int(path.name))
            job, node = values["SLURM_JOB_ID"], values.get("SLURMD_NODENAME", "")
            found.append(Process(int(path.name), parent, job, node, command, agent))
    return found


def supervisors(sandbox: Sandbox, job: int) -> list[int]:
    """The `selastic run` of a job."""
    return [one.pid for one in processes(sandbox) if one.job == str(job) and SUPERVISOR in one.command]


def agents(sandbox: Sandbox, slurm_job: int) -> list[int]:
    """The agents of one piece: what has SELASTIC_SECRET and no parent that has."""
    family = [one for one in processes(sandbox) if one.agent and b"srun" not in one.command.split(b"\0")[0]]
    members = {one.pid for one in family}
    return [one.pid for one in family if one.job == str(slurm_job) and one.parent not in members]


def workers(sandbox: Sandbox, slurm_job: int) -> list[int]:
    """The workers of one piece: forks of its agents."""
    family = [one for one in processes(sandbox) if one.agent and b"srun" not in one.command.split(b"\0")[0]]
    members = {one.pid for one in family}
    return [one.pid for one in family if one.job == str(slurm_job) and one.parent in members]


def kill(*pids: int) -> int:
    """SIGKILL; how many were there. 0, for a daemon that does not run, would be this very process group."""
    count = 0
    for pid in pids:
        if pid <= 1:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count


def kill_node(sandbox: Sandbox, node: str) -> int:
    """A node dies: its slurmd, its steps' managers and all that runs in them, at once. Slurm hears of it as a health
    check would tell it, for slurmctld itself waits SlurmdTimeout (minutes) before it calls a silent node down."""
    count = kill(sandbox.daemons.pid(f"slurmd-{node}"))

    def nothing_left() -> bool:
        # Killed again at each look: a step may just have been on its way.
        nonlocal count
        here = [*_step_managers(sandbox, node), *(one.pid for one in processes(sandbox) if one.node == node)]
        count += kill(*here)
        return not here

    wait_until(nothing_left, 60, f"nothing runs on {node}", every=0.01)
    sandbox.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=campaign"])
    return count


def heal_node(sandbox: Sandbox, node: str) -> None:
    """The node boots again."""
    # Not before its slurmctld has ended what ran there: a node that comes back resumed would keep its lost jobs.
    sandbox.daemons.start(f"slurmd-{node}")
    sandbox.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    sandbox.start_daemon(f"slurmd-{node}", 90)


def kill_daemon(sandbox: Sandbox, name: str) -> int:
    """SIGKILL of slurmctld or slurmdbd."""
    pid = sandbox.daemons.pid(name)
    # slurmctld's helper (slurmscriptd) ends with it by itself.
    count = kill(pid)
    wait_until(lambda: not pid or sandbox.daemons.pid(name) != pid, 60, f"{name} is dead", every=0.01)
    return count


def can_cut() -> bool:
    """Whether routes can be taken away here."""
    address = "127.77.255.254"
    done = _route("add", address)
    if done:
        _route("del", address)
    return done


def cut(address: str) -> bool:
    """No packet reaches this address of the daemon any more: new connections fail, those that are open hear nothing."""
    return _route("add", address)


def heal_cut(address: str) -> None:
    """Packets flow again; what waits to be sent again is sent again."""
    _route("del", address)


def _route(verb: str, address: str) -> bool:
    command = ["ip", "route", verb, "blackhole", f"{address}/32", "table", "local"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _step_managers(sandbox: Sandbox, node: str) -> list[int]:
    """The slurmstepds of a node, those without a process of the job included: what has the log of its slurmd open."""
    log, found = sandbox.dir / "log" / f"slurmd-{node}.log", []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "comm").read_text().strip() == "slurmstepd":
                found += [int(path.name) for one in (path / "fd").iterdir() if one.readlink() == log][:1]
    return found
