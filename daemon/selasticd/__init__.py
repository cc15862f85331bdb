"""selasticd, the daemon."""

import sys


def start() -> int:
    """The command: what it needs is imported here, so that one sentence says which package is missing."""
    try:
        from .main import main
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("slurm_elastic"):
            raise
        sys.exit(
            f"selasticd: the package '{error.name}' is not installed; install slurm-elastic-daemon with what it needs"
        )
    return main()
