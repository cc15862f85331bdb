"""What a job would do at other sizes, beside what it was measured to do: the records of `selastic predict`.

Limit: daemon/prediction fills them; the command line reads them, and needs no optimizer for that.
"""

from __future__ import annotations

from functools import partial

from ..text.cells import number
from ..text.times import elapsed
from .record import Column, about, record

COVERS = 0.8
"""Share of cases in which the truth is expected within an interval."""
_number, _seconds = number(), "{:.3g}".format


def _interval(row: PredictedSize) -> str:
    if row.samples_per_s_low is None or row.samples_per_s_high is None:
        return ""
    return f"{_number(row.samples_per_s_low)}-{_number(row.samples_per_s_high)}"


def _pause(row: PredictedSize) -> str:
    return "" if row.pause_s is None else f"{'' if row.pause_from == 'measured' else '~'}{_number(row.pause_s)}"


@record
class PredictedSize:
    """What the daemon's model says of one size. Times in seconds, rates over the whole job."""

    gpus: int = about("GPUs", Column("GPUs"))
    nodes: int = about("nodes that so many GPUs are taken to lie on", Column("Nodes"))
    batch: int = about("the global batch that plans would take there, in samples", Column("Batch"))
    samples_per_s: float = about("throughput that the model predicts", Column("Samples/s", form=_number))
    samples_per_s_low: float | None = about(
        "four in five are expected between this and the next",
        Column("Interval", help="samples/s within which four in five are expected", cell=_interval),
    )
    samples_per_s_high: float | None = about("the other end")
    speedup: float = about("against the smallest size listed", Column("Speedup", form=_number))
    step_s: float = about("time of one optimizer step, in seconds", Column("Step", form=_seconds))
    compute_s: float = about("of it: all but communication", Column("Compute", form=_seconds))
    comm_s: float = about("of it: communication that nothing hides", Column("Comm", form=_seconds))
    left_s: float | None = about(
        "until the training ends, had it that size now", Column("Left", form=partial(elapsed, short=True))
    )
    left_low_s: float | None = about("the same at the high end of the interval")
    left_high_s: float | None = about("the same at its low end")
    pause_s: float | None = about(
        "how long the training stands still to get there",
        Column("Pause", help="how long the training stands still to get there; ~: not measured", cell=_pause),
    )
    pause_from: str | None = about("measured: mean of its own resizes; assumed: as the settings have it")
    mechanism: str | None = about("how it gets there", Column("Mechanism", "VIA"))
    observed: float | None = about("samples/s that were measured there", Column("Observed", form=_number))
    observed_batch: int | None = about("at this global batch", Column("AtBatch", "AT_BATCH"))
    reports: int | None = about("reports that were measured over", Column("Reports"))
    off: float | None = about(
        "what the model says there against what was measured: 0.1 is a tenth too much",
        Column("Off", form="{:+.0%}".format),
    )
    note: str = about("whether it is the present size; why it can't come there", Column("Note"), default="")


@record
class Prediction:
    """What a job would do at other sizes."""

    now: float
    job_id: int
    task_name: str | None
    state: str
    program: str | None = about("user and script")
    gpu_type: str | None = about("the kind of GPU that this is about; empty: of no named type")
    gpus: int | None = about("GPUs that it trains on; of a job that has ended none")
    batch: int | None = about("global batch that it trains at")
    reports: int = about("reports that the model is made from")
    sizes_measured: int = about("sizes that they were at")
    prior: str = about("where what was not measured is taken from")
    policy: str = about("what the batches are chosen by")
    covers: float = about("share of cases expected within an interval", default=COVERS)
    samples_left: float | None = about("until its training ends; not known where its script does not say that")
    input_wait_share: float | None = about("share of a step that waits for input, last report; part of compute")
    sizes: tuple[PredictedSize, ...]
