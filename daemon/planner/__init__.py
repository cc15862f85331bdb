"""Snapshot and measurements in, a plan with its reasons out. Pure: no clock, no I/O, nothing remembered."""

from .context import Inputs
from .eligibility import JobState
from .plan import Plan, plan_round

__all__ = ["Inputs", "JobState", "Plan", "plan_round"]
