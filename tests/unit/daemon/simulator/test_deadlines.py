"""Deadlines in a simulation: the planner's own code, so what it does there it does on a cluster."""

from __future__ import annotations

import math
from dataclasses import replace

from simulations import QUIET, job, outcome

from slurm_elastic.daemon.simulator.metrics import gains, summary
from slurm_elastic.daemon.simulator.traces import formats


def kept(weight: float, *, slack: float = 0.75) -> float:
    """The share of deadlines kept by eight jobs alike on 16 GPUs, of which two have to be done in so much of the time
    that an equal share takes."""
    settings = replace(QUIET, gpus=16, shorter_first=0.0, until="epochs", deadline_weight=weight)
    rows = [job(str(i), 0.0, 1, 5e6, min_gpus=1, max_gpus=16, max_batch=1 << 20) for i in range(8)]
    equal = max(one.end_s for one in outcome(rows, "auto", settings).jobs)
    rows = [replace(row, deadline_s=slack * equal if i in (2, 5) else 0.0) for i, row in enumerate(rows)]
    return summary(outcome(rows, "auto", settings)).in_time


def test_deadlines_are_kept_that_would_be_missed() -> None:
    """By those who have no deadline; one that no size keeps brings nothing."""
    assert (kept(1.0), kept(4.0), kept(4.0, slack=0.01)) == (0.0, 1.0, 0.0)


def test_a_trace_says_when_jobs_are_to_be_done() -> None:
    """Our own has a column, sacct's the request; where there are some the summary says how many are kept."""
    rows = [job("a", 0.0, 1, 1e4, deadline_s=1e9), job("b", 0.0, 1, 1e4, deadline_s=1.0)]
    assert formats.read(formats.write(rows)) == rows
    first, last = (summary(outcome(rows, policy)) for policy in ("backfill", "auto"))
    assert last.in_time == 0.5 and "Of the jobs with a deadline 50% keep it instead of 50%." in gains([first, last])
    without = [replace(row, deadline_s=0.0) for row in rows]
    assert math.isnan(summary(outcome(without, "auto")).in_time)
    header = "JobID|Submit|ElapsedRaw|AllocTRES|Comment"
    due = "102|2026-10-01T00:00:00|7200|gres/gpu=4|elastic:gpus=2-16,batch=256-4096,deadline="
    for value, seconds in (("now+2hours", 7200.0), ("2026-10-01T06:00", 21600.0), ("23:00", 82800.0)):
        assert formats.read(f"{header}\n{due}{value}\n")[0].deadline_s == seconds
