"""A private real Slurm on this host, for trying things and for tests."""

from .config import SandboxSpec
from .lifecycle import Sandbox

__all__ = ["Sandbox", "SandboxSpec"]
