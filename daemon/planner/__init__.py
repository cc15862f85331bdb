"""Snapshot and measurements in, a plan with its reasons out. Pure: no clock, no I/O, nothing remembered."""

from .context import Inputs
from .decide import decide
from .eligibility import JobState
from .plan import Plan, plan_round

__all__ = ["Inputs", "JobState", "Plan", "decide", "plan_round"]
