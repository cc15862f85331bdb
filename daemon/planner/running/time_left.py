"""How long a running job goes on: by the training that it has left, and by its time limit. Pure."""

from __future__ import annotations

from ...optimizer.job_view import Model
from ...optimizer.models import goodput
from ..settings import PlannerSettings
from .job import RunningJob


def remaining_s(running: RunningJob, now: float) -> float | None:
    """Seconds that the job would still train on one GPU at its reference batch; None where that is not known."""
    remaining, model = running.state.remaining, running.state.model
    if remaining is None or model is None:
        return None
    worth, speed = running.kept_pace or running.keep_pace(_pace(running, model))
    return remaining.after(now) * worth / speed


def _pace(running: RunningJob, model: Model) -> tuple[float, float]:
    """(worth of a sample, samples per second on one GPU), both at its reference batch."""
    state, worth = running.state, 1.0
    _, batch = state.reference or (1, running.batch)
    if running.job.request.until == "quality":
        worth = goodput.efficiency(running.batch, max(1, batch), state.noise_scale)
    return worth, model.throughput(1, 1, max(1, batch))


def horizon(running: RunningJob, settings: PlannerSettings, at: float) -> float:
    """Seconds in which a pause has to be earned back: close to its time limit a job has little time for that."""
    ends_at = running.job.base.ends_at
    return max(1.0, settings.horizon_s if ends_at is None else min(settings.horizon_s, ends_at - at))
