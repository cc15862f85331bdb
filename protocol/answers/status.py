"""The row that a job has in `selastic status`. Filled by daemon/reports/status.py; None is what nobody knows."""

from __future__ import annotations

from functools import partial

from ..text.tables import bounds, digits, folded, moment, number, share
from ..text.times import elapsed
from .record import Column, JobRecord, about, record

SHORT_STATES = {
    "BOOT_FAIL": "BF",
    "CANCELLED": "CA",
    "COMPLETED": "CD",
    "CONFIGURING": "CF",
    "COMPLETING": "CG",
    "DEADLINE": "DL",
    "ENDED": "EN",
    "FAILED": "F",
    "NODE_FAIL": "NF",
    "OUT_OF_MEMORY": "OOM",
    "PENDING": "PD",
    "PREEMPTED": "PR",
    "RUNNING": "R",
    "REQUEUED": "RQ",
    "RESTARTED": "RR",
    "RESIZED": "RS",
    "SUSPENDED": "S",
    "TIMEOUT": "TO",
}


def _short_state(state: str) -> str:
    # Slurm may say CANCELLED by 1000.
    state = state.split(" ")[0]
    return SHORT_STATES.get(state, state)


def _speed(row: JobStatus) -> str:
    unit = row.unit if row.unit not in (None, "samples") and row.samples_per_s is not None else ""
    return f"{number(row.samples_per_s)} {unit}".strip()


def _stalled(row: JobStatus) -> str:
    """How long it has done no step; nothing where it does."""
    if row.stalled_since is None or row.elapsed_s is None or row.start_time is None:
        return ""
    return elapsed(max(0.0, row.start_time + row.elapsed_s - row.stalled_since), short=True)


def _target(row: JobStatus) -> str:
    """The GPUs it is to have, marked while that is not so: 8 in a resize is `8*`, one only advised is `(8)`."""
    target = row.target_gpus
    if target is None:
        return ""
    if row.resize:
        return f"{target}*"
    return str(target) if row.mode == "act" or target == row.gpus else f"({target})"


@record
class HeldPiece:
    """A part of what a job trains on: one Slurm job with its nodes."""

    slurm_job_id: int
    kind: str = about("base, component or companion")
    nodes: tuple[str, ...]
    gpus: int


@record
class JobStatus(JobRecord):
    """What a job has now, where it is to go, and why. Times in unix seconds, durations in seconds, rates over the whole
    job."""

    state: str = about(
        "state", Column("ST", help="state, short: R, PD, CD, ...", form=_short_state), Column("State"), public=True
    )
    elapsed_s: float | None = about("time since its start", Column("Time", form=partial(elapsed, short=True)))
    submit_time: float | None = about("time of submission", Column("Submit", form=moment))
    start_time: float | None = about("time of its start", Column("Start", form=moment))
    end_time: float | None = about("time of its end", Column("End", form=moment))
    nodes: int | None = about("nodes that it trains on", Column("Nodes"))
    gpus: int | None = about("GPUs that it trains on", Column("GPUs"), public=True)
    held_gpus: int | None = about(
        "GPUs that Slurm holds for it: more than it trains on while some come or go, or where Slurm keeps them",
        Column("Held"),
    )
    target_gpus: int | None = about(
        "GPUs it is to have",
        Column("Target", help="GPUs it is to have; 8*: resize under way, (8): only advised", cell=_target),
    )
    min_gpus: int | None = about(
        "least GPUs that it accepts",
        Column("Min-Max", help="GPUs that it accepts", cell=bounds("min_gpus", "max_gpus")),
    )
    max_gpus: int | None = about("most GPUs that it accepts")
    batch: int | None = about("global batch, in samples", Column("Batch"))
    target_batch: int | None = about("global batch it is to have", Column("TargetBatch", "TARGET_BATCH"))
    min_batch: int | None = about(
        "least global batch that it accepts",
        Column("Batches", help="global batches that it accepts", cell=bounds("min_batch", "max_batch")),
    )
    max_batch: int | None = about("largest global batch that it accepts")
    samples_per_s: float | None = about(
        "throughput at this size, last report; - when not known",
        Column("Samples/s", help="throughput, with its unit where it counts no samples", cell=_speed),
    )
    unit: str | None = about("what a job of selastic hold counts in place of samples", Column("Unit"))
    stalled_since: float | None = about(
        "when its last step was done, where none is done any more",
        Column("Stalled", help="for how long it has done no step", cell=_stalled),
    )
    speedup: float | None = about(
        "throughput against that at its smallest size; - when not known", Column("Speedup", form=digits())
    )
    left_s: float | None = about(
        "training left at this size, by the script and the last report",
        Column("Left", form=partial(elapsed, short=True)),
    )
    step_time_s: float | None = about("median step time, last report")
    input_wait_share: float | None = about(
        "share of a step that waits for input, last report", Column("Input-wait", form=share)
    )
    comm_share: float | None = about(
        "share of a step in which gradients travel and nothing computes", Column("Comm", form=share)
    )
    bottleneck: str | None = about("what holds its steps back, as a code", Column("Bottleneck"))
    bottleneck_text: str | None = about("what holds its steps back, in words", Column("HeldBack", "HELD_BACK"))
    step: int | None = about("optimizer steps since the start of the training", Column("Step"))
    samples: int | None = about("samples since the start of the training", Column("Samples"))
    epoch: int | None = about("epoch", Column("Epoch"))
    generation: int | None = about("number of its world of workers; each restart adds one", Column("Generation", "GEN"))
    resize: str | None = about("how far a resize under way has come", Column("Resize"))
    pinned: int | None = about("GPUs that it is pinned to", Column("Pinned"))
    share_of: str | None = about("whose share of its pool's weight it has (setting fairness)", Column("Share"))
    managed: bool | None = about("yes or no", Column("Managed", form=lambda managed: "yes" if managed else "no"))
    mode: str | None = about("mode of the last decision: off, observe, review or act", Column("Mode"))
    reported_at: float | None = about("time of the last report", Column("Reported", form=moment))
    node_list: str | None = about("names of its nodes", Column("NodeList", form=folded))
    pieces: tuple[HeldPiece, ...] | None = about("the Slurm jobs that it trains on")
    request: str | None = about("elastic request as given", Column("Request"))
    reason: str | None = about("why it has what it has, as a code", Column("Reason"))
    reason_text: str | None = about("why it has what it has, in words", Column("Because"))
    detail: str | None = about("the sentence behind the reason")


@record
class StatusTable:
    """All jobs that have not ended."""

    jobs: tuple[JobStatus, ...]
