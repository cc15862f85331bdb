"""The rows of `selastic predict` and `selastic advise`. Filled by daemon/prediction, those of errors by
daemon/reports/history.py.
"""

from __future__ import annotations

from functools import partial

from ..text.tables import digits, moment, share
from ..text.times import elapsed
from .record import Column, about, record

COVERS, QUANTILE = 0.8, 1.2816
"""Share of cases in which the truth is expected within an interval."""


_number, _seconds = digits(), "{:.3g}".format
_short = partial(elapsed, short=True)


@record
class Choice:
    """One thing to ask for."""

    partition: str = about("partition", Column("Partition"))
    gpu_type: str = about("kind of GPU; empty: of no named type", Column("Type"))
    gpus: int = about("GPUs", Column("GPUs"))
    nodes: int = about("nodes that they lie on", Column("Nodes"))
    batch: int = about("the global batch that plans would take there, in samples", Column("Batch"))
    wait_s: float = about("in the queue before it starts", Column("Wait", form=_short))
    run_s: float = about("how long the training runs, as probably shorter as longer", Column("Run", form=_short))
    run_low_s: float = about(
        "four in five run for longer than this and shorter than the next", Column("Low", form=_short)
    )
    run_high_s: float = about("the other end", Column("High", form=_short))
    end: float = about("when it is done", Column("End", form=moment))
    cost: float = about("price of the run", Column("Cost", form=digits()))
    probability: float = about("that it is done by the deadline, within the budget", Column("P", form=share))
    basis: str = about("measured: just that was, on that kind of GPU; else model", Column("From"))
    script: tuple[str, ...] = about("the lines for the batch script")


@record
class Advice:
    """What a program is best submitted with."""

    now: float
    foretold: bool = about("whether waits are selasticd's forecast; else they are as the caller told them")
    notes: tuple[str, ...] = about("what the choices go by, in sentences")
    choices: tuple[Choice, ...] = about("the best first")


def _interval(row: PredictedSize) -> str:
    if row.samples_per_s_low is None or row.samples_per_s_high is None:
        return ""
    return f"{_number(row.samples_per_s_low)}-{_number(row.samples_per_s_high)}"


def _pause(row: PredictedSize) -> str:
    return "" if row.pause_s is None else f"{'' if row.pause_from == 'measured' else '~'}{_number(row.pause_s)}"


def _pauses(row: PredictedSize) -> str:
    known = row.pause_low_s is not None and row.pause_high_s is not None
    return f"{_number(row.pause_low_s)}-{_number(row.pause_high_s)}" if known else ""


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
    compute_s: float = about("of it: all but communication and waiting for input", Column("Compute", form=_seconds))
    comm_s: float = about("of it: communication that nothing hides", Column("Comm", form=_seconds))
    input_s: float | None = about("of it: waiting for input", Column("Input", form=_seconds), default=None)
    left_s: float | None = about(
        "until the training ends, had it that size now", Column("Left", form=partial(elapsed, short=True))
    )
    left_low_s: float | None = about("the same at the high end of the interval")
    left_high_s: float | None = about("the same at its low end")
    pause_s: float | None = about(
        "how long the training stands still to get there",
        Column("Pause", help="how long the training stands still to get there; ~: not measured", cell=_pause),
        Column("Pauses", help="pause within which four in five are expected", cell=_pauses),
    )
    pause_low_s: float | None = about("four in five are expected between this and the next")
    pause_high_s: float | None = about("the other end")
    pause_from: str | None = about(
        "measured: mean of its own resizes; others: by those of other jobs and the size of its state; assumed: as the "
        "settings have it"
    )
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
class ComesFree:
    """GPUs in the job's partitions that another job will free."""

    at: float = about("when at the latest, by that job's time limit")
    gpus: int
    job_id: int | None = about("that job; None: hidden from who asks")


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
    line_share: float | None = about(
        "share of a straight line in what is predicted, by how well it predicted the reports; the rest is the "
        "step-time form's",
        default=None,
    )
    policy: str = about("what the batches are chosen by")
    covers: float = about("share of cases expected within an interval", default=COVERS)
    samples_left: float | None = about("until its training ends; not known where its script does not say that")
    input_wait_share: float | None = about("share of a step that waits for input, last report")
    sizes: tuple[PredictedSize, ...]
    free: tuple[ComesFree, ...] = about("the next jobs whose end frees GPUs that it could grow by", default=())


@record
class ProgramErrors:
    """How good predictions of sizes never measured were, of one program on one kind of GPU."""

    program: str = about("user and script", Column("Program"))
    gpu_type: str = about("kind of GPU", Column("Type"))
    predictions: int = about("resizes to sizes that had not been measured, and were then", Column("Predictions"))
    error: float = about("median of their relative errors", Column("Error", form=share))
    bias: float = about(
        "median of predicted against observed: 0.1 is a tenth too much", Column("Bias", form="{:+.0%}".format)
    )
    covered: float = about("share of what was observed within the intervals of 80%", Column("Covered", form=share))
    at: float = about("the last one", Column("LastAt", "LAST_AT", form=moment))
    gpus: int = about("GPUs of the last one", Column("LastGPUs", "LAST_GPUS"))
    predicted: float = about("samples/s predicted, the last time", Column("Predicted", form=_number))
    observed: float = about("samples/s observed, the last time", Column("LastObserved", "OBSERVED", form=_number))


@record
class PredictionErrors:
    """How good the last predictions were, by program."""

    now: float
    programs: tuple[ProgramErrors, ...]
    predictions: int
    error: float | None = about("over all of them")
    covered: float | None = about("over all of them")
