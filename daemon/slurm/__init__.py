"""The only code of the daemon that talks to Slurm."""

from .choose import choose
from .commands import CommandClient
from .nodelist import expand, fold
from .types import Job, Node, Partition, Size, SlurmClient, Snapshot

__all__ = ["CommandClient", "Job", "Node", "Partition", "Size", "SlurmClient", "Snapshot", "choose", "expand", "fold"]
