"""What the planner keeps from round to round changes no decision, whatever changes between the rounds."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_cases import NOW, REQUEST, Curve, World, closed, seen
from store_records import resize_row

from slurm_elastic.daemon.actions.refusals import Refusal
from slurm_elastic.daemon.capacity.roster import ElasticJob
from slurm_elastic.daemon.capacity.shrink_options import ShrinkableJob
from slurm_elastic.daemon.models.cache import observations
from slurm_elastic.daemon.optimizer.job_view import JobView
from slurm_elastic.daemon.optimizer.policies import POLICIES
from slurm_elastic.daemon.planner import Inputs, JobState, Plan, decide, plan_round
from slurm_elastic.daemon.planner.moves import Move, TargetSize
from slurm_elastic.daemon.planner.running.job import AcceptedSizes, RunningJob
from slurm_elastic.daemon.planner.running.state import Remaining
from slurm_elastic.daemon.planner.tables import Tables
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.services import elastic as elastic_jobs
from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.programs import builtin
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.db.rows import HostPair, Mark
from slurm_elastic.protocol.codes import EventKind
from slurm_elastic.protocol.messages import Resize

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
        plan, fresh = plan_round(inputs, with_rows), decide(replace(inputs, tables=Tables()))
        assert decided(plan) == decided(fresh)
        if self.rounds % 4 == 0:
            self._check_rows(inputs)
        running_jobs = dict(plan.context.running_jobs)
        self.reused += sum(self._before.get(job_id) is running for job_id, running in running_jobs.items())
        self.rounds, self._before = self.rounds + 1, running_jobs
        return plan

    def _check_rows(self, inputs: Inputs) -> None:
        """What is written down is the same as well, and only of decisions that do not stand."""
        fresh = plan_round(replace(inputs, tables=Tables()))
        assert shown(inputs) == (*decided(fresh), fresh.rows)
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


def decided(made: Plan) -> tuple[object, ...]:
    """Everything that a round gives to others."""
    allocation, room = made.allocation, made.context.room
    running_jobs = made.context.running_jobs.items()
    return (
        {job_id: plain(move) for job_id, move in made.moves.items()}, [plain(move) for move in made.begun],
        made.capacity, made.idle, made.resumes, {job_id: plain(running) for job_id, running in running_jobs},
        made.context.limiting_reasons, made.resizes, made.withdrawn, made.first, made.fell_back,
        allocation.value, allocation.bound, allocation.trouble, room.served, room.unserved, room.forced,
        {name: plan for name, (_, plan) in allocation.plans.items()},
    )  # fmt: skip


OF_ITSELF = (RunningJob, JobView, ShrinkableJob, Move, TargetSize)


def plain(value: object) -> object:
    """What says as much of things that are equal to themselves alone, or hold such: their fields."""
    if isinstance(value, AcceptedSizes):
        return value.ascending
    if isinstance(value, OF_ITSELF):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    return value


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
    simulated = SimulationSettings(
        NODES * GPUS, GPUS, pause_s=20.0, grow_wait_s=(0.0, 90.0)[seed % 2], learned=seed % 3 == 0, seed=seed
    )
    simulate(trace_of(random.Random(seed)), builtin(), ("auto", "throughput")[seed % 2], simulated)
    assert rounds.rounds > 50 and rounds.reused > 30 and rounds.left_out > 10


def of_state(state: JobState, chance: random.Random) -> dict[str, object]:
    """Another value for each thing that the store knows of a job."""
    assert state.in_use is not None
    resize = resize_row(Resize(7, 1, state.in_use.pieces, (), 4, 256, "grow_idle", 60.0), "running", NOW - 5, NOW - 5)
    return {
        "in_use": replace(state.in_use, batch=244),
        "resize": resize,
        "last": closed("done", NOW - 20),
        "last_batch": closed("done", NOW - 5),
        "failures": 3,
        "too_large": frozenset({8, 12}),
        "pinned": 8,
        "observations": (*state.observations, seen(8, chance.uniform(0.4, 0.9))),
        "model": Curve(observations((seen(4, chance.uniform(0.5, 2.0)),))),
        "unfitted": "of no reason",
        "pause_s": chance.uniform(20.0, 60.0),
        "requeue_s": 70.0,
        "batch_pause_s": 3.0,
        "likely_pause_s": chance.uniform(20.0, 60.0),
        "likely_requeue_s": 70.0,
        "reference": (2, 128),
        "prior_words": "the prior of nobody",
        "resized": tuple(NOW - 60.0 * i for i in range(1, 9))[::-1],
        "reported_at": NOW - 3,
        "slow": {"n1": 0.2},
        "gave_in_vain": True,
        "refused": {EventKind.SHRINK: Refusal("no", NOW + 60)},
        "ending": True,
        "remaining": Remaining(chance.uniform(1e3, 1e6), 256.0, NOW),
        "spent_gpu_s": chance.uniform(0.0, 1e5),
    }


def test_every_field_of_a_job_s_state_is_changed() -> None:
    """One that is added has to be changed here as well."""
    world = two_jobs()
    changes = of_state(world.inputs().states[1], random.Random(0))
    assert changes.keys() == {item.name for item in fields(JobState)}


def two_jobs() -> World:
    """Two measured jobs with room beside them, and one that waits."""
    world = World(5)
    world.job(1, "n1", REQUEST + ",until=quality,guard=50")
    world.job(2, "n2 n3", REQUEST + ",deadline=now+15000,budget=20")
    world.cluster.wait(9, 2, 4)
    return world


OTHERS = ("settings", "site", "request", "time limit", "node", "wanted", "host pairs", "account", "nothing")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([*(item.name for item in fields(JobState)), *OTHERS]), min_size=1, max_size=6),
    st.integers(0, 99),
)
def test_each_input_that_changes_is_seen(changes: list[str], seed: int) -> None:
    """Whatever changes from one round to the next, one after the other: the plan with all that was kept is the plan
    that is made from nothing, down to what is written of it."""
    chance, world, tables = random.Random(seed), two_jobs(), Tables()
    inputs = world.inputs(tables=tables)
    assert shown(inputs) == shown(replace(inputs, tables=Tables()))
    for what in changes:
        inputs = changed(inputs, what, chance)
        assert shown(inputs) == shown(replace(inputs, tables=Tables()))


def changed(inputs: Inputs, what: str, chance: random.Random) -> Inputs:
    """The same but for one thing of job 1, or of all."""
    state, job = inputs.states[1], inputs.roster.elastic[1]
    nodes, jobs = inputs.snapshot.nodes, inputs.snapshot.jobs
    if what in JobState.__dataclass_fields__:
        return replace(inputs, states={**inputs.states, 1: replace(state, **{what: of_state(state, chance)[what]})})
    if what == "settings":
        more = {"horizon_s": chance.uniform(30.0, 900.0), "max_weight": 2.0, "policy": chance.choice(sorted(POLICIES))}
        return replace(inputs, settings=replace(inputs.settings, **more, shorter_first=0.5, fairness="account"))
    if what == "site":
        return replace(inputs, site=Site(switches={"n1": "a", "n2": chance.choice("ab")}, power_saving=True))
    if what == "node":
        return at(inputs, nodes={**nodes, "n4": replace(nodes["n4"], gpus=8, flags=frozenset({"IDLE"}))})
    if what == "wanted":
        return at(inputs, jobs={**jobs, 9: replace(jobs[9], required_nodes=("n1", "n4"))})
    if what == "host pairs":
        return replace(inputs, host_pairs=(HostPair("user", "n1", "n4", "n4 at 10.0.0.4", 3, NOW),))
    if what == "request":
        job = replace(job, request=replace(job.request, weight=2.0, min_gpus=1, max_gpus=chance.choice((8, 12))))
    elif what == "time limit":
        job = replace(job, base=replace(job.base, ends_at=inputs.snapshot.at + chance.uniform(60.0, 900.0)))
    elif what == "account":
        job = replace(job, base=replace(job.base, account="another"))
    return replace(inputs, roster=replace(inputs.roster, elastic={**inputs.roster.elastic, 1: job}))


def at(inputs: Inputs, **more: object) -> Inputs:
    return replace(inputs, snapshot=replace(inputs.snapshot, **more))  # type: ignore[arg-type]


def shown(inputs: Inputs) -> tuple[object, ...]:
    plan = plan_round(inputs)
    return *decided(plan), plan.rows
