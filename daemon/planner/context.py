"""What the parts of one plan go by: what it is made from, who stands where, what waiting jobs get, and the limits.

Promise: the inputs, the standings and the room are never changed; only what is held under the limits and what is said
of a job are written down while the plan is made.
Limit: made for one plan and thrown away; it knows nothing of the round before but what the inputs say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from slurm_elastic.db.rows import Mark
from slurm_elastic.protocol.messages import Shape

from ..capacity.make_room import Room
from ..capacity.roster import Roster
from ..capacity.shrink_options import Unit
from ..capacity.slurm_limits import gpu_limits
from ..config.settings import Settings
from ..optimizer.plan import Solver, plan_pools
from ..slurm.model import Snapshot
from ..slurm.site import Site
from ..text.reasons import Reason
from .eligibility import JobState, Standing
from .memory import Memory
from .user_limits import Limits


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a plan is made from."""

    snapshot: Snapshot
    roster: Roster
    states: Mapping[int, JobState]
    settings: Settings
    now: float
    passed: Collection[int] = ()
    """Waiting jobs that did not take the room made for them."""
    memory: Memory = field(default_factory=Memory)
    """What was made of the same jobs in the round before; it changes no plan."""
    site: Site = field(default_factory=Site)
    put_back: Mapping[int, Shape] = field(default_factory=dict)
    """What jobs that a resize is putting back are to get, by job id."""
    marks: Mapping[int, Mark] = field(default_factory=dict)
    """Of the decisions that stand, by job id: one like that is made without evidence, for it is not stored again."""
    solver: Solver = plan_pools
    """What shares GPUs out."""


class Situation:
    """One plan's inputs, and what was found out from them before anything is shared out."""

    def __init__(self, inputs: Inputs, standings: Mapping[int, Standing], room: Room) -> None:
        self.inputs, self.standings, self.room = inputs, standings, room
        slurm = gpu_limits(inputs.site, inputs.snapshot, inputs.roster)
        self.limits = Limits(inputs.settings.gpu_limits, standings.values(), slurm)
        self.said: dict[int, str] = {}
        """What stands in the way of more, by job."""

    def more(self, standing: Standing, otherwise: int) -> int:
        """GPUs that the limits let a job gain; `otherwise` where none holds it."""
        room = self.limits.room(standing.job_id)
        return otherwise if room is None else room

    def forced(self, standing: Standing) -> frozenset[Unit]:
        """The units that a job gives up for waiting jobs."""
        return self.room.forced.get(standing.job_id, frozenset())

    def forced_gpus(self, standing: Standing) -> int:
        """GPUs that a job gives up for waiting jobs."""
        return sum(standing.giver.share[unit[0]].gpus for unit in self.forced(standing))

    def why_forced(self, standing: Standing) -> Reason:
        """For an ordinary job when one that it makes room for is ordinary, else for an elastic one."""
        for met in self.room.met:
            if standing.job_id in met.givers and not met.need.elastic:
                return Reason.SHRINK_FOR_JOB
        return Reason.SHRINK_FOR_ELASTIC
