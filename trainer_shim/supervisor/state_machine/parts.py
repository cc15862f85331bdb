"""The parts of a supervisor's machine."""

from ...allocation.pieces.alone import Alone
from ...allocation.pieces.changes import Changes
from ...allocation.pieces.nodes import Nodes
from .checkpoints import Checkpoints
from .job_end import JobEnd
from .restarts import Restarts
from .switch import Switches
from .worker_messages import Hangs, WorkerMessages

PARTS = (WorkerMessages, Nodes, Switches, Changes, Alone, Restarts, Checkpoints, Hangs, JobEnd)
"""In the order in which those that subscribe to the same event take it."""
