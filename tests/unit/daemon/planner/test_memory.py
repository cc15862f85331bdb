"""What the planner keeps from round to round changes no decision, whatever changes between the rounds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from slurm_elastic.daemon.capacity.roster import ElasticJob
from slurm_elastic.daemon.planner import Inputs, JobState, Plan, decide, plan_round
from slurm_elastic.daemon.planner.decide import Decisions
from slurm_elastic.daemon.planner.memory import Memory
from slurm_elastic.daemon.planner.running.job import RunningJob
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.services.elastic import jobs as elastic_jobs
from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.programs import builtin
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.db.rows import Mark

NODES, GPUS = 6, 4


class Rounds:
    """The rounds of a simulation in which owners pin jobs, an admin changes settings and drains nodes, and a waiting
    job asks for a node by name. Each is decided on with the kept memory, and again with an empty one."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pins: dict[int, tuple[JobState, JobState]] = {}
        """By job id: the state that is pinned, and the same with the pin."""
        self.settings: Settings | None = None
        self.site, self.drained, self.named = Site(), "", ""
        self.rounds = self.reused = self.left_out = 0
        self.marks: dict[int, Mark] = {}
        """Of the decisions that stand."""
        self.fair: tuple[Settings, Settings] | None = None
        self.owned: dict[int, tuple[ElasticJob, ElasticJob]] = {}
        """By job id: the job as it comes, and as somebody's."""
        self._before: dict[int, RunningJob] = {}

    def __call__(self, inputs: Inputs, with_rows: bool = True) -> Plan:
        inputs = self._changed(inputs)
        plan, fresh = plan_round(inputs, with_rows), decide(replace(inputs, memory=Memory()))
        kept = plan.decisions
        assert kept is not None
        assert decided(kept) == decided(fresh)
        if self.rounds % 4 == 0:
            self._check_rows(inputs)
        running_jobs = dict(kept.context.running_jobs)
        self.reused += sum(self._before.get(job_id) is running for job_id, running in running_jobs.items())
        self.rounds, self._before = self.rounds + 1, running_jobs
        return plan

    def _check_rows(self, inputs: Inputs) -> None:
        """What is written down is the same as well, and only of decisions that do not stand."""
        fresh = plan_round(replace(inputs, memory=Memory()))
        assert plan_round(inputs) == fresh
        new = tuple(row for row in fresh.rows if row.mark != self.marks.get(row.job_id))
        running = {job_id for job_id, job in inputs.roster.elastic.items() if job.running}
        made = plan_round(replace(inputs, marks=self.marks)).rows
        assert [row for row in made if row.job_id in running] == [row for row in new if row.job_id in running]
        self.left_out += len(fresh.rows) - len(new)
        self.marks = {row.job_id: row.mark for row in fresh.rows}

    def _changed(self, inputs: Inputs) -> Inputs:
        """This round's inputs: now and then something changes, and stays so for a while."""
        chance, nodes = self.random, sorted(inputs.snapshot.nodes)
        if chance.random() < 0.1:
            self.drained = chance.choice(["", *nodes])
        if chance.random() < 0.1:
            self.named = chance.choice(["", "", "", *nodes[:3]])
        if chance.random() < 0.1:
            self.site = Site(switches={node: f"leaf{chance.randrange(2)}" for node in nodes})
        if chance.random() < 0.1:
            cooldown_s = chance.choice((0.0, 120.0, 900.0))
            self.settings = replace(inputs.settings, cooldown_grow_s=cooldown_s, horizon_s=10 * cooldown_s + 600.0)
        found, jobs = dict(inputs.snapshot.nodes), dict(inputs.snapshot.jobs)
        if self.drained:
            found[self.drained] = replace(found[self.drained], flags=frozenset({"IDLE", "DRAIN"}))
        for job in inputs.snapshot.jobs.values():
            if self.named and job.pending and job.num_nodes == 1:
                jobs[job.job_id] = replace(job, required_nodes=(self.named,))
        return replace(
            inputs,
            snapshot=replace(inputs.snapshot, nodes=found, jobs=jobs),
            roster=replace(inputs.roster, elastic={i: self._owned(job) for i, job in inputs.roster.elastic.items()}),
            states={job_id: self._pinned(job_id, inputs) for job_id in inputs.states},
            settings=self._fair(self.settings or inputs.settings),
            site=self.site,
        )

    def _fair(self, settings: Settings) -> Settings:
        """Between accounts: the same object for the same settings."""
        if self.fair is None or self.fair[0] is not settings:
            self.fair = settings, replace(settings, fairness="account")
        return self.fair[1]

    def _owned(self, job: ElasticJob) -> ElasticJob:
        """Three accounts share the cluster; what comes and goes in one of them changes the weights of all."""
        known, owned = self.owned.get(job.job_id, (None, job))
        if known is not job:
            owned = replace(job, base=replace(job.base, account=f"lab{job.job_id % 3}"))
            self.owned[job.job_id] = job, owned
        return owned

    def _pinned(self, job_id: int, inputs: Inputs) -> JobState:
        state = inputs.states[job_id]
        if self.random.random() < 0.03:
            job = inputs.roster.elastic[job_id]
            pin = self.random.choice([None, *job.request.sizes()])
            self.pins[job_id] = state, replace(state, pinned=pin)
        known, pinned = self.pins.get(job_id, (None, state))
        if known is not state and known is not None:
            pinned = replace(state, pinned=pinned.pinned)
            self.pins[job_id] = state, pinned
        return pinned


def decided(made: Decisions) -> tuple[object, ...]:
    """Everything that a round gives to others."""
    allocation, room = made.allocation, made.context.room
    return (
        made.moves, made.begun, made.capacity, made.idle, made.resumes, made.context.running_jobs,
        made.context.limiting_reasons,
        allocation.value, allocation.bound, allocation.trouble, room.served, room.unserved, room.forced,
        {job_id: target for job_id, (_, _, target) in allocation.answers.items()},
    )  # fmt: skip


def trace_of(chance: random.Random) -> list[TraceJob]:
    """Elastic jobs of the built-in classes, and rigid ones among them."""
    at, rows = 0.0, []
    for i in range(40):
        at += chance.expovariate(1 / 150.0)
        program = chance.choice([*sorted(builtin()), "unknown"])
        gpus, duration_s = chance.choice([1, 2, 4, 8]), chance.uniform(200, 3000)
        rows.append(TraceJob(str(i), at, program, gpus, 64, duration_s=duration_s))
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_decisions_with_a_kept_memory_are_those_with_none(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over simulated days with changes of every kind, and most of what is known is really used again."""
    rounds = Rounds(seed)
    monkeypatch.setattr(elastic_jobs, "plan_round", rounds)
    settings = SimulationSettings(
        NODES * GPUS, GPUS, pause_s=20.0, grow_wait_s=(0.0, 90.0)[seed % 2], learned=seed % 3 == 0, seed=seed
    )
    simulate(trace_of(random.Random(seed)), builtin(), ("auto", "throughput")[seed % 2], settings)
    assert rounds.rounds > 50 and rounds.reused > 30 and rounds.left_out > 10
