"""The only code of the daemon that talks to Slurm."""

from .commands import CommandClient
from .model import Job, Node, Partition, Size, SlurmClient, Snapshot
from .nodelist import expand, fold

__all__ = ["CommandClient", "Job", "Node", "Partition", "Size", "SlurmClient", "Snapshot", "expand", "fold"]
