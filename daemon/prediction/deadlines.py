"""Whether a job will be done by its `deadline=`, within its `budget=`, in words: for whoever submits it, and for
`selastic explain`; where it will not, what would do.

Promise: of a job that runs and was measured as the plan has it; before that by the youngest run of its program, or of
its name and user. Limit: before it runs, as if it trained on one size from its start to its end.
"""

from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from slurm_elastic.db.rows import JobRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.api.routes import AdviseQuery
from slurm_elastic.protocol.errors import NotFound, RequestError
from slurm_elastic.protocol.request import MOST_GPUS
from slurm_elastic.protocol.text.times import STANDARD, deadline_at

from ..derived.table import Derived, one_by_one
from ..planner.pools.deadlines import Aim, aims, curve_of
from .advice import Basis, Ground, Option, Rated, weigh
from .sizes import request_of

LIKELY = 0.5
"""What is less probable is said not to be kept."""
BEYOND = 8
"""What would do is looked for up to so many times the GPUs that the request accepts."""


def told(store: Store, basis_of: Basis, ground: Ground, job_id: int, now: float) -> tuple[str, ...]:
    """Sentences about a job of the store; none where it has neither a deadline nor a budget, or has ended."""
    job = store.jobs.get(job_id)
    if job is None or not job.managed or job.end_time is not None:
        return ()
    request = request_of(job)
    due = deadline_at(request.deadline, job.submit_time) if request.deadline else None
    if due is None and not request.budget:
        return ()
    if due is not None and due <= now:
        return (f"its deadline, {_clock(due)}, has passed: it moves nothing",)
    basis = basis_of(job_id, None)
    left, what = request.budget, _aims(due, request.budget)
    wider = replace(request, max_gpus=min(MOST_GPUS, BEYOND * request.max_gpus))
    try:
        if basis.running is not None and basis.running.measured:
            running = basis.running
            aim = aims([running], basis.settings, ground.site, now, Derived(one_by_one(curve_of)))[job_id]
            if aim.left is None:
                return (f"{what}: not known, as its script does not say how long it trains (epochs, steps)",)
            price = ground.price(job.partition, running.job.base.gpu_type, 1.0)
            left = max(1e-9, left - price * running.state.spent_gpu_s / 3600) if left else 0.0
            said = _as_planned(aim, running.gpus, now)
            if (due is None or aim.gpus is not None) and aim.paid != 0:
                return said
            query = AdviseQuery(due, left or None, samples=max(1, round(aim.left)))
            with suppress(NotFound):
                said = *said, _would_do(weigh(store, basis_of, ground, job, query, now, wider)[1], job)
            return said
        name, _ = store.programs.of(job_id) or ("", "")
        runs = store.programs.youngest_runs(name) if name else {}
        earlier = store.jobs.get(max(runs.values(), default=store.programs.youngest_named(job.user, job.name) or 0))
        if earlier is None:
            return (f"{what}: not known until it has run for a while, as no earlier run was measured",)
        _, rated, *_ = weigh(store, basis_of, ground, earlier, AdviseQuery(due, left or None), now, wider)
    except (NotFound, RequestError) as error:
        why, _, _ = str(error).partition(";")
        return (f"{what}: not known, as {why}",)
    own = [(likely, one) for one, likely in rated if _is_own(one, job)]
    # What was never measured is a little probable whatever is asked: where nothing is likely the fastest says most.
    likely, best = max(own, key=lambda each: (each[0] * (each[0] >= LIKELY), -each[1].until_s), default=(0.0, None))
    at = f" with {best.gpus} GPUs" if best is not None else ""
    if likely >= LIKELY:
        return (f"{what}: probably kept (P {likely:.0%}{at}), by job {earlier.job_id}",)
    return f"{what}: PROBABLY NOT KEPT (P {likely:.0%}{at}), by job {earlier.job_id}", _would_do(rated, job)


def _as_planned(aim: Aim, gpus: int, now: float) -> tuple[str, ...]:
    """Of a job that runs."""
    found = list[str]()
    if aim.due is not None and aim.soonest is not None:
        by = f"its deadline, {_clock(aim.due)}"
        if aim.gpus is not None:
            found.append(f"{by}: it needs {aim.gpus} GPUs from now on, and has {gpus}")
        elif aim.soonest > aim.due:
            late = f"at its fastest size it is done at {_clock(aim.soonest)}, so it moves nothing"
            found.append(f"{by}, CANNOT BE KEPT: {late}")
        else:
            found.append(f"{by}: at its fastest size it is done at {_clock(aim.soonest)}, with nothing to spare")
    if aim.paid is not None:
        pays = f"pays for at most {aim.paid} GPUs until its end" if aim.paid else "DOES NOT PAY for its end at any size"
        found.append(f"its budget {pays}")
    return tuple(found)


def _would_do(rated: Rated, job: JobRow) -> str:
    best, likely = rated[0]
    if likely < LIKELY:
        return "nothing that can be asked for would do; more time would, or a larger budget"
    kind = f" of type {best.gpu_type}" if best.gpu_type else ""
    beyond = "" if _is_own(best, job) else ", which its request does not accept there"
    return f"what would do: {best.gpus} GPUs{kind} in partition {best.partition} (P {likely:.0%}){beyond}"


def _is_own(one: Option, job: JobRow) -> bool:
    return one.partition in job.partition.split(",") and request_of(job).accepts(one.gpus)


def _aims(due: float | None, budget: float) -> str:
    by = [f"deadline {_clock(due)}"] if due is not None else []
    return "its " + " and its ".join([*by, *([f"budget of {budget:g}"] if budget else [])])


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).strftime(STANDARD)
