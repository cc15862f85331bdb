"""The rows of `selastic review`. Filled by daemon/reports/review.py, which says how its figures come about."""

from __future__ import annotations

from ..text.tables import digits, moment
from ..text.times import elapsed
from .record import Column, JobRecord, about, record


def _percent(change: float) -> str:
    return f"{100 * change:+.0f}%"


def _mean(value: float) -> str:
    """Whole numbers as they are, means with a digit."""
    return f"{value:.1f}".removesuffix(".0")


@record
class ReviewFigures:
    """What following advice would have brought."""

    seconds: float = about("how long the job was seen, or the advice stood", Column("Time", form=elapsed))
    moves: int = about("resizes that the daemon would have begun", Column("Moves"))
    gpu_hours: float = about("GPU-hours that it had", Column("GPUHours", form=digits()))
    advised_gpu_hours: float = about(
        "GPU-hours that it would have had", Column("WouldGPUHours", "WOULD_GPUHOURS", form=digits())
    )
    change: float | None = about(
        "progress it would have made, against what it made; pauses charged", Column("Change", form=_percent)
    )
    progress_h: float | None = about(
        "the same difference in hours at its smallest size", Column("ProgressH", "PROGRESS_H", form=digits())
    )
    pause_s: float = about("pauses charged, in seconds", Column("Pause", form=digits(2)))
    unknown_s: float = about("time under advice of unknown effect", Column("Unknown", form=elapsed))
    modelled_s: float = about("time under advice to have a size that was never measured")
    doubt: float | None = about(
        "uncertainty of the advised sizes' predicted speed; empty where all were measured",
        Column("Doubt", form=lambda doubt: f"{100 * doubt:.0f}%" if doubt else ""),
    )


@record
class JobReview(ReviewFigures, JobRecord):
    """The advice on one job, all of it together."""

    gpus: float = about("GPUs that it had; the mean over the time", Column("GPUs", form=_mean))
    advised_gpus: float = about(
        "GPUs that it was advised to have; the mean over the time", Column("WouldGPUs", "WOULD", form=_mean)
    )


@record
class MoveReview(ReviewFigures, JobRecord):
    """One move that was advised."""

    at: float = about("when the move was first advised (--moves)", Column("At", form=moment))
    gpus: int = about("GPUs that it had", Column("GPUs"))
    advised_gpus: int = about("GPUs that it was advised to have", Column("WouldGPUs", "WOULD"))
    batch: int = about("global batch that it had (--moves)", Column("Batch"))
    advised_batch: int = about(
        "global batch that it was advised to have (--moves)", Column("WouldBatch", "WOULD_BATCH")
    )
    gain: float | None = about(
        "gain of the move for all jobs, in jobs' worth of progress (--moves)", Column("Gain", form=digits())
    )
    mechanism: str = about("how it would have got there (--moves)", Column("Mechanism", "VIA"))
    mode: str = about("the daemon's mode then (--moves)", Column("Mode"))
    reason: str = about("why, as a code (--moves)", Column("Reason"))
    reason_text: str = about("why, in words (--moves)", Column("Because"))


@record
class ClusterReview(ReviewFigures):
    jobs: int


@record
class WaitingReview:
    """A waiting job that room would have been made for."""

    job_id: int
    gpus: int | None
    at: float = about("when it would have had room")
    waited_s: float = about("how long it waited after that")


@record
class Review:
    """What the daemon would have done while it did not act."""

    start: float
    end: float
    acted: int = about("decisions of this time that were acted on")
    cluster: ClusterReview
    jobs: tuple[JobReview, ...]
    moves: tuple[MoveReview, ...]
    waited: tuple[WaitingReview, ...]
