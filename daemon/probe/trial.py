"""The jobs of one probe: submitted under one name, counted, and cancelled however it ends.

Promise: no more jobs and no more minutes than were allowed; nothing is written but one small file below /tmp of the
node where the batch script runs, which the script removes. Limit: where slurmctld does not answer at the end, the jobs
stay for their few minutes, and the command that cancels them is said.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import NamedTuple

from slurm_elastic.protocol.errors import ElasticError

from ..slurm.commands import MAX_SAID, NO_ANSWER
from ..slurm.nodelist import expand

ANSWER_S, WAIT_S, ENDS_S = 20.0, 60.0, 15.0
"""For a command of Slurm's, for a job to start, and for all jobs to be cancelled."""
ENDED = "CANCELLED", "COMPLETED", "FAILED", ""
"""States of a job that holds nothing any more; empty: Slurm has forgotten it."""
_OF_A_JOB = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SCANCEL_", "SCONTROL_", "PMI")


class Refused(ElasticError):
    """Slurm or the site said no; the sentence is theirs."""


class NotTried(ElasticError):
    """Something else is in the way."""


class State(NamedTuple):
    state: str = ""
    nodes: tuple[str, ...] = ()
    batch_host: str = ""
    reason: str = ""


class Trial:
    """Of one probe. Use it as a context manager: in the end nothing of it is left in the queue."""

    def __init__(self, partition: str, gres: str, options: Sequence[str] = (), jobs: int = 8, minutes: int = 5) -> None:
        """gres: of each node of a job. options: further ones of sbatch and salloc. jobs, minutes: at most so many."""
        self.partition, self.gres, self._options, self._jobs, self._minutes = partition, gres, options, jobs, minutes
        self.gpus = int(gres.rpartition(":")[2])
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self.name = f"selastic-probe-{secrets.token_hex(6)}"
        """Of every job."""
        self.submitted = 0
        self._until = time.monotonic() + 60 * minutes
        self._started: list[subprocess.Popen[str]] = []
        self._env = {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or not k.startswith(_OF_A_JOB)}

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        mine = (f"--user={self.user}", f"--name={self.name}")
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: the command below is said in its place
            for process in self._started:
                self.end(process)
            self._until = time.monotonic() + ENDS_S
            while self.submitted and time.monotonic() < self._until:
                with contextlib.suppress(Refused, NotTried):
                    self.slurm("scancel", *mine)
                    if not self.slurm("squeue", "-h", "-a", *mine, "-t", "PENDING,RUNNING,CONFIGURING,SUSPENDED"):
                        return
                time.sleep(0.5)
        if self.submitted:
            raise ElasticError(f"not all jobs could be cancelled; to do it: {shlex.join(['scancel', *mine])}")

    @property
    def left_s(self) -> float:
        """Of its minutes. Raises NotTried when they are over."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise NotTried(f"its {self._minutes} minutes were over (--minutes)")
        return left

    def one_more(self, nodes: int) -> list[str]:
        """Options of one more job. Raises NotTried where it may not be submitted."""
        if self.submitted >= self._jobs:
            raise NotTried(f"its {self._jobs} jobs were used up (--jobs)")
        self.submitted += 1
        words = [f"--nodes={nodes}", "--ntasks-per-node=1", f"--gres={self.gres}"]
        words += [f"--time={int(self.left_s // 60) + 2}", f"--partition={self.partition}"]
        return [*words, f"--job-name={self.name}", *self._options]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command, with all that is Slurm's own kept from it; what it prints can be read."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=pipe, errors="replace", env=self._env, start_new_session=True
        )
        self._started.append(process)
        return process

    def said(self, process: subprocess.Popen[str], within_s: float = ANSWER_S, stdin: str = "") -> str:
        """All that it prints. Raises Refused where it fails, and NotTried where that takes too long."""
        try:
            out, errors = process.communicate(stdin, min(within_s, self.left_s))
        except subprocess.TimeoutExpired:
            self.end(process)
            raise NotTried(f"no answer within {within_s:.0f} s") from None
        if process.returncode != 0:
            raise refusal(errors or out or f"exit status {process.returncode}")
        return out

    def slurm(self, *words: str, stdin: str = "") -> str:
        """What a command of Slurm's prints. Raises as `said` does."""
        return self.said(self.start(*words), stdin=stdin)

    def sbatch(self, script: str, *words: str) -> int:
        """A batch job; its number."""
        said = self.slurm("sbatch", "--parsable", "--output=/dev/null", "--chdir=/", *words, stdin=script)
        return int(said.split(";")[0])

    def step(self, job: int, node: str, *command: str, gres: str = "none") -> subprocess.Popen[str]:
        """A command on one node of a job, as `selastic run` starts its agents."""
        words = ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--mem=0"]
        words += ["--immediate=20", "--mpi=none", "--cpu-bind=none", "--input=none", "--unbuffered", f"--gres={gres}"]
        return self.start(*words, *command)

    def on(self, job: int, node: str, *command: str, gres: str = "none", within_s: float = ANSWER_S) -> str:
        """What a command on a node of a job prints. Raises as `said` does."""
        return self.said(self.step(job, node, *command, gres=gres), within_s)

    def end(self, process: subprocess.Popen[str]) -> None:
        """End a command, and what it has started itself."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    process.wait(2)

    def state(self, job: int) -> State:
        """What Slurm says of a job now."""
        with contextlib.suppress(Refused):  # forgotten already
            said = self.slurm("squeue", "-h", "-a", "-t", "all", "-j", str(job), "-o", "%A|%T|%N|%B|%r")
            for line in said.splitlines():  # of all its components
                number, state, nodes, host, reason = line.split("|", 4)
                if number == str(job):
                    return State(state, expand(nodes), host, reason)
        return State()

    def wait(self, job: int, *states: str, within_s: float = WAIT_S) -> State:
        """The job once it is in one of these states. Raises NotTried when it is not."""
        until = time.monotonic() + within_s
        while (now := self.state(job)).state not in states:
            if time.monotonic() > until or now.state in ENDED:
                raise NotTried(f"job {job} was {now.state or 'gone'} ({now.reason}) in place of {states[0]}")
            time.sleep(0.2)
        return now


def refusal(said: str) -> Refused | NotTried:
    """What a failed command means by its words."""
    words = "; ".join(dict.fromkeys(line.strip() for line in said.splitlines() if line.strip()))[:MAX_SAID]
    return NotTried(f"no answer: {words}") if NO_ANSWER.search(words) else Refused(words)
