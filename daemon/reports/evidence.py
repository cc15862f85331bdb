"""Why a round decided what it decided: the record that the planner writes beside a decision's numbers, that the store
keeps as JSON, and that `explain`, `advise`, `status` and `report` read back.

Promise: every field may be None: not known, and said to be so; a value of another type reads as that. Limit: a key of a
newer version is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .record import about


@dataclass(frozen=True, kw_only=True)
class OtherMove:
    """A job that moved in the same round."""

    job_id: int = field(metadata=about("job id", public=True))
    gpus_from: int | None = field(default=None, metadata=about("GPUs that it had", public=True))
    gpus_to: int | None = field(default=None, metadata=about("GPUs that it is to have", public=True))
    change: float | None = field(
        default=None, metadata=about("change of its progress, relative: 0.25 is a quarter more")
    )


@dataclass(frozen=True, kw_only=True)
class RoomFor:
    """A waiting job that GPUs were freed for."""

    job_id: int = field(metadata=about("job id", public=True))
    gpus: int | None = field(default=None, metadata=about("how many it wants", public=True))
    given: int | None = field(default=None, metadata=about("how many of them this job gives", public=True))


@dataclass(frozen=True, kw_only=True)
class PassedOver:
    """A mechanism that was not taken."""

    mechanism: str = field(metadata=about("its name"))
    why: str = field(metadata=about("why not"))


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another size that the job might have had."""

    gpus: int | None = field(default=None, metadata=about("GPUs"))
    batch: int | None = field(default=None, metadata=about("global batch"))
    value: float | None = field(
        default=None,
        metadata=about("of this job at that size, in the objective's unit; what it takes from others is not in it"),
    )
    samples_per_s: float | None = field(default=None, metadata=about("measured or modelled throughput there"))
    why: str | None = field(default=None, metadata=about("why it was not chosen"))


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a decision was taken on."""

    reports_from: int | None = field(default=None, metadata=about("reports at the size left"))
    reports_to: int | None = field(default=None, metadata=about("reports at the target"))
    last_report_age_s: float | None = field(
        default=None, metadata=about("age of the youngest report when the decision was taken")
    )
    speedup_from: float | None = field(default=None, metadata=about("progress against the job's smallest size, before"))
    speedup_to: float | None = field(default=None, metadata=about("progress against the job's smallest size, after"))
    samples_per_s_from: float | None = field(default=None, metadata=about("measured or modelled throughput, before"))
    samples_per_s_to: float | None = field(default=None, metadata=about("measured or modelled throughput, after"))
    modelled: bool | None = field(
        default=None, metadata=about("the throughput at the target is the model's: that size was never measured")
    )
    doubt: float | None = field(
        default=None, metadata=about("relative 1-sigma of that model at the target: 0.2 is one fifth")
    )
    prior: str | None = field(
        default=None, metadata=about("what the model believes where nothing was measured, and from how many runs")
    )
    unfitted: str | None = field(
        default=None, metadata=about("why no model can be made of the reports, in words that follow a colon")
    )
    idle_gpus: int | None = field(default=None, metadata=about("GPUs of the pool that nobody held"))
    pool: str | None = field(
        default=None, metadata=about("the pool's name: nodes whose GPUs can be given to the same jobs")
    )
    capacity_gpus: int | None = field(default=None, metadata=about("managed capacity of the pool"))
    for_job: int | None = field(default=None, metadata=about("the first waiting job that the GPUs were freed for"))
    for_gpus: int | None = field(
        default=None, metadata=about("how many that one wants; of a waiting job: how many it wants itself")
    )
    for_jobs: tuple[RoomFor, ...] | None = field(
        default=None, metadata=about("the waiting jobs that the GPUs were freed for")
    )
    others: tuple[OtherMove, ...] | None = field(default=None, metadata=about("jobs that moved in the same round"))
    starts: str | None = field(default=None, metadata=about("now or later: whether the move begins in this round"))
    tried: bool | None = field(
        default=None, metadata=about("the target is no part of the optimizer's plan: it is tried, to measure it")
    )
    pause_s: float | None = field(default=None, metadata=about("what the resize is taken to cost"))
    pause_measured: bool | None = field(default=None, metadata=about("whether that was measured"))
    horizon_s: float | None = field(default=None, metadata=about("time over which the gain has to pay for the pause"))
    cooldown_until: float | None = field(
        default=None, metadata=about("unix time before which no resize of this job is considered")
    )
    blocked_until: float | None = field(default=None, metadata=about("the same, after a resize that failed"))
    resizes_in_hour: int | None = field(
        default=None, metadata=about("resizes of the job within an hour, where that is as many as the site allows")
    )
    weight_asked: float | None = field(default=None, metadata=about("the request's weight, where less of it counts"))
    weight_counts: float | None = field(default=None, metadata=about("what of it counts: the site's max_weight"))
    pinned: int | None = field(default=None, metadata=about("GPUs that the job is pinned to"))
    resize: int | None = field(default=None, metadata=about("number of the resize under way"))
    next: str | None = field(
        default=None, metadata=about("one sentence: what is tried next, or what stands in the way")
    )
    passed_over: tuple[PassedOver, ...] | None = field(
        default=None, metadata=about("the mechanisms that were not taken")
    )
    limit: str | None = field(default=None, metadata=about("the limit of GPUs that keeps it from more, in words"))
    slurm_reason: str | None = field(default=None, metadata=about("why Slurm lets the job wait, in its own word"))
