"""Where agents run: on the nodes of Slurm jobs, or, without Slurm, as processes of this machine.

Both can do the same, so everything above them (the state machine, resizes, restarts) is the same on a laptop; there a
"companion" is one more local agent. Nothing here decides.
"""

import contextlib
import functools
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.protocol.errors import ConfigError, SlurmError
from slurm_elastic.protocol.messages import Piece, Shape

from ..control import job_key
from ..control.event_loop import Children, Ended, Loop
from . import commands
from .companions import Companions, Emit, answer_to, expand
from .pieces.events import CompanionGranted, StepEnded
from .slurm_job import SlurmJob, component_ids, parse_job


@dataclass(frozen=True, slots=True)
class Options:
    command: tuple[str, ...]
    job_dir: Path
    listen: str
    """Address to listen on; "" for all of this host's."""
    host: str
    """The name by which agents find this host."""
    env: Mapping[str, str]
    """The agents' environment: the user's, scrubbed. The driver adds how it is reached."""
    cluster: str = ""
    submitted: str = ""
    """When the job was submitted, as Slurm writes it."""
    nproc: int = 0
    batch: int = 0
    request: str = ""
    audit: str = ""
    python: tuple[str, ...] = ()
    """What starts Python on the nodes; empty: the path of the one that runs now."""
    srun: tuple[str, ...] = ()
    """Further options of the srun that starts agents."""


class SlurmLauncher(Companions):
    """Agents by srun, companions by salloc."""

    def __init__(
        self, jobs: tuple[SlurmJob, ...], loop: Loop, children: Children, options: Options, emit: Emit
    ) -> None:
        super().__init__(loop, children, job_key.without(options.env), jobs[0].job_id, options.nproc, emit)
        self._options = options
        self._jobs |= {job.job_id: job for job in jobs}
        self._sruns: dict[int, subprocess.Popen[bytes]] = {}
        """The sruns of companions' agents, by launch."""

    def launch(self, piece: Piece, number: int) -> None:
        """Start an agent on each node of the piece; StepEnded with this number follows when they have all ended."""
        job = self._jobs[piece.slurm_job_id]
        agent = commands.agent_command(self._options.command, self._options.python)
        command = commands.srun(piece, job, agent, self._options.srun)
        env = {**self._options.env, **threads(self._options.env, job.cpus_per_node, piece.gpus_per_node)}
        env["SELASTIC_AGENT_JOB"] = str(piece.slurm_job_id)  # SLURM_JOB_ID is the leader's in every component
        if piece.kind == "companion":
            env["SELASTIC_COMPANION"] = "1"
        log = self._options.job_dir / "logs" / f"agents-{piece.slurm_job_id}.log"

        def over(ended: Ended) -> None:
            self._sruns.pop(number, None)
            self._emit(StepEnded(number, ended.code, tail(ended.out)))

        process = self._children.start(command, env, over, log)
        if process is not None and piece.kind == "companion":
            self._sruns[number] = process

    def if_over(self, then: Callable[[], object]) -> None:
        """`then` is called where Slurm has ended the base, and not begun its grace. What salloc holds has no batch
        script that Slurm would tell."""

        def shown(ended: Ended) -> None:
            if ended.code == 0 and not re.search(r"JobState=(RUNNING|SUSPENDED)", ended.out.partition("\n")[0]):
                then()

        self._children.start(commands.show_job(self._base), self._env, shown)

    def detach(self, number: int) -> None:
        """Kill the srun of this launch. Its step goes on: what ends it with its srun is a second process of srun's,
        and that is killed too."""
        process = self._sruns.pop(number, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class LocalLauncher:
    """Agents as local processes. Each "node" of a piece is one agent; CPU workers only share the machine."""

    def __init__(self, first_piece: Piece, loop: Loop, children: Children, options: Options, emit: Emit) -> None:
        self._loop, self._children, self._options, self._emit = loop, children, options, emit
        self._next_job = 1
        self._agents: dict[int, list[subprocess.Popen[bytes]]] = {}
        self._resizes: dict[int, list[int]] = {}
        self._total = first_piece.gpus_per_node
        self.swept = True

    def launch(self, piece: Piece, number: int) -> None:
        left = set(piece.nodes)
        log = self._options.job_dir / "logs" / f"agents-{piece.slurm_job_id}.log"

        def ended(node: str, how: Ended) -> None:
            left.discard(node)
            if not left:
                self._emit(StepEnded(number, how.code, tail(how.out)))

        for node in piece.nodes:
            env = {
                **self._options.env,
                **threads(self._options.env, os.cpu_count() or 1, self._total),
                "SELASTIC_AGENT": f"{piece.slurm_job_id}.{node}",
                "SELASTIC_AGENT_JOB": str(piece.slurm_job_id),
                "SELASTIC_AGENT_NODE": node,
                "SELASTIC_NPROC": str(piece.gpus_per_node),
            }
            command = commands.agent_command(self._options.command, self._options.python)
            process = self._children.start(command, env, functools.partial(ended, node), log)
            if process is not None:
                self._agents.setdefault(piece.slurm_job_id, []).append(process)

    def if_over(self, then: Callable[[], object]) -> None:
        """Nothing but signals to this process ends it."""

    def detach(self, number: int) -> None:
        """Local agents depend on nothing but this process."""

    def submit(self, resize_id: int, index: int, shape: Shape, wait_s: float) -> None:
        job_id, self._next_job = self._next_job, self._next_job + 1
        self._resizes.setdefault(resize_id, []).append(job_id)
        nodes = tuple(f"local{job_id}-{number}" for number in range(shape.nodes))
        piece = Piece(job_id, "companion", nodes, shape.gpus_per_node)
        self._loop.call(lambda: self._emit(CompanionGranted(resize_id, index, piece)))

    def drop(self, resize_id: int) -> None:
        for job_id in self._resizes.pop(resize_id, []):
            self.cancel(job_id)

    def cancel(self, job_id: int) -> None:
        for process in self._agents.pop(job_id, []):
            process.terminate()

    def retain(self, job_ids: Set[int]) -> None:
        """Forget the agents of all others."""
        self._agents = {job_id: agents for job_id, agents in self._agents.items() if job_id in job_ids}
        self._resizes = {number: ids for number, ids in self._resizes.items() if not job_ids.isdisjoint(ids)}

    def close(self, done: Callable[[], None]) -> None:
        done()


Launcher = SlurmLauncher | LocalLauncher
StartLauncher = Callable[[Loop, Children, Options, Emit], Launcher]


def slurm_jobs(env: Mapping[str, str]) -> tuple[SlurmJob, ...]:
    """What the batch job holds now, its components included. Raises ConfigError when Slurm does not say."""
    jobs = []
    clean = commands.scrubbed(env)
    leader, *components = component_ids(dict(env))
    for job_id in (leader, *components):
        answer = answer_to(commands.show_job(job_id), clean)
        try:
            jobs.append(parse_job(answer.stdout, job_id, lambda text: expand(text, clean)))
        except SlurmError as error:
            if job_id == leader:  # a component may have been given back already
                raise ConfigError(f"SLURM_JOB_ID={job_id}: {error} {answer.stderr.strip()}".strip()) from None
    return tuple(jobs)


def slurm_pieces(jobs: tuple[SlurmJob, ...], nproc: int) -> tuple[Piece, ...]:
    """The base piece and the components. Raises ConfigError for a job whose nodes differ in GPUs."""
    try:
        return tuple(job.piece("component" if index else "base", nproc) for index, job in enumerate(jobs))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def end_s(env: Mapping[str, str] | None) -> float:
    """Seconds that a job has from Slurm's SIGTERM: a little less than the site's KillWait. Without Slurm, where nobody
    follows with a SIGKILL, and where it does not say: than its usual one."""
    kill_wait = 30
    if env is not None:
        answer = answer_to(["scontrol", "show", "config"], env)
        found = re.search(r"^KillWait\s*=\s*(\d+)", answer.stdout, re.MULTILINE)
        kill_wait = int(found.group(1)) if found else kill_wait
    return max(1.0, 0.85 * kill_wait)


def local_piece(env: Mapping[str, str], nproc: int) -> Piece:
    """This machine as a piece: one worker per GPU, or `nproc`."""
    from ..node.agent import gpus

    count = len(gpus({**env, "SELASTIC_NPROC": str(nproc or "")}))
    return Piece(0, "base", (socket.gethostname().partition(".")[0],), count)


def tail(output: str, lines: int = 5) -> tuple[str, ...]:
    return tuple(output.splitlines()[-lines:])


def threads(env: Mapping[str, str], cpus: int, workers: int) -> dict[str, str]:
    """OMP_NUM_THREADS for a worker's share of the CPUs, unless the user has set it."""
    return {} if "OMP_NUM_THREADS" in env else {"OMP_NUM_THREADS": str(max(1, cpus // max(1, workers)))}
