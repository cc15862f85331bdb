"""A member of the round before, and what of it is still so. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...capacity.shrink_options import Unit
from ..running.job import RunningJob
from ..running.state import JobState
from ..settings import PlannerSettings
from .candidate import Candidate, member
from .options import in_reach, options


@dataclass(slots=True)
class KeptMember:
    """A member of the round before, with what it was made from beside the running job and the settings."""

    member: Candidate
    state: JobState
    room: int
    reach: int
    """What `in_reach` made of it."""
    node_gpus: int
    factor: float
    horizon_s: float

    @classmethod
    def made(
        cls, before: KeptMember | None, running: RunningJob, forced: frozenset[Unit], settings: PlannerSettings,
        room: int, node_gpus: int, factor: float, horizon_s: float,
    ) -> KeptMember | None:  # fmt: skip
        """The member, with what of the one before is still so; None when the job has no size to come to rest on.

        `room`: GPUs it could gain; `factor`, `horizon_s`: as `member` has them.
        """
        reach = in_reach(running, forced, room)
        found = None
        if before is not None and before.member.running is running:
            own = before.member
            if (own.forced, before.reach, before.node_gpus) == (forced, reach, node_gpus):
                found = own.options
        if before is not None and found is not None and before.is_of(running.state, factor, horizon_s):
            return cls(before.member, running.state, room, reach, node_gpus, factor, horizon_s)
        found = found or options(running, forced, room, node_gpus)
        if found is None:
            return None
        made = member(running, found, settings, factor, horizon_s)
        return cls(made, running.state, room, reach, node_gpus, factor, horizon_s)

    def holds(
        self, running: RunningJob, forced: frozenset[Unit], room: int, node_gpus: int, factor: float, horizon_s: float
    ) -> bool:
        """Whether nothing of it has changed; False where that is to be looked at."""
        return (
            self.member.running is running and self.state is running.state and self.room == room
            and self.factor == factor and self.horizon_s == horizon_s and self.node_gpus == node_gpus
            and self.member.options.forced == forced
        )  # fmt: skip

    def is_of(self, state: JobState, factor: float, horizon_s: float) -> bool:
        """Whether the view of the same options would be the same."""
        view = self.member.view
        alike = self.factor == factor and self.horizon_s == horizon_s
        return alike and view.model == state.model and view.noise_scale == state.noise_scale
