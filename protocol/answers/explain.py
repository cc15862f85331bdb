"""The facts of `selastic explain`, filled by daemon/reports/explain.py; the words are the command line's. Its evidence
is the record that the planner writes beside a decision's numbers, that the store keeps as JSON, and that `explain`,
`review`, `status` and `report` read back.

Promise: None or an empty tuple where nothing was, or nothing is known; a value of another type reads as that. Limit: a
key of a newer version is left out.
"""

from __future__ import annotations

from dataclasses import field

from .record import about, record
from .status import JobStatus


@record
class OtherMove:
    """A job that moved in the same round."""

    job_id: int = about("job id", public=True)
    gpus_from: int | None = about("GPUs that it had", public=True, default=None)
    gpus_to: int | None = about("GPUs that it is to have", public=True, default=None)
    change: float | None = about("change of its progress, relative: 0.25 is a quarter more", default=None)


@record
class RoomFor:
    """A waiting job that GPUs were freed for."""

    job_id: int = about("job id", public=True)
    gpus: int | None = about("how many it wants", public=True, default=None)
    given: int | None = about("how many of them this job gives", public=True, default=None)


@record
class PassedOver:
    """A mechanism that was not taken."""

    mechanism: str = about("its name")
    why: str = about("why not")


@record
class Alternative:
    """Another size that the job might have had."""

    gpus: int | None = about("GPUs", default=None)
    batch: int | None = about("global batch", default=None)
    value: float | None = about(
        "of this job at that size, in the objective's unit; what it takes from others is not in it", default=None
    )
    samples_per_s: float | None = about("measured or modelled throughput there", default=None)
    why: str | None = about("why it was not chosen", default=None)


@record
class Evidence:
    """What a decision was taken on."""

    reports_from: int | None = about("reports at the size left", default=None)
    reports_to: int | None = about("reports at the target", default=None)
    last_report_age_s: float | None = about("age of the youngest report when the decision was taken", default=None)
    speedup_from: float | None = about("progress against the job's smallest size, before", default=None)
    speedup_to: float | None = about("progress against the job's smallest size, after", default=None)
    samples_per_s_from: float | None = about("measured or modelled throughput, before", default=None)
    samples_per_s_to: float | None = about("measured or modelled throughput, after", default=None)
    modelled: bool | None = about(
        "the throughput at the target is the model's: that size was never measured", default=None
    )
    doubt: float | None = about("relative 1-sigma of that model at the target: 0.2 is one fifth", default=None)
    prior: str | None = about(
        "what the model believes where nothing was measured, and from how many runs", default=None
    )
    line_share: float | None = about(
        "share of a straight line in the model's predictions, where that is most: it predicted the reports better",
        default=None,
    )
    unfitted: str | None = about("why no model can be made of the reports, in words that follow a colon", default=None)
    idle_gpus: int | None = about("GPUs of the pool that nobody held", default=None)
    pool: str | None = about("the pool's name: nodes whose GPUs can be given to the same jobs", default=None)
    asleep_gpus: int | None = about("GPUs that the job could grow onto if power saving woke them", default=None)
    capacity_gpus: int | None = about("managed capacity of the pool", default=None)
    for_job: int | None = about("the first waiting job that the GPUs were freed for", default=None)
    for_gpus: int | None = about("how many that one wants; of a waiting job: how many it wants itself", default=None)
    for_jobs: tuple[RoomFor, ...] | None = about("the waiting jobs that the GPUs were freed for", default=None)
    others: tuple[OtherMove, ...] | None = about("jobs that moved in the same round", default=None)
    starts: str | None = about("now or later: whether the move begins in this round", default=None)
    tried: bool | None = about(
        "the target is no part of the optimizer's plan: it is tried, to measure it", default=None
    )
    pause_s: float | None = about("what the resize is taken to cost", default=None)
    pause_measured: bool | None = about("whether that was measured", default=None)
    pause_likely: bool | None = about(
        "whether, where it was not, it is what other jobs' resizes here say", default=None
    )
    horizon_s: float | None = about("time over which the gain has to pay for the pause", default=None)
    cooldown_until: float | None = about("unix time before which no resize of this job is considered", default=None)
    blocked_until: float | None = about("the same, after a resize that failed", default=None)
    resizes_in_hour: int | None = about(
        "resizes of the job within an hour, where that is as many as the site allows", default=None
    )
    weight_asked: float | None = about("the request's weight, where less of it counts", default=None)
    weight_counts: float | None = about("what of it counts: the site's max_weight", default=None)
    weight_factor: float | None = about(
        "what its weight is multiplied by for what it has left (shorter_first)", default=None
    )
    share_of: str | None = about("whose share of the pool's weight the job has, from the top down", default=None)
    share_part: float | None = about("what of the pool's weight that is: 0.5 is a half", default=None)
    share_jobs: int | None = about("elastic jobs that run there and share it", default=None)
    exact_gpus: int | None = about(
        "GPUs by the plan with the largest sum of values, where the policy's planner gives something else", default=None
    )
    sample_worth: float | None = about(
        "of a job that trains epochs: what a sample is worth at its batch, by its measured noise scale", default=None
    )
    quality_gain: float | None = about(
        "the gain at the same size, were it planned until a quality is reached", default=None
    )
    pinned: int | None = about("GPUs that the job is pinned to", default=None)
    resize: int | None = about("number of the resize under way", default=None)
    next: str | None = about("one sentence: what is tried next, or what prevents it", default=None)
    passed_over: tuple[PassedOver, ...] | None = about("the mechanisms that were not taken", default=None)
    unlisted: str | None = about("GPUs of the pool in use by no job that Slurm lists, by node, in words", default=None)
    limit: str | None = about("the limit of GPUs that keeps it from more, in words", default=None)
    slurm_reason: str | None = about("why Slurm lets the job wait, in its own word", default=None)


@record
class Decision:
    """What a round decided for the job. Of a cause without its decision only the reason is known."""

    job_id: int | None = None
    at: float | None = None
    gpus_from: int | None = None
    gpus_to: int | None = None
    batch_from: int | None = None
    batch_to: int | None = None
    reason: str
    reason_text: str
    value: float | None = about("value of the target in the objective's unit", default=None)
    gain: float | None = about("gain of the move against staying, same unit", default=None)
    evidence: Evidence = field(default_factory=Evidence)
    alternatives: tuple[Alternative, ...] = ()
    mechanism: str = about("how it gets there", default="")
    mode: str = ""

    @property
    def moves(self) -> bool:
        """Whether it is for another size or batch than the job had."""
        return bool(self.gpus_from) and (self.gpus_from, self.batch_from) != (self.gpus_to, self.batch_to)


@record
class PastResize:
    """How the job came to its present size."""

    at: float
    gpus_from: int
    gpus_to: int
    batch_from: int
    batch_to: int
    pause_s: float
    reason: str
    reason_text: str
    id: int = about("its id; 0: the supervisor changed by itself")
    cause: Decision | None = about("the decision behind it")


@record
class AddedNodes:
    """A companion that a resize asks for."""

    nodes: int
    gpus: int


@record
class ResizeProgress:
    """A resize, and how far it has come."""

    id: int
    gpus: int
    batch: int
    adds: tuple[AddedNodes, ...]
    reason: str
    reason_text: str
    wait_s: float
    state: str
    detail: str
    created: float
    updated: float


@record
class OpenResize(ResizeProgress):
    """One that is under way."""

    cause: Decision | None = about("the decision behind it")


@record
class Refused:
    """What Slurm refused to do about the job, the last time."""

    at: float
    error: str = about("in Slurm's words, and those of the site's plugin where Slurm passes them on")
    again_at: float = about("when the same is asked again at the earliest")


@record
class HostsApart:
    """A host of the job's and another one that do not reach each other: the job is not put on both."""

    host: str
    other: str
    address: str = about("which of them did not answer, and where")
    failures: int = about("resizes in a row that failed because of it")
    again_at: float = about("when it is tried again")


@record
class Measurement:
    """All reports of the job at one configuration."""

    gpus: int
    nodes: int
    batch: int
    micro_batch: int
    accumulation: int
    count: int = about("reports")
    step_time: float = about("median step time, in seconds")
    samples_per_s: float = about("median over the reports, whole job")
    last_at: float
    noise_scale: float = about("gradient noise scale in samples; 0: not measured")
    input_wait_share: float = about("share of a step that waits for input; 0: none, or not known", default=0.0)
    comm_share: float = about("share of a step in communication that nothing hides; 0: not known", default=0.0)


@record
class Checkpoints:
    """What its checkpoints cost, and how often one is taken."""

    at: float = about("when its supervisor said so")
    megabytes: float
    pause_s: float = about("how long the training stands still for one")
    write_s: float = about("how long it is written, beside the training")
    every_s: float = about("seconds between two")
    node_failure_s: float = about(
        "how long a node of its partition trains in the mean until a job loses it; 0: none was lost"
    )


@record
class ExplainedJob(JobStatus):
    """The job's status, and why it is or is not managed."""

    record_reason: str


@record
class Explain:
    """Everything that explains why a job has what it has."""

    now: float
    job: ExplainedJob
    sizes: tuple[int, ...] = about("GPUs of every size that it has had, in order")
    last_resize: PastResize | None
    decision: Decision | None = about("the last one")
    resize: OpenResize | None = about("the resize under way")
    last_closed_resize: ResizeProgress | None = about("the last one that ended")
    refused: Refused | None = about("what Slurm refuses now")
    not_understood: str = about("what its supervisor and selasticd do not understand of each other", default="")
    policy_failed: str = about("why the built-in policy plans in the place of the site's", default="")
    stalled: str = about("where its ranks wait, while no step is done", default="")
    too_large: tuple[int, ...] = about("sizes in GPUs that did not fit into their memory: not tried again", default=())
    hosts_apart: tuple[HostsApart, ...] = about("hosts that do not reach its own", default=())
    aims: tuple[str, ...] = about("whether its deadline and its budget will be kept, and what would do", default=())
    observations: tuple[Measurement, ...]
    mean_pause_s: float | None
    checkpoints: Checkpoints | None = about("of a job that runs", default=None)
