"""Queries over the store as typed records; the API serves them as JSON and the command line prints them.

Promise: a viewer sees all of their own jobs, an admin of everybody's, anyone else an id, a state and a number of GPUs.
Limit: read-only, and nothing here asks Slurm.
"""

from .common import Viewer
from .explain import explain
from .history import acct, events, plan, plan_row, prediction_errors
from .review import review
from .site import clear, hosts, probes
from .status import job, status
from .usage import usage

__all__ = [
    "Viewer", "acct", "clear", "events", "explain", "hosts", "job", "plan", "plan_row", "prediction_errors", "probes",
    "review", "status", "usage",
]  # fmt: skip
