"""Snapshot and measurements in, a plan with its reasons out. Pure: no clock, no I/O, nothing remembered."""

from .context import Inputs
from .decide import Plan, decide
from .decision_record import plan_round
from .running.state import JobState

__all__ = ["Inputs", "JobState", "Plan", "decide", "plan_round"]
