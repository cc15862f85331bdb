"""The processes that the killing campaign kills, and what must be true of one to be a victim.

Every victim is real: SIGKILL of the very process, which is found from here in whatever host of the sandbox it runs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from local_run import keeps_logs, kill
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


def kill_daemon(sandbox: Sandbox, name: str) -> int:
    """SIGKILL of slurmctld or slurmdbd."""
    pid = sandbox.daemons.pid(name)
    # slurmctld's helper (slurmscriptd) ends with it by itself.
    count = kill(pid)
    wait_until(lambda: not pid or sandbox.daemons.pid(name) != pid, 60, f"{name} is dead", every=0.01)
    return count


def end_node(sandbox: Sandbox, node: str) -> None:
    """A node's slurmd, its steps' managers and all that runs in them end at once."""
    kill(sandbox.daemons.pid(f"slurmd-{node}"))

    def nothing_left() -> bool:
        # Killed again at each look: a step may just have been on its way.
        here = _step_managers(sandbox, node)
        here += [one.pid for one in processes(sandbox) if one.node == node]
        kill(*here)
        return not here

    wait_until(nothing_left, 60, f"nothing runs on {node}", every=0.01)


def _step_managers(sandbox: Sandbox, node: str) -> list[int]:
    """The slurmstepds of a node, those without a process of the job included: what has the log of its slurmd open."""
    log, found = sandbox.dir / "log" / f"slurmd-{node}.log", []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "comm").read_text().strip() == "slurmstepd":
                found += [int(path.name) for one in (path / "fd").iterdir() if one.readlink() == log][:1]
        except OSError:
            continue  # it has ended
    return found
