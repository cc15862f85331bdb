"""Which version of slurm-elastic this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    """The installed version."""
    try:
        return installed("slurm-elastic")
    except PackageNotFoundError:
        return "(source tree, not installed)"
