"""Snapshot and measurements in, a plan with its reasons out. Pure: no clock, no I/O, nothing remembered."""

from .context import Inputs
from .decide import decide
from .plan import Plan, plan_round
from .running.state import JobState

__all__ = ["Inputs", "JobState", "Plan", "decide", "plan_round"]
