"""The plan of elastic jobs as a service: the first in the registry, and on unless told otherwise. Pure but for the log.

Promise: all that is kept from round to round speeds a plan up, or says whom no room is made for; after a restart the
same jobs come to the same sizes. Where room was made for waiting jobs that do not start, none is made for their like
for a while, which doubles each time that a job of the same user, limit and shape does not start; what elastic jobs gave
up for one that did not take it, they may take back without a cooldown.
Limit: it looks at nothing that services before it have taken. Slurm does not say what such jobs wait for (a license, a
limit of minutes).
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_elastic.db.rows import DecisionRow
from slurm_elastic.protocol.codes import EventKind, Reason, ResizeState
from slurm_elastic.protocol.messages import Resize

from ..actions.action import QUEUE, Action, Close, Subject
from ..capacity.make_room import RoomMade
from ..capacity.pending_jobs import Kind, by_node, lasting
from ..mechanisms.requeue import COMES_BACK, bound_by_a_shrink, first_size_steps, resumes
from ..optimizer.policies import DEFAULT_POLICY
from ..planner import Inputs, Plan, plan_round
from ..planner.running.job import RunningJob
from ..planner.settings import PLAN
from ..planner.tables import Tables
from ..slurm.model import Snapshot
from .base import ACT, Note, Observation, Proposal, Row, Service

log = logging.getLogger(__name__)

WAIT_S = 120.0
"""How long GPUs may stay idle for a waiting job."""
RETRY_S = 300.0
"""How long no room is made for its like after the first time."""
MOST_S = 86400.0


class Nonstarters:
    """Which waiting jobs did not start, from one round to the next."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._until: dict[Kind, tuple[float, float]] = {}
        """When room is made again for a kind, and how long it was not."""
        self._gave: dict[int, set[int]] = {}
        """Elastic job -> the waiting jobs that it gave up GPUs for."""
        self.in_vain: set[int] = set()
        """Elastic jobs that gave up GPUs which were not taken."""

    def excluded(self, now: float) -> set[Kind]:
        """Kinds of jobs that no room is made for now."""
        return {kind for kind, (until, _) in self._until.items() if now < until}

    def gives(self, elastic_id: int, served: Iterable[RoomMade]) -> None:
        """A resize of an elastic job begins; `served`: for whom it makes room."""
        self.in_vain.discard(elastic_id)
        self._gave[elastic_id] = {one.need.job_id for one in served}

    def record(self, served: Iterable[RoomMade], snapshot: Snapshot, now: float) -> None:
        """`served`: of this round's plan. Those that wait for nothing to be released could have started."""
        ready = {one.need.job_id: one.need.kind for one in served if not one.waits}
        self._since = {job_id: self._since.get(job_id, now) for job_id in ready}
        late = {job_id for job_id, since in self._since.items() if now - since >= WAIT_S}
        for kind in {ready[job_id] for job_id in late}:
            until, before = self._until.get(kind, (0.0, 0.0))
            if now >= until:
                wait = min(2 * before, MOST_S) or RETRY_S
                self._until[kind] = now + wait, wait
        for job_id in sorted(late):
            wait = self._until[ready[job_id]][1]
            log.info(
                "job %d does not start on the GPUs kept free for it: none are kept for %.0f s",
                job_id,
                wait,
                extra={"JOB": job_id},
            )
        # One that no longer does for as long as it was not believed is forgotten.
        self._until = {kind: (until, wait) for kind, (until, wait) in self._until.items() if now < until + wait}
        self._note_in_vain(snapshot, late)

    def _note_in_vain(self, snapshot: Snapshot, late: set[int]) -> None:
        for elastic_id, waiting in self._gave.items():
            waiting -= {job_id for job_id in waiting if job_id in snapshot.jobs and snapshot.jobs[job_id].active}
            if waiting & late or not waiting <= snapshot.jobs.keys():
                self.in_vain.add(elastic_id)
        self._gave = {one: waiting for one, waiting in self._gave.items() if waiting and one not in self.in_vain}
        self.in_vain &= snapshot.jobs.keys()


WHOLE = Subject(QUEUE)
"""What is said of all jobs."""


@dataclass(frozen=True, slots=True)
class ElasticProposal(Proposal):
    """With the plan that it comes from."""

    plan: Plan = field(kw_only=True, compare=False)


class ElasticJobs(Service):
    """Who gets how many GPUs, and at which batch."""

    name = "elastic"
    unless_told = ACT

    def __init__(self) -> None:
        self.tables = Tables()
        self.capacity: int | None = None
        self.idle: int | None = None
        """GPUs of all pools at the last plan: for elastic jobs, and idle ones. None before the first plan."""
        self._nonstarters = Nonstarters()
        self._unlisted: Mapping[str, int] = {}
        self._left_out: Mapping[str, int] = {}
        self._fell_back = ""

    def running_job(self, job_id: int) -> RunningJob | None:
        return self.tables.running_jobs.get(job_id)

    def inputs(self, seen: Observation) -> Inputs:
        """What a plan is made from."""
        facts, plans = seen.facts, seen.settings.first_size == PLAN
        return Inputs(
            snapshot=seen.snapshot,
            roster=seen.roster,
            states=facts.job_states(seen, self._nonstarters.in_vain),
            settings=seen.settings,
            now=seen.now,
            passed=self._nonstarters.excluded(seen.now),
            tables=self.tables,
            site=seen.site,
            put_back={job_id: resize.add[0] for job_id, resize in seen.resizes.items() if resize.requeues},
            marks=seen.marks or {},
            unlisted_before=self._unlisted,
            host_pairs=facts.host_pairs(),
            waiting_models=facts.waiting_models(seen) if plans else {},
            resized_waiting=facts.resized_waiting(seen),
        )

    def propose(self, seen: Observation) -> ElasticProposal:
        plan = plan_round(self.inputs(seen), with_rows=seen.marks is not None)
        actions = (*_withdrawals(plan, seen), *plan.resizes, *_resumes(plan, seen))
        return ElasticProposal(
            actions, (*plan.rows, *self._of_policy(plan, seen)), plan.allocation.value, plan.left, plan=plan
        )

    def explain(self, row: Row) -> str:
        return row.text if isinstance(row, Note) else sentence(row)

    def settled(self, seen: Observation, proposal: Proposal, done: Sequence[Action]) -> None:
        assert isinstance(proposal, ElasticProposal)
        plan = proposal.plan
        self.capacity, self.idle = sum(plan.capacity.values()), sum(plan.idle.values())
        self._note_unlisted(plan.context.unlisted)
        self._fell_back = self._fell_back if plan.fell_back is None else plan.fell_back
        self._nonstarters.record(plan.served, seen.snapshot, seen.now)
        for action in done:
            if isinstance(action, Resize):
                self._nonstarters.gives(
                    action.job_id, (served for served in plan.served if action.job_id in served.givers)
                )
        for pool in plan.allocation.trouble:
            log.warning("no plan for %s", pool)

    def undo(self, seen: Observation) -> list[Action]:
        """Resizes that have not switched are withdrawn; what a job trains on stays its own."""
        why = f"elastic jobs are in mode {seen.settings.mode}"
        return [
            Close(resize.job_id, resize.id, ResizeState.WITHDRAWN, why)
            for resize in seen.resizes.values()
            if resize.state != ResizeState.RUNNING
        ]

    def _of_policy(self, plan: Plan, seen: Observation) -> Iterator[Note]:
        """Say once that the site's policy does not plan, and once that it does again."""
        policy, why = seen.settings.policy, plan.fell_back
        if why is None or bool(why) == bool(self._fell_back):
            return
        if why:
            text = f"{why}; {DEFAULT_POLICY} plans in its place"
            detail = {"policy": policy, "detail": text}
            yield Note(WHOLE, f"{text} until it does", detail, EventKind.POLICY_FAILED, logging.ERROR)
        else:
            yield Note(WHOLE, f"policy {policy} plans again", {"policy": policy}, EventKind.POLICY_WORKS)

    def _note_unlisted(self, unlisted: Mapping[str, int]) -> None:
        """Say once which nodes hold GPUs that no job accounts for: what is left of such a node counts, and no more."""
        left_out = lasting(unlisted, self._unlisted)
        self._unlisted = unlisted
        if left_out != self._left_out:
            self._left_out = left_out
            log.warning("GPUs in use by no job that Slurm lists: %s", by_node(left_out) or "none any more")


def _withdrawals(plan: Plan, seen: Observation) -> list[Action]:
    """Of growths that have not switched, for the waiting jobs that need their nodes."""
    return [
        Close(job_id, seen.resizes[job_id].id, ResizeState.OVERTAKEN, f"job {need} waits for its nodes")
        for job_id, need in plan.withdrawn.items()
    ]


def _resumes(plan: Plan, seen: Observation) -> list[Action]:
    """Of waiting jobs that are to start, or to come back, at other sizes."""
    waiting, first = (seen.snapshot.jobs[job_id] for job_id in plan.resumes), plan.first
    bound = {
        job.job_id for job in waiting if job.required_nodes and bound_by_a_shrink(job, seen.facts.history(job.job_id))
    }
    scripts = seen.facts.scripts(first.scripts) if seen.settings.mode == ACT and first.starts else {}
    return [*resumes(plan.resumes, COMES_BACK, bound), *first_size_steps(first.starts, first.back, scripts)]


def sentence(row: DecisionRow) -> str:
    """A decision in one line of the log."""
    if row.reason == Reason.WAITING.value:
        return f"job {row.job_id}: waits for its {row.evidence.get('for_gpus')} GPUs"
    size = f"{row.gpus_from} GPUs" if row.gpus_from == row.gpus_to else f"{row.gpus_from} -> {row.gpus_to} GPUs"
    batch = f", batch {row.batch_from} -> {row.batch_to}" if row.batch_from != row.batch_to else ""
    how = f" by {row.mechanism}" if row.mechanism else ""
    what_for = f" (job {row.evidence['for_job']})" if "for_job" in row.evidence else ""
    advised = "" if row.mode == "act" or not row.mechanism else f" [{row.mode} only]"
    return f"job {row.job_id}: {size}{batch}{how}: {Reason(row.reason).meaning}{what_for}{advised}"
