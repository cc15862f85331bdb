"""Snapshot and measurements in, a plan with its reasons out. Pure: no clock, no I/O, nothing remembered."""

from .plan import Plan, plan_round
from .situation import Inputs
from .standing import JobState

__all__ = ["Inputs", "JobState", "Plan", "plan_round"]
