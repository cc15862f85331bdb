"""What a plan gains a pool's jobs against staying where they are. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...derived.table import Derived
from ...optimizer.job_view import JobView
from ...optimizer.plan import Target
from ...optimizer.policies import POLICIES
from ...optimizer.speedups import speeds_at
from .candidate import Candidate


def gain_of(policy: str, members: Sequence[Candidate], values: Sequence[float], stays: Sequence[float]) -> float:
    """What the terms gain against staying, in relative gains of one job's progress, whatever its weight.

    The sum of all jobs' own changes, each taken as a gain, times the share of them that is gained by weight when losses
    are taken off. Without losses that is the sum of their gains, and so it is with equal weights: a job that counts as
    much as fifty others together is not moved for a fiftieth of what they would be.
    """
    rows = zip(members, values, stays, strict=True)
    changes = [(v - stay, (v - stay) / m.weight) for m, v, stay in rows if v != stay]
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
    each = (abs(stay) / m.weight for m, stay in zip(members, stays, strict=True))
    return max(1e-12, math.fsum(each) / len(members))


def progress_of(members: Sequence[Candidate], targets: Sequence[Target], known: Progress) -> list[float | None]:
    """How much each job's speedup changes, against the size that it began with; None where that is not known."""
    pairs = list(zip(members, targets, strict=True))
    found = known.of({m.running.job_id: (m, t.gpus, t.batch) for m, t in pairs if _changes(m, t)})
    return [found.get(m.running.job_id, 0.0) if _known(m, t) else None for m, t in pairs]


Progress = Derived[int, tuple[Candidate, int, int], float]
"""By job id, how much its progress changes at so many GPUs and that batch."""


def progress_changes(asked: Sequence[tuple[Candidate, int, int]]) -> list[float]:
    """Those of `Progress`, by the models, asked all at once."""
    each = [
        (m, [(m.current_gpus, m.current_batch), (gpus, batch), (m.reference_gpus, m.reference_batch)])
        for m, gpus, batch in asked
    ]
    return [(then - now) / unit for now, then, unit in speeds_at(each)]


def _changes(view: JobView, target: Target) -> bool:
    """Whether its progress changes, and it is known by how much."""
    return _known(view, target) and (target.gpus, target.batch) != (view.current_gpus, view.current_batch)


def _known(view: JobView, target: Target) -> bool:
    return view.model is not None and min(view.current_gpus, view.current_batch, target.gpus, target.batch) >= 1
