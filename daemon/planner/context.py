"""What the parts of one plan go by: what it is made from, the running jobs, what waiting jobs get, and the limits.

Promise: inputs, running jobs and room are never changed; while the plan is made, only what is held under the limits and
what is said of a job are written down.
Limit: made for one plan and thrown away; it knows nothing of the round before but what the inputs say.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from slurm_elastic.db.rows import HostPair, Mark
from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.messages import Shape

from ..capacity.make_room import Room
from ..capacity.pending_jobs import Kind
from ..capacity.placement import CompanionLimits
from ..capacity.roster import Roster
from ..capacity.shrink_options import Unit
from ..capacity.slurm_limits import LimitUsage, gpu_limits
from ..mechanisms.settings import companion_wait_s
from ..optimizer.job_view import Model
from ..optimizer.weights import Weights
from ..slurm.model import Snapshot
from ..slurm.site import Site
from .leaving_companions import LEAVE_S, draining, draining_units, ending_units, submitted_units
from .running.job import RunningJob
from .running.state import JobState
from .settings import PlannerSettings
from .tables import Tables
from .user_limits import Limits, holds
from .waiting.first_sizes import Changed


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a plan is made from."""

    snapshot: Snapshot
    roster: Roster
    states: Mapping[int, JobState]
    settings: PlannerSettings
    now: float
    passed: Collection[Kind] = ()
    """Of waiting jobs that did not take the room made for them."""
    tables: Tables = field(default_factory=Tables)
    """What was made of the same jobs in the round before; it changes no plan."""
    site: Site = field(default_factory=Site)
    put_back: Mapping[int, Shape] = field(default_factory=dict)
    """What jobs that a resize is putting back are to get, by job id."""
    marks: Mapping[int, Mark] = field(default_factory=dict)
    """Of the decisions that stand, by job id: one like that is made without evidence, for it is not stored again."""
    unlisted_before: Mapping[str, int] = field(default_factory=dict)
    """By node, the GPUs in use that no job held in the round before, if jobs waited or there were any before that."""
    host_pairs: Sequence[HostPair] = ()
    """Hosts that did not reach each other."""
    waiting_models: Mapping[int, Model] = field(default_factory=dict)
    """What is believed of the speed of waiting jobs, by job id, where their first sizes are planned."""
    resized_waiting: Mapping[int, Changed] = field(default_factory=dict)
    """Waiting jobs that were given another size than their scripts', by job id."""


class RoundContext:
    """One plan's inputs, and what was found out from them before anything is shared out."""

    def __init__(
        self,
        inputs: Inputs,
        running_jobs: Mapping[int, RunningJob],
        room: Room,
        usage: LimitUsage,
        unlisted: Mapping[str, int] = MappingProxyType({}),
        weights: Weights | None = None,
    ) -> None:
        """usage: of Slurm's limits. unlisted: by node, the GPUs in use that no job holds. weights: of the running jobs;
        None: every job counts alike."""
        self.inputs, self.running_jobs, self.room, self.unlisted = inputs, dict(running_jobs), room, unlisted
        self.weights = weights or Weights()
        limited = running_jobs.values() if inputs.site.limits else ()
        elastic = [(running.job.base, holds(running, usage)) for running in limited]
        qos = inputs.settings.companion_qos
        slurm = gpu_limits(usage, elastic, room.promised, qos)
        by, minutes = inputs.settings.companion_by, inputs.settings.companion_minutes
        self.companions = CompanionLimits(usage, room.promised, qos, "" if by == "auto" else by, minutes)
        self.limits = Limits(inputs.settings.gpu_limits, running_jobs.values(), slurm, self.weights.paid)
        self._soon_s = LEAVE_S + companion_wait_s(inputs.settings, inputs.site)
        """Time enough to leave a companion for another."""
        snapshot = inputs.snapshot
        self.draining = draining(snapshot.nodes, inputs.site.reservations, snapshot.at, self._soon_s)
        """Names of nodes that are to become empty."""
        self.leaving: dict[int, tuple[Reason, frozenset[Unit]]] = self._drained() | self._ending()
        """What a job is to leave though nobody waits for it, and why."""
        found = submitted_units(self.running_jobs.values(), inputs.snapshot.jobs, usage)
        self.leaving |= {job_id: (Reason.SHRINK_SUBMITS, units) for job_id, units in found.items()}
        self.limiting_reasons: dict[int, str] = {}
        """What stands in the way of more, by job."""
        self.asleep: dict[int, int] = {}
        """GPUs by job that it could grow onto if they were awake."""

    def more(self, running: RunningJob, otherwise: int) -> int:
        """GPUs that the limits let a job gain; `otherwise` where none holds it."""
        room = self.limits.room(running.job_id)
        return otherwise if room is None else room

    @property
    def gives(self) -> bool:
        """Whether any job gives up anything."""
        return bool(self.room.forced or self.leaving)

    def forced(self, running: RunningJob) -> frozenset[Unit]:
        """The units that a job gives up for waiting jobs, or else is to leave; one that grows has its growth withdrawn
        first."""
        if running.growing:
            return _NONE
        return self.room.forced.get(running.job_id) or self.leaving.get(running.job_id, _NOTHING)[1]

    def forced_gpus(self, running: RunningJob) -> int:
        """GPUs that a job gives up."""
        return sum(running.shrinkable.share[unit[0]].gpus for unit in self.forced(running))

    def why_forced(self, running: RunningJob) -> Reason:
        """For an ordinary job when one that it makes room for is ordinary, else for an elastic one; or for nobody."""
        if running.job_id not in self.room.forced:
            return self.leaving[running.job_id][0]
        for served in self.room.served:
            if running.job_id in served.givers and not served.need.elastic:
                return Reason.SHRINK_FOR_JOB
        return Reason.SHRINK_FOR_ELASTIC

    def _drained(self) -> dict[int, tuple[Reason, frozenset[Unit]]]:
        if not self.draining:
            return {}
        found = {job_id: draining_units(running, self.draining) for job_id, running in self.running_jobs.items()}
        return {job_id: (Reason.SHRINK_DRAIN, units) for job_id, units in found.items() if units}

    def _ending(self) -> dict[int, tuple[Reason, frozenset[Unit]]]:
        jobs, at, found = self.inputs.snapshot.jobs, self.inputs.snapshot.at, {}
        soon_s = self._soon_s
        ends = {job.job_id for job in jobs.values() if job.ends_at is not None and job.ends_at < at + soon_s}
        for job_id, running in self.running_jobs.items() if ends else ():
            if len(running.pieces) == 1 or job_id in self.room.forced:
                continue
            if ends.isdisjoint([piece.slurm_job_id for piece in running.pieces]):
                continue
            late, soon = (ending_units(running, jobs, at, within) for within in (LEAVE_S, soon_s))
            if late:  # too late for a successor
                self.running_jobs[job_id] = replace(running, may_grow=False)
                found[job_id] = Reason.COMPANION_ENDS, late
            elif (
                soon
                and running.may_grow
                and self._idle(running) >= sum(running.shrinkable.share[i].gpus for i, _ in soon)
            ):
                found[job_id] = Reason.COMPANION_ENDS, soon
        return found

    def _idle(self, running: RunningJob) -> int:
        """GPUs that are idle and that the limits let it gain."""
        base = running.job.base
        nodes = (node for node in self.inputs.snapshot.nodes.values() if base.partition in node.partitions)
        idle = self.room.ledger.gpus(node.name for node in nodes if base.gpu_type in ("", node.gpu_type))
        return min(idle, self.more(running, idle))


_NONE = frozenset[Unit]()
_NOTHING = Reason.KEEP_BEST, _NONE
