"""This module asks Slurm for the companions of a base job, finds them, and gives them back. It never blocks.

Whatever was asked for is cancelled when it is dropped, also when the grant and the change of mind cross, and forgotten
when the job uses it no more. At the end Slurm itself is asked for what still carries this job's tag, until it lists
nothing. Should the whole host die, the agents on the companions (and selasticd) see to their end.
"""

import getpass
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.errors import SlurmError
from slurm_elastic.protocol.messages import Shape
from slurm_elastic.protocol.text.times import slurms_time

from ..control.event_loop import Children, Ended, Loop
from . import commands
from .pieces.events import ClockDiffers, CompanionGranted, CompanionRefused, Event
from .slurm_job import SlurmJob, parse_job

Emit = Callable[[Event], None]
_JOB_ID = re.compile(r"job allocation (\d+)")
KILL_AFTER_S = 10.0
_SUBMITTED = re.compile(r"(\d+)")
"""What sbatch --parsable prints begins with the job id."""
CONFIGURING_S, QUEUED_S = 0.5, 1.0
"""Pauses between two looks at a companion whose nodes boot, and at one that waits in the queue."""
LOOKED_AT_S = 60.0
"""Until Slurm's backfill has looked at a request that was made shorter: it has to fit then, too."""
ASK_AGAIN_S = 2.0
"""Pause before another try, after Slurm granted a companion without its GPUs."""
CLOCKS_DIFFER_S = 60.0
"""A difference of clocks from which on somebody should set this host's."""
CANCEL_AGAIN_S = 5.0
SWEEP_S = 1.0
"""Pause before a sweep that failed is tried again."""
MOST_SAID = 500


@dataclass(slots=True)
class CompanionRequest:
    """One companion from the request to its end."""

    resize_id: int
    index: int
    shape: Shape
    forms: list[commands.Form]
    """The ways to ask for it that are left, the present one first."""
    refusals: list[str] = field(default_factory=list)
    """What Slurm said to the ways that were tried before."""
    process: subprocess.Popen[bytes] | None = None
    job_id: int = 0
    minutes: int | None = None
    """The time limit that it was asked for with; None: none."""
    whole_nodes: bool = False
    """It gets all GPUs of its nodes, as its base has."""
    dropped: str = ""
    reported: bool = False


class Companions:
    """CompanionGranted or CompanionRefused is emitted once for each, not both."""

    def __init__(
        self,
        loop: Loop,
        children: Children,
        env: Mapping[str, str],
        base_id: int,
        nproc: int,
        emit: Emit,
    ) -> None:
        """nproc: workers per node, where Slurm gives no GPUs."""
        self._loop, self._children, self._env, self._base = loop, children, env, base_id
        self._nproc, self._emit = nproc, emit
        self._asked: list[CompanionRequest] = []
        """The requests under way, and those of granted companions that the job uses."""
        self._jobs: dict[int, SlurmJob] = {}
        """The jobs of granted companions, by job id."""
        self._granted: commands.Form | None = None
        """How the last one was had: that way is tried first."""
        self.swept = False
        """After `close`: nothing of this job is left in Slurm."""

    def submit(self, resize_id: int, index: int, shape: Shape, wait_s: float) -> None:
        """Ask for a companion. A request without nodes after `wait_s` seconds is taken back and refused."""
        forms = sorted(commands.forms(shape.by, shape.node_list), key=lambda form: form != self._granted)
        asked = CompanionRequest(resize_id, index, shape, forms)
        self._asked.append(asked)
        self._loop.after(max(wait_s, 1.0), lambda: self._too_late(asked, wait_s))
        for part in (1, 2):
            self._loop.after(part * wait_s / 3, lambda: self._shorten(asked))
        self._begin(asked)

    def drop(self, resize_id: int) -> None:
        """Give back every companion of a resize, pending or granted."""
        for asked in [asked for asked in self._asked if asked.resize_id == resize_id]:
            self._take_back(asked, "no longer wanted")

    def cancel(self, job_id: int) -> None:
        """Give a granted companion back. While slurmctld does not answer this is tried again."""

        def ended(how: Ended) -> None:
            if how.code != 0 and commands.unanswered(how.err):
                self._loop.after(CANCEL_AGAIN_S, lambda: self.cancel(job_id))

        self._children.start(commands.scancel([job_id]), self._env, ended)

    def retain(self, job_ids: Set[int]) -> None:
        """Forget the companions that were granted and are none of these: the job uses them no more."""
        self._asked = [asked for asked in self._asked if asked.job_id not in self._jobs or asked.job_id in job_ids]
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id in job_ids}

    def close(self, done: Callable[[], None]) -> None:
        """Give back whatever Slurm lists with this job's tag; `done` is called when that is nothing any more."""
        for asked in self._asked:
            self._stop_asking(asked, "the job has ended")
        self._sweep(done)

    # --- on the way to a grant --------------------------------------------------------------------------------

    def _begin(self, asked: CompanionRequest) -> None:
        if not asked.dropped:
            self._children.start(commands.show_job(self._base), self._env, lambda ended: self._ask(asked, ended))

    def _ask(self, asked: CompanionRequest, base: Ended) -> None:
        if asked.dropped:
            self._refuse(asked, asked.dropped)
            return
        if base.code != 0:
            self._refuse(asked, f"Slurm does not show job {self._base}: {said(base.err)}")
            return
        try:
            job = parse_job(base.out, self._base, self._expand)
        except SlurmError as error:
            self._refuse(asked, f"{error} {base.err.strip()}".strip())
            return
        self._children.start(
            commands.show_slurms_time(), self._env, lambda ended: self._ask_until(asked, job, self._now_of_slurm(ended))
        )

    def _now_of_slurm(self, stats: Ended) -> float:
        """Slurm's time; this host's where Slurm does not say it."""
        own, found = time.time(), slurms_time(stats.out)
        if found is not None and abs(own - found) >= CLOCKS_DIFFER_S:
            self._emit(ClockDiffers(own - found))
        return own if found is None else found

    def _ask_until(self, asked: CompanionRequest, base: SlurmJob, now: float) -> None:
        if asked.dropped:
            self._refuse(asked, asked.dropped)
            return
        left = [minutes_left(base.end_time, now), asked.shape.minutes or None]
        asked.minutes = min((one for one in left if one is not None), default=None)
        asked.whole_nodes = base.exclusive

        def answered(ended: Ended) -> None:
            refused, others = said(ended.err), asked.forms[1:]
            if base.features.startswith("["):  # only nodes that are named are sure to be of the base's kind
                others = [form for form in others if form[1]]
            if ended.code != 0 and not asked.dropped and others and commands.of_the_site(refused):
                asked.refusals.append(refused)
                asked.forms = others
                self._ask_until(asked, base, now)
            else:
                self._answered(asked, ended)

        command = commands.companion(asked.shape, base, asked.resize_id, asked.minutes, asked.forms[0])
        process = self._children.start(command, self._env, answered)
        asked.process = process if asked.forms[0][0] == "salloc" else None  # sbatch ends by itself, and tells the job

    def _shorten(self, asked: CompanionRequest) -> None:
        """Slurm keeps it waiting. Where that is for a job that is to start on its nodes before it would end, let it end
        by then. Asked for with --time-min, Slurm 22.05 would have granted the least of it, whatever else fits."""

        def told(starts: Mapping[int, str], now: float) -> None:
            for job_id, start in starts.items():
                fits = minutes_left(start, now + LOOKED_AT_S) or 0
                if fits >= commands.TIME_MIN and (asked.minutes is None or fits < asked.minutes):
                    asked.minutes = fits
                    self._children.start(commands.limit_time(job_id, fits), self._env, lambda ended: None)

        def listed(listing: Ended) -> None:
            starts = commands.shorter(listing.out, self._base, asked.resize_id, self._expand)
            if starts:
                stats = commands.show_slurms_time()
                self._children.start(stats, self._env, lambda ended: told(starts, self._now_of_slurm(ended)))

        if not asked.reported and not asked.dropped:
            self._children.start(commands.list_waiting(), self._env, listed)

    def _answered(self, asked: CompanionRequest, ended: Ended) -> None:
        asked.process = None
        found = _JOB_ID.search(ended.err) or _SUBMITTED.match(ended.out)
        asked.job_id = int(found.group(1)) if found else 0
        if asked.dropped or ended.code != 0:
            # A pending request that salloc was killed over is revoked by itself, a granted one is not.
            self._cancel(asked)
            told = [*asked.refusals, said(ended.err) or f"{asked.forms[0][0]} ended with code {ended.code}"]
            self._refuse(asked, asked.dropped or "; ".join(dict.fromkeys(told))[:MOST_SAID])
            return
        self._look(asked)

    def _look(self, asked: CompanionRequest) -> None:
        self._children.start(commands.show_job(asked.job_id), self._env, lambda ended: self._seen(asked, ended))

    def _seen(self, asked: CompanionRequest, ended: Ended) -> None:
        if asked.dropped:
            return
        if "JobState=PENDING" in ended.out or (ended.code != 0 and commands.unanswered(ended.err)):
            self._loop.after(QUEUED_S, lambda: self._look(asked))
            return
        try:
            job = parse_job(ended.out, asked.job_id, self._expand)
        except SlurmError as error:
            self._take_back(asked, f"companion {asked.job_id}: {error} {ended.err.strip()}".strip())
            self._refuse(asked, asked.dropped)
            return
        if job.state == "CONFIGURING":
            self._loop.after(CONFIGURING_S, lambda: self._look(asked))
        elif not self._nproc and min(job.gpus) < asked.shape.gpus_per_node:
            # A slurmctld that has just started, or taken over, knows no GPUs of nodes that it has not heard of yet.
            self._cancel(asked)
            asked.job_id = 0
            self._loop.after(ASK_AGAIN_S, lambda: self._begin(asked))
        elif not asked.reported:
            self._grant(asked, job)

    def _grant(self, asked: CompanionRequest, job: SlurmJob) -> None:
        why = commands.not_as_asked(job, self._base, asked.resize_id, asked.shape, asked.whole_nodes, asked.minutes)
        try:
            piece = job.piece("companion", self._nproc)
        except ValueError as error:
            why = str(error)
        if why:
            self._take_back(asked, why)
            self._refuse(asked, asked.dropped)
            return
        asked.reported = True
        self._granted = asked.forms[0]
        self._jobs[job.job_id] = job
        self._emit(CompanionGranted(asked.resize_id, asked.index, piece))

    def _too_late(self, asked: CompanionRequest, wait_s: float) -> None:
        if not asked.reported and not asked.dropped:
            self._take_back(asked, f"Slurm granted no companion within {wait_s:.0f} s")
            self._refuse(asked, asked.dropped)

    # --- giving back ------------------------------------------------------------------------------------------

    def _take_back(self, asked: CompanionRequest, why: str) -> None:
        if not asked.dropped:
            self._stop_asking(asked, why)
            self._cancel(asked)
            self._forget(asked)

    def _stop_asking(self, asked: CompanionRequest, why: str) -> None:
        asked.dropped = asked.dropped or why
        if asked.process is not None:
            process = asked.process
            process.terminate()
            self._loop.after(KILL_AFTER_S, lambda: process.kill() if process.poll() is None else None)

    def _cancel(self, asked: CompanionRequest) -> None:
        if asked.job_id:
            self.cancel(asked.job_id)

    def _forget(self, asked: CompanionRequest) -> None:
        self._asked = [other for other in self._asked if other is not asked]
        self._jobs.pop(asked.job_id, None)

    def _sweep(self, done: Callable[[], None]) -> None:
        def again() -> None:
            self._loop.after(SWEEP_S, lambda: self._sweep(done))

        def listed(listing: Ended) -> None:
            left = commands.tagged(listing.out, self._base)
            if listing.code != 0:  # not "nothing left": those that are known are not kept waiting for it
                left = [asked.job_id for asked in self._asked if asked.job_id]
            if left:
                self._children.start(commands.scancel(left), self._env, lambda ended: cancelled(ended, listing))
            elif listing.code != 0:
                again()
            else:
                over()

        def cancelled(ended: Ended, listing: Ended) -> None:
            if ended.code != 0 or listing.code != 0:
                again()
            else:
                over()

        def over() -> None:
            self.swept = True
            done()

        self._children.start(commands.list_own_jobs(getpass.getuser()), self._env, listed)

    def _refuse(self, asked: CompanionRequest, why: str) -> None:
        self._forget(asked)
        if not asked.reported:
            asked.reported = True
            self._emit(CompanionRefused(asked.resize_id, asked.index, munge.with_cause(why)))

    def _expand(self, expression: str) -> tuple[str, ...]:
        return expand(expression, self._env)


def expand(expression: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """A host list expression as names; Slurm's own expansion, which asks no daemon."""
    if "[" not in expression:
        return tuple(expression.split(","))
    return tuple(answer_to(commands.show_hostnames(expression), env).stdout.split())


def answer_to(command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What one of Slurm's commands says, in which the names of files are what they are for Python in this locale."""
    return subprocess.run(
        command,
        env=dict(env),
        capture_output=True,
        timeout=60,
        check=False,
        encoding=sys.getfilesystemencoding(),
        errors="surrogateescape",
    )


def said(answer: str) -> str:
    """All that salloc or sbatch said, in one line: the limit is named in the line before the last one."""
    lines = (re.sub(r"^s(alloc|batch): (error: )?", "", line.strip()) for line in answer.splitlines())
    return "; ".join(line for line in lines if line)[:MOST_SAID]


def minutes_left(end_time: str, now: float) -> int | None:
    """Whole minutes until Slurm's `EndTime`, so that nothing outlasts it, but at least one; None: no end."""
    try:
        end = time.mktime(time.strptime(end_time, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
    return max(1, int((end - now) // 60))
