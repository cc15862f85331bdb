"""A trace replayed under one policy, or under one of the disciplines that the policies are compared with.

Promise: the same trace, settings and seed give the same outcome, with every assumption in words.
Limit: one policy at a time; what the simulation leaves out is said in `engine`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..optimizer.plans import choose
from ..optimizer.policies import POLICIES
from .decisions import Chooser, Optimized
from .engine import Outcome
from .evolution import Evolution
from .feedback import Feedback
from .jobs import Settings, prepare
from .programs import Program
from .trace import TraceJob


def simulate(
    trace: Sequence[TraceJob],
    programs: dict[str, Program],
    policy: str,
    settings: Settings,
    declared: str = "",
    chooser: Chooser | None = None,
) -> tuple[Outcome, list[str]]:
    """(outcome, assumptions) of one policy over a trace."""
    if policy == "evolution" and chooser is None:
        chooser = Evolution(settings.seed)
    elif policy not in (*POLICIES, "feedback") and chooser is None:
        raise ValueError(policy)
    jobs, assumptions = prepare(trace, programs, settings, declared)
    if policy == "feedback":
        return Feedback(jobs, policy, settings).run(), assumptions
    return Optimized(jobs, policy, settings, chooser or choose).run(), assumptions
