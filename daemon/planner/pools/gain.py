"""What a plan gains a pool's jobs against staying where they are. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...optimizer.job_view import JobView
from ...optimizer.plan import Cache, values_of_staying
from ...optimizer.policies import POLICIES
from ...optimizer.targets import Target
from .candidate import Candidate
from .speeds import speeds_at


def gain_of(policy: str, members: Sequence[Candidate], values: Sequence[float], stays: Sequence[float]) -> float:
    """What the terms gain against staying, in relative gains of one job's progress, whatever its weight.

    The sum of all jobs' own changes, each taken as a gain, times the share of them that is gained by weight when losses
    are taken off. Without losses that is the sum of their gains, and so it is with equal weights: a job that counts as
    much as fifty others together is not moved for a fiftieth of what they would be.
    """
    rows = zip(members, values, stays, strict=True)
    changes = [(v - stay, (v - stay) / m.view.weight) for m, v, stay in rows if v != stay]
    gross = math.fsum(abs(weighted) for weighted, _ in changes)
    if not gross:
        return 0.0
    net = math.fsum(weighted for weighted, _ in changes)
    return net / gross * math.fsum(abs(own) for _, own in changes) / _worth(policy, members, stays)


def _worth(policy: str, members: Sequence[Candidate], stays: Sequence[float]) -> float:
    """What a relative gain of progress is worth in the objective, in the mean over the jobs: u'(s) s.

    1 with logarithms. With sums it is the progress itself, with `harmonic` its inverse: a term's amount by its weight.
    """
    if POLICIES[policy].relative or not members:
        return 1.0
    each = (abs(stay) / m.view.weight for m, stay in zip(members, stays, strict=True))
    return max(1e-12, math.fsum(each) / len(members))


def staying_values(policy: str, cache: Cache, members: Sequence[Candidate], targets: Sequence[Target]) -> list[float]:
    """Their terms where they stay, known with their choices but for a few; those are made all at once."""
    found = [math.nan if m.forced else t.offered.staying for m, t in zip(members, targets, strict=True)]
    asked = [m.staying for m, value in zip(members, found, strict=True) if math.isnan(value)]
    made = iter(values_of_staying(asked, policy, cache) if asked else ())
    return [next(made) if math.isnan(value) else value for value in found]


def progress_of(members: Sequence[Candidate], targets: Sequence[Target]) -> list[float | None]:
    """How much each job's speedup changes, against the size that it began with; None where that is not known."""
    pairs = list(zip(members, targets, strict=True))
    asked = [(m, t) for m, t in pairs if _changes(m.view, t) and (t.gpus, t.batch) not in m.progress]
    for (m, t), (now, then, unit) in zip(asked, speeds_at([_progress_at(m, t) for m, t in asked]), strict=True):
        m.progress[t.gpus, t.batch] = (then - now) / unit
    return [m.progress[t.gpus, t.batch] if _changes(m.view, t) else _unchanged(m.view, t) for m, t in pairs]


def _changes(view: JobView, target: Target) -> bool:
    """Whether its progress changes, and it is known by how much."""
    return _known(view, target) and (target.gpus, target.batch) != (view.current_gpus, view.current_batch)


def _known(view: JobView, target: Target) -> bool:
    return view.model is not None and min(view.current_gpus, view.current_batch, target.gpus, target.batch) >= 1


def _unchanged(view: JobView, target: Target) -> float | None:
    return 0.0 if _known(view, target) else None


def _progress_at(m: Candidate, target: Target) -> tuple[Candidate, list[tuple[int, int]]]:
    view = m.view
    reference = view.reference_gpus, view.reference_batch
    return m, [(view.current_gpus, view.current_batch), (target.gpus, target.batch), reference]
