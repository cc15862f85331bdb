"""selasticd's planner as one more policy inside the simulator of Pollux's artifact.

How fast a job trains, how much a sample is worth and when it is done are that simulator's to say; ours are a round of
the daemon's planner at each of its decisions, and what Slurm allocates (`daemon/simulator/cluster.py`). The planner
knows of a job what its reports say: step time and exposed communication with 3 % noise, gradient noise scale with 10 %.
Limit: every resize succeeds, and takes effect at the decision, as for the other policies there.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas
import public_data  # noqa: F401  # formats of traces
from pollux_artifact import NCF_BATCH, NODES, PER_NODE, application, unmeasured

from slurm_elastic.daemon.models.cache import observation
from slurm_elastic.daemon.models.priors import CLUSTER_COUNTS, PROGRAM_COUNTS, RUNS_OF_PROGRAM
from slurm_elastic.daemon.optimizer.models.learning import learn
from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.prior import DEFAULT, Prior
from slurm_elastic.daemon.optimizer.models.throughput import fit
from slurm_elastic.daemon.planner.running.state import Remaining
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.simulator.job_states import REPORTS_AFTER_S, JobStates
from slurm_elastic.daemon.simulator.jobs import SimulatedJob, SimulationSettings, prepare
from slurm_elastic.daemon.simulator.programs import Program
from slurm_elastic.daemon.simulator.replay import Elastic
from slurm_elastic.daemon.simulator.traces.formats import TraceJob, read
from slurm_elastic.db.parts.observations import YOUNGEST
from slurm_elastic.db.rows import ObservationRow

REPORTED_S = Settings.report_interval_s


@dataclass(frozen=True)
class Ours:
    """How the daemon takes part."""

    settings: Settings = field(default_factory=lambda: Settings(mode="act"))
    learned: bool = True
    """From reports; else it has the true curves."""
    pause_s: float = 30.0
    batch_pause_s: float = 0.0
    """Of a change of the batch alone."""
    asked: str = "one"
    """What a script asks Slurm for: one GPU, or the workload's tuned size."""
    history: bool = True
    """Whether the priors of programs are learned at each job's end, as selasticd does."""
    base: Prior | Mapping[str, Prior] = DEFAULT
    """The prior to start from, or one for each program."""
    step_noise: float = 0.03
    phi_noise: float = 0.10
    work_error: float = 1.0
    """What a script says of its remaining work is wrong by up to this factor, either way; infinite: it says nothing."""
    seed: int = 0


class Reports(JobStates):
    """What the planner knows of jobs inside the artifact's simulator."""

    def __init__(self, settings: SimulationSettings, ours: Ours, job_of: Callable[[int], Any]) -> None:
        super().__init__(settings)
        self.ours, self.job_of = ours, job_of
        self.noise = random.Random(ours.seed)
        self.rows: dict[int, dict[tuple[int, int, int], ObservationRow]] = defaultdict(dict)
        self.seen: dict[int, dict[tuple[int, int, int], Observation]] = defaultdict(dict)
        self.fitted: dict[int, tuple[Observation, ...]] = {}
        self.error: dict[int, float] = {}
        self.runs: dict[str, list[list[Observation]]] = defaultdict(list)
        self.priors: dict[str, Prior] = {}

    def report(self, i: int, job: SimulatedJob, now: float) -> None:
        """What it has measured at its present size and batch since the last decision, if it has trained long enough."""
        true = self.job_of(i)
        self.stale.add(i + 1)
        if true.grad_params is not None:
            squared, variance = true.grad_params
            phi = variance / max(1e-300, squared) * true.application.init_batch_size
            job.noise_scale = phi * math.exp(self.noise.gauss(0.0, self.ours.phi_noise))
        nodes = tuple(filter(None, true.placement))
        steps = true.accum_steps + 1
        key = sum(nodes), len(nodes), sum(nodes) * true.atomic_bsz * steps
        if now - job.since < REPORTS_AFTER_S:
            return
        whole, sync = true.application.get_throughput(nodes, true.atomic_bsz)
        seconds = float(whole + (steps - 1) * (whole - sync))
        share = float(sync) / seconds if key[0] > 1 else 0.0
        row = self.rows[i].get(key)
        row = row or ObservationRow(*key, int(true.atomic_bsz), steps, 0, seconds, 0.0, now, 0.0, share)
        self.rows[i][key] = row = self._again(row, seconds, share, int(min(now - job.since, 60.0) / REPORTED_S), now)
        self.seen[i][key] = observation(row)
        rows = tuple(self.seen[i].values())
        if self.ours.learned and rows != self.fitted.get(i):
            self.fitted[i] = rows
            job.model = fit(rows, self.prior(job.program.name))

    def _again(self, row: ObservationRow, seconds: float, share: float, reports: int, now: float) -> ObservationRow:
        """The row after so many further reports, each with noise of its own; it is over the youngest of them."""
        count = row.count + reports
        part, sigma = reports / min(count, YOUNGEST), self.ours.step_noise / math.sqrt(reports)
        seconds *= max(0.5, 1.0 + self.noise.gauss(0.0, sigma))
        share *= max(0.5, 1.0 + self.noise.gauss(0.0, sigma))
        seconds = row.step_time + part * (seconds - row.step_time)
        share = min(0.95, row.comm_share + part * (share - row.comm_share))
        return replace(row, count=count, step_time=seconds, comm_share=share, last_at=now)

    def learn(self, jobs: Iterable[tuple[int, SimulatedJob]], now: float) -> None:
        """Reports have come by `report` already."""

    def prior(self, program: str) -> Prior:
        """What is believed of a program before it is measured."""
        base = self.ours.base
        return self.priors.get(program) or (base if isinstance(base, Prior) else base[program])

    def learn_from(self, i: int, program: str) -> None:
        """A job has ended: as selasticd learns at night, from all the runs so far, for this program alone."""
        if self.seen[i] and self.ours.history:
            self.runs[program] = [*self.runs[program], list(self.seen[i].values())][-RUNS_OF_PROGRAM:]
            base = self.ours.base if isinstance(self.ours.base, Prior) else self.ours.base[program]
            groups = [(run, 1.0 / len(group)) for group in self.runs.values() for run in group]
            cluster = learn([run for run, _ in groups], [w for _, w in groups], base, CLUSTER_COUNTS)
            self.priors[program] = learn(self.runs[program], None, cluster, PROGRAM_COUNTS)

    def update(self, jobs: Iterable[tuple[int, SimulatedJob]]) -> None:
        """Make the states of these jobs."""
        for job_id, job in (made := list(jobs)):
            job.reports = self.seen[job_id - 1]
        super().update(made)
        for job_id, job in made:
            rows, left = self._rows(job_id - 1, job), self._remaining(job_id - 1, job)
            self.of[job_id] = replace(self.of[job_id], observations=rows, remaining=left)

    def _rows(self, i: int, job: SimulatedJob) -> tuple[ObservationRow, ...]:
        return tuple(replace(row, noise_scale=job.noise_scale or 0.0) for row in self.rows[i].values())

    def _remaining(self, i: int, job: SimulatedJob) -> Remaining | None:
        true = self.job_of(i)
        app = true.application
        if true.grad_params is None or not true.atomic_bsz or self.ours.work_error == math.inf:
            return None
        if i not in self.error:
            self.error[i] = self.ours.work_error ** self.noise.uniform(-1.0, 1.0)
        end = app.get_progress(app.get_completion_epoch(app.init_batch_size) + 1)
        squared, variance = true.grad_params
        phi = variance / max(1e-300, squared) * app.init_batch_size
        worth = (phi + app.init_batch_size) / (phi + max(1, job.batch))
        left = max(0.0, end - true.progress) * app.init_batch_size * self.error[i]
        return Remaining(float(left / worth), 0.0, job.since)


class Daemon(Elastic):
    """selasticd and Slurm beside the artifact's cluster: told who came and has ended, asked for nodes and batches."""

    def __init__(self, trace: Sequence[TraceJob], programs: dict[str, Program], ours: Ours, of: Callable[[str], Any]):
        rows = [asks(row, ours.asked) for row in trace]
        pauses = {"pause_s": ours.pause_s, "batch_pause_s": ours.batch_pause_s}
        settings = SimulationSettings(NODES * PER_NODE, PER_NODE, learned=ours.learned, **pauses)
        super().__init__(prepare(rows, programs, settings)[0], ours.settings.policy, settings)
        self.rules, self.ours, self.of = ours.settings, ours, of
        self.states = Reports(settings, ours, lambda i: of(self.jobs[i].trace.job_id))
        self.names = {job.trace.job_id: i for i, job in enumerate(self.jobs)}
        self.came = set[str]()

    def _push(self, at: float, kind: int, i: int, version: int) -> None:
        """Time is the artifact's."""

    def _want_decision(self, not_before: float = 0.0) -> None:
        """So are the decisions."""

    def _advance(self, job: SimulatedJob) -> None:
        """And progress."""

    def _set_rate(self, i: int) -> None:
        self.states.stale.add(i + 1)

    def _pause(self, i: int, seconds: float | None = None) -> None:
        job = self.jobs[i]
        job.nodes = len(self.cluster.held(i))
        job.resume_at = max(self.now, job.resume_at) + (self.ours.pause_s if seconds is None else seconds)
        job.since = job.resume_at
        if seconds is None:
            job.moves += 1
        elif seconds:
            self.of(job.trace.job_id).rescale_time = seconds
        self._set_rate(i)

    def tick(self, now: float, alive: Sequence[str]) -> None:
        """One decision."""
        self.now = now
        for i in [i for i, job in self.running.items() if job.trace.job_id not in alive]:
            self.states.learn_from(i, self.jobs[i].program.name)
            self._left(i)
        for name in alive:
            if name not in self.came:
                self.came.add(name)
                self.cluster.submit(self.names[name])
        for i, job in self.running.items():
            self.states.report(i, job, now)
        self._schedule()
        begun = -1
        while begun < self.resizes:  # a growth onto what a shrink frees is begun by the next round, seconds later
            begun = self.resizes
            self._decide()


def asks(row: TraceJob, asked: str) -> TraceJob:
    """A job of the workload as its script asks for it."""
    gpus = {"one": 1, "node": PER_NODE}.get(asked, row.gpus)
    if row.program == "ncf":
        return replace(row, gpus=1, min_gpus=1, max_gpus=1, batch=NCF_BATCH, min_batch=NCF_BATCH, max_batch=NCF_BATCH)
    return replace(row, gpus=gpus, min_gpus=1, batch=row.batch if asked == "tuned" else 0)


def cluster(module: ModuleType, file: Path, policy: Ours | str) -> tuple[Any, Any]:
    """(the artifact's cluster with a workload, its policy): ours, or one of the artifact's."""
    made = policy_of(module, read(file.read_text(), str(file)), policy) if isinstance(policy, Ours) else None
    found = module.Cluster(pandas.read_csv(file), made or _theirs(module, policy, lambda: found.current_time), NODES)
    if made is not None:
        made.begin(found)
    elif policy != "pollux":
        unmeasured(found.jobs)
    return found, made


def _theirs(module: ModuleType, name: Ours | str, now: Callable[[], float]) -> Any:
    if name == "pollux":
        return module.PolluxPolicy()
    if name == "optimus":
        return module.OptimusPolicy()
    made = module.TiresiasPolicy(now)
    if name == "fifo":  # without its second queue: who came later runs where there is room, until those before fit
        made._queue_threshold = math.inf
    return made


def policy_of(module: ModuleType, trace: Sequence[TraceJob], ours: Ours) -> Any:
    """What the artifact's cluster takes for a policy, with jobs set up as for Pollux. `begin(cluster)` comes first."""

    class Policy(module.PolluxPolicy):  # type: ignore[misc,name-defined]
        def begin(self, cluster: Any) -> None:
            jobs = {job.name: job for job in cluster.jobs}
            programs: dict[str, Program] = {name: application(app) for name, app in module.APPLICATIONS.items()}
            self.cluster, self.true = cluster, jobs
            unmeasured(cluster.jobs)
            self.daemon = Daemon(trace, programs, ours, jobs.__getitem__)

        def optimize(self, jobs: Any, nodes: Any, base_allocations: Any, node_template: Any) -> Any:
            daemon = self.daemon
            daemon.tick(self.cluster.current_time, list(jobs))
            out = {}
            for i, job in daemon.running.items():
                name = job.trace.job_id
                held = daemon.cluster.held(i)
                out[name] = [node for node in sorted(held) for _ in range(held[node])]
                self.true[name].target_batch_size = job.batch
                if out[name] == base_allocations.get(name):  # a new batch counts from now on
                    self.true[name].update_local_bsz(self.true[name].placement)
            return out, len(nodes)

        @property
        def moves(self) -> int:
            """Resizes of all jobs; changes of a batch alone are none."""
            return sum(job.moves for job in self.daemon.jobs)

    return Policy()
