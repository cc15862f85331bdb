"""Fixed sizes with multilevel feedback, in the manner of Tiresias (NSDI 2019): a comparison, not a recommendation.

Every job runs at the size and batch that it asked for, or not at all. Its priority falls with the GPU-seconds that it
has had (discretised least attained service); within a queue the first submitted is the first. A job that others pass
keeps its progress, and pays a pause when it goes on. Ours, after the paper's description, without its promotion of
jobs that waited long: on workload 1 of RESULTS.md that only costs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from slurm_elastic.daemon.simulator.engine import Outcome, Simulation
from slurm_elastic.daemon.simulator.jobs import SimulatedJob, SimulationSettings, prepare
from slurm_elastic.daemon.simulator.programs import Program
from slurm_elastic.daemon.simulator.traces.formats import TraceJob

LEVELS = (3600.0, 14400.0, 57600.0)
"""GPU-seconds had at which a job falls to the next queue: 1, 4 and 16 GPU-hours, the best of those tried there."""
INFINITE = float("inf")


def level(job: SimulatedJob) -> int:
    """A job's queue, 0 first."""
    return bisect_right(LEVELS, job.gpu_seconds)


def falls_in(job: SimulatedJob) -> float:
    """Seconds until a running job falls to the next queue; infinite in the last one."""
    at = level(job)
    return (LEVELS[at] - job.gpu_seconds) / job.asked if at < len(LEVELS) else INFINITE


class Feedback(Simulation):
    """The simulation under this discipline instead of the optimizer."""

    def _decide(self) -> None:
        """Who runs: by queue, then by submission, whoever's shape can be had; the others wait."""
        self.decisions += 1
        self.decided_at = self.now
        for i in self.running:
            self._advance(self.jobs[i])
        here = [*self.running, *self.waiting]
        order = sorted(here, key=lambda i: (level(self.jobs[i]), self.jobs[i].trace.submit_s, i))
        left, chosen = self.settings.gpus, list[int]()
        for i in order:
            if self.jobs[i].asked <= left:
                left -= self.jobs[i].asked
                chosen.append(i)
        for i in set(self.running).difference(chosen):
            self._suspend(i)
        for i in chosen:
            if i not in self.running and self.slurm.start(i + 1, self.now):
                self._started(i)
        self._drop_new()
        soonest = min((falls_in(self.jobs[i]) for i in self.running), default=INFINITE)
        if self.waiting and soonest < INFINITE:
            self._want_decision(self.now + max(1.0, soonest))

    def _drop_new(self) -> None:
        """In drop mode those that never ran are dropped."""
        for i in self.waiting if self.settings.drop else ():
            if self.jobs[i].start_s < 0:
                self.jobs[i].dropped = True
                self.cluster.end(i)

    def _suspend(self, i: int) -> None:
        """Take a running job off its GPUs; its progress is kept."""
        job = self.jobs[i]
        job.version += 1
        job.held = job.gpus = 0
        self._left(i)
        self.cluster.submit(i)


def simulate_feedback(
    trace: Sequence[TraceJob], programs: dict[str, Program], settings: SimulationSettings
) -> tuple[Outcome, list[str]]:
    """As the simulator's own `simulate`, under this discipline."""
    jobs, assumptions = prepare(trace, programs, settings, "")
    return Feedback(jobs, "feedback", settings).run(), assumptions
