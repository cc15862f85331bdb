"""What a plan would give waiting jobs if they ran: GPUs for each, beside the running jobs of its pool. Pure.

    admitted: those that come first, as long as everyone can have its smallest size
    then      the same problem and objective as for running jobs, with a job that waits as one that has nothing

Promise: no job is planned above what its script asks for; what may not be moved is not counted on. Limit: a job that
waits has no measurements of its own, but what its program is known to do; it counts by its own weight, without
what fairness or remaining work make of it. Limits over several pools are kept in each alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...optimizer.errors import InfeasiblePlan, PlanInputError
from ...optimizer.job_view import JobView, Model
from ...optimizer.plan import ChoiceTables, plan_pools
from ...optimizer.policies import DEFAULT_POLICY, POLICIES
from ...optimizer.solver.limits import Cap
from ..pools.candidate import Candidate
from ..running.eligibility import weight_of
from ..settings import PlannerSettings
from .first_sizes import StartingJob


def shares(
    members: Sequence[Candidate],
    capacity: int,
    caps: Sequence[Cap],
    waiting: Sequence[StartingJob],
    models: Mapping[int, Model],
    settings: PlannerSettings,
    tables: ChoiceTables,
) -> dict[int, int]:
    """GPUs by job id, of the waiting jobs of one pool. `capacity`: what these members and waiting jobs share; `models`:
    of the waiting jobs' speed, by job id. One that has none, that is not admitted, or for which there is no plan, has
    its smallest size."""
    views, admitted = list[JobView](members), list[JobView]()
    least = sum(min(k for k, _ in view.choices) for view in views)
    found = {one.need.job_id: min(one.sizes) for one in waiting}
    for one in waiting:
        least += found[one.need.job_id]
        model = models.get(one.need.job_id)
        if model is not None and least <= capacity:
            admitted.append(_view(one, model, settings))
    if not admitted:
        return found
    policy = settings.policy if POLICIES[settings.policy].planner is None else DEFAULT_POLICY
    try:
        (planned,) = plan_pools([[*views, *admitted]], [capacity], caps, policy, tables)
    except (InfeasiblePlan, PlanInputError):
        return found
    return found | {int(target.label): target.gpus for target in planned.targets[len(views) :]}


def _view(one: StartingJob, model: Model, settings: PlannerSettings) -> JobView:
    request = one.job.request
    reference = min(request.batches(one.script.gpus), default=1)
    return JobView(
        label=str(one.need.job_id),
        model=model,
        choices=tuple((gpus, size.nodes) for gpus, size in sorted(one.sizes.items())),
        batches=request.batches,
        current_gpus=0,
        current_batch=0,
        reference_gpus=one.script.gpus,
        reference_batch=reference,
        weight=weight_of(request, settings),
        horizon_s=settings.horizon_s,
        quality=request.until == "quality",
    )
