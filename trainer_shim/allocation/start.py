"""How a framework begins on what a job holds: its pieces, the job directory, how its agents are reached."""

from __future__ import annotations

import functools
import os
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from slurm_elastic.protocol import own_files
from slurm_elastic.protocol.api.client import Client
from slurm_elastic.protocol.errors import ConfigError
from slurm_elastic.protocol.messages import Piece

from ..control import cuda_backend, interfaces
from . import commands, job_dir, launchers
from .daemon_client import Connect, DaemonClient
from .launchers import Options, StartLauncher
from .lease import Lease
from .slurm_job import SlurmJob


@dataclass(frozen=True, slots=True)
class Start:
    """Where a framework begins, and how. `jobs`: the Slurm jobs, the base first; none without Slurm."""

    options: Options
    jobs: tuple[SlurmJob, ...]
    pieces: tuple[Piece, ...]

    def launcher(self) -> StartLauncher:
        """The launcher that starts agents and asks for companions."""
        if self.jobs:
            return functools.partial(launchers.SlurmLauncher, self.jobs)
        return functools.partial(launchers.LocalLauncher, self.pieces[0])

    def connect(self) -> Connect | None:
        """The connection to selasticd; None where there is none."""
        if self.jobs or "SELASTIC_URL" in os.environ or "SELASTIC_CLIENT_CONF" in os.environ:
            return functools.partial(DaemonClient, Client(), self.pieces[0].slurm_job_id)
        return None

    def take_directory(self) -> tuple[Start, Lease]:
        """Make the job directory, and have it alone. Raises ConfigError when another one has it."""
        place = self.options.job_dir
        job_dir.create(place)
        lease = Lease(place, *((str(self.jobs[0].job_id), self.jobs[0].restarts) if self.jobs else ()))
        env = {**self.options.env, "SELASTIC_MARK": job_dir.mark(place)}
        return replace(self, options=replace(self.options, env=env)), lease


def find(
    env: dict[str, str], command: tuple[str, ...], place: str | None = None, nproc: int = 0, interface: str = ""
) -> Start:
    """What this job holds, in Slurm or without. Nothing is created. Raises ConfigError with one sentence.

    place: the job directory that the user named. nproc: workers per node where there are no GPUs. interface: the
    network between the nodes that the user named.
    """
    check_container(env)
    jobs = launchers.slurm_jobs(env) if "SLURM_JOB_ID" in env else ()
    pieces = launchers.slurm_pieces(jobs, nproc) if jobs else (launchers.local_piece(env, nproc),)
    interface = interface or env.get("SELASTIC_INTERFACE", "")
    own = (jobs[0].work_dir, jobs[0].submitted, jobs[0].restarts) if jobs else ()
    options = Options(
        command=command,
        job_dir=job_dir.choose(env, command, place, *own),
        listen="" if jobs else "127.0.0.1",
        host=host_address(interface) if jobs else "127.0.0.1",
        env={**_agent_env(env, bool(jobs)), **(interface_env(interface, env) if jobs else {})},
        cluster=job_dir.cluster(env),
        submitted=jobs[0].submitted if jobs else "",
        nproc=nproc,
    )
    return Start(options, jobs, pieces)


def check_container(env: Mapping[str, str]) -> None:
    """Raise ConfigError in a job of `sbatch --container`: agents would start outside it, by a Python that is in it."""
    if bundle := env.get("SLURM_CONTAINER", ""):
        raise ConfigError(
            f"--container={bundle} of this job holds its batch script only, and workers would start outside of it; "
            f"accepted: selastic run --srun-options=--container={shlex.quote(bundle)}, in a job without it"
        )


def host_address(interface: str) -> str:
    """How agents find this host: its address on the interface that was chosen, or its name."""
    if not interface:
        return socket.gethostname()
    found = interfaces.addresses()
    for name, address in found:
        if name == interface:
            return address
    known = ", ".join(dict.fromkeys(name for name, _ in found))
    raise ConfigError(f"--interface {interface} has no address on {socket.gethostname()}; accepted there: {known}")


def interface_env(interface: str, env: Mapping[str, str]) -> dict[str, str]:
    """For agents, gloo and NCCL: the interface that was chosen, unless the user has set it for one of them."""
    if not interface:
        return {}
    backends = {name: interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name not in env}
    return {"SELASTIC_INTERFACE": interface, **backends}


def _agent_env(env: dict[str, str], in_slurm: bool) -> dict[str, str]:
    python = {"PYTHONPATH": commands.python_path(env), "PYTHONUNBUFFERED": "1"}
    own = {cuda_backend.NAME: cuda_backend.chosen(env), cuda_backend.DEVICES: cuda_backend.devices(env)}
    own[own_files.TRUSTED] = env.get(own_files.TRUSTED, "")
    return {**commands.scrubbed(env, in_slurm), **python, **own}
