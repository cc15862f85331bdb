"""What `explain` understands of DecisionRow.evidence and DecisionRow.alternatives.

Promise: every key is optional; a missing key, None, or a value of another type is "not known", and is said so.
Limit: it reads, the planner writes; a key unknown here is shown by --json only.

evidence
    reports_from, reports_to    int    reports at the size left and at the target
    last_report_age_s           float  age of the youngest report when the decision was taken, in seconds
    speedup_from, speedup_to    float  progress against the job's smallest size
    samples_per_s_from, samples_per_s_to   float   measured or modelled throughput
    modelled                    bool   the throughput at the target comes from the model: that size was never measured
    doubt                       float  relative 1-sigma of that model at the target: 0.2 is one fifth
    prior                       str    what the model believes where nothing was measured, and from how many runs
    unfitted                    str    why no model can be made of the reports, in words that follow a colon
    idle_gpus                   int    GPUs of the pool that nobody held
    pool                        str    the pool's name: nodes whose GPUs can be given to the same jobs
    capacity_gpus               int    managed capacity of the pool
    for_job, for_gpus           int    the waiting job that the GPUs were freed for, and how many it wants
    others                      list   of {job_id, gpus_from, gpus_to, change}: jobs that moved in the same round;
                                       change is relative (0.25: a quarter more progress)
    pause_s                     float  what the resize is taken to cost;   pause_measured   bool
    horizon_s                   float  over which the gain has to pay for the pause
    cooldown_until, blocked_until   float  unix time before which no resize of this job is considered
    resizes_in_hour             int    resizes of the job within an hour, where that is as many as the site allows
    weight_asked, weight_counts float  the request's weight, where the site's max_weight counts less of it
    pinned                      int    GPUs that the job is pinned to
    next                        str    one sentence: what is tried next, or what stands in the way
    passed_over                 list   of {mechanism, why}: the ways to resize it that were not taken
    limit                       str    the limit of GPUs that keeps it from more, in words
    slurm_reason                str    why Slurm lets the job wait, in its own word
alternatives: a list of
    gpus, batch                 int
    value                       float  of this job at that size, in the objective's unit; what it takes from others is
                                       not in it
    samples_per_s               float  measured or modelled throughput there
    why                         str    why it was not chosen
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def number(evidence: Mapping[str, Any], key: str) -> float | None:
    """A finite number, or None."""
    value = evidence.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def whole(evidence: Mapping[str, Any], key: str) -> int | None:
    """A whole number, or None."""
    value = number(evidence, key)
    return None if value is None else int(value)


def flag(evidence: Mapping[str, Any], key: str) -> bool | None:
    """True, False, or None for not known."""
    value = evidence.get(key)
    return value if isinstance(value, bool) else None


def text(evidence: Mapping[str, Any], key: str) -> str:
    """A text, empty when there is none."""
    value = evidence.get(key)
    return value if isinstance(value, str) else ""


def objects(evidence: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """A list of objects; whatever else stands there is left out."""
    value = evidence.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, (list, tuple)) else []
