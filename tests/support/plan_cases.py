"""What plans are tested on: a cluster of elastic jobs that have been measured, and what is read of a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cluster_snapshots import Cluster
from store_records import resize_row

from slurm_elastic.daemon.capacity.pending_jobs import Kind
from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.models.cache import observations
from slurm_elastic.daemon.optimizer.job_view import Model
from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.planner import Inputs, JobState, Plan, plan_round
from slurm_elastic.daemon.planner.tables import Tables
from slurm_elastic.daemon.planner.waiting.first_sizes import Changed
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.db.rows import DecisionRow, HostPair, InUse, Mark, ObservationRow, ResizeRow
from slurm_elastic.protocol.messages import Resize

REQUEST = "elastic:gpus=2-16,batch=240-256"
"""So narrow that the batch alone is never worth a change."""


SETTINGS = Settings(mode="act", cooldown_grow_s=60.0, cooldown_shrink_s=30.0)


NOW = 10_000.0


class Curve:
    """A throughput model without surprises: what was measured, and k**p in between and beyond."""

    jitter = 0.005

    def __init__(self, observations: Sequence[Observation], prior: object = None) -> None:
        first, last = min(observations, key=lambda o: o.gpus), max(observations, key=lambda o: o.gpus)
        self.sizes_seen = tuple(sorted({o.gpus for o in observations}))
        self.known = {o.gpus: o.batch / o.step_time_s for o in observations}
        self.scale = first.batch / first.step_time_s / first.gpus**0.85
        self.power = 0.85
        if last.gpus > first.gpus:
            speeds = last.batch / last.step_time_s, first.batch / first.step_time_s
            self.power = math.log(speeds[0] / speeds[1]) / math.log(last.gpus / first.gpus)
            self.scale = speeds[1] / first.gpus**self.power

    def throughput(self, gpus: int, nodes: int, batch: int) -> float:
        return self.known.get(gpus, self.scale * gpus**self.power) * batch / (batch + 64)

    def throughputs(self, points: Sequence[tuple[int, int, int]]) -> list[float]:
        return [self.throughput(*point) for point in points]

    def uncertainties(self, sizes: Sequence[tuple[int, int]]) -> list[float]:
        return [0.02 if gpus in self.sizes_seen else 0.1 if len(self.sizes_seen) < 3 else 0.9 for gpus, _ in sizes]


def seen(gpus: int, step_time: float = 1.0, batch: int = 256, count: int = 5) -> ObservationRow:
    """Reports at one size."""
    nodes = -(-gpus // 4)
    return ObservationRow(gpus, nodes, batch, max(1, batch // gpus), 1, count, step_time, batch / step_time, NOW - 20)


class World:
    """A cluster whose elastic jobs train on all they hold and have been measured, unless told otherwise."""

    def __init__(self, nodes: int = 4) -> None:
        self.cluster = Cluster(nodes)
        self.states: dict[int, JobState] = {}
        self.settings = SETTINGS

    def job(self, job_id: int, nodes: str, comment: str = REQUEST, gpus: int = 4, measured: bool = True) -> None:
        self.cluster.run(job_id, nodes, gpus, comment)
        count = len(nodes.split()) * gpus
        observations = (seen(count),) if measured else ()
        self.states[job_id] = JobState(observations=observations, reference=(count, 256), reported_at=NOW - 20)

    def state(self, job_id: int, **more: object) -> None:
        self.states[job_id] = replace(self.states[job_id], **more)  # type: ignore[arg-type]

    def plan(self, **more: Any) -> Plan:
        """more: see inputs()."""
        return plan_round(self.inputs(**more))

    def inputs(
        self,
        passed: Sequence[Kind] = (),
        tables: Tables | None = None,
        marks: Mapping[int, Mark] | None = None,
        unlisted_before: Mapping[str, int] | None = None,
        host_pairs: Sequence[HostPair] = (),
        models: Mapping[int, Model] | None = None,
        changed: Mapping[int, Changed] | None = None,
        site: Site | None = None,
    ) -> Inputs:
        """models: of waiting jobs; changed: their sizes."""
        snapshot = self.cluster.snapshot()
        roster = sort_jobs(snapshot, accepted=set(self.states))
        states = {}
        for job_id, job in roster.elastic.items():
            state = self.states.get(job_id, JobState())
            if state.in_use is None and job.running and job_id in self.states:
                state = replace(state, in_use=InUse(job_id, 0, job.pieces, 256, 0.0, 0.0))
            model = Curve(observations(state.observations)) if state.observations else None
            states[job_id] = replace(state, model=model)
        kept, marks = tables or Tables(), marks or {}
        return Inputs(
            *(snapshot, roster, states, self.settings, NOW, passed, kept),
            marks=marks,
            unlisted_before=unlisted_before or {},
            host_pairs=host_pairs,
            waiting_models=models or {},
            resized_waiting=changed or {},
            site=site or Site(),
        )


def row(plan: Plan, job_id: int) -> DecisionRow:
    return next(row for row in plan.rows if row.job_id == job_id)


def order(plan: Plan, job_id: int) -> Resize:
    return next(resize for resize in plan.resizes if resize.job_id == job_id)


def closed(state: str, at: float, job_id: int = 1) -> ResizeRow:
    return resize_row(Resize(1, job_id, (), (), 4, 256, "grow_idle", 60.0), state, at, at)
