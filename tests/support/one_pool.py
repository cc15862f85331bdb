"""The plan of one pool alone."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.daemon.optimizer.job_view import JobView
from slurm_elastic.daemon.optimizer.plan import ChoiceTables, PoolPlan, plan_pools
from slurm_elastic.daemon.optimizer.policies import DEFAULT_POLICY


def plan(
    jobs: Sequence[JobView], capacity: int, policy: str = DEFAULT_POLICY, tables: ChoiceTables | None = None
) -> PoolPlan:
    """As `plan_pools` has it."""
    return plan_pools([jobs], [capacity], (), policy, tables)[0]
