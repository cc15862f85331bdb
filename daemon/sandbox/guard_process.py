"""What runs in the guard's process: `python -m slurm_elastic.daemon.sandbox.guard_process NAME ID`."""

from __future__ import annotations

import sys

from .guard import DISMISS
from .lifecycle import take_down


def main(name: str, identity: str) -> None:
    """Wait until the starter dismisses this process; take the sandbox down when the starter died before that."""
    if sys.stdin.buffer.read(1) != DISMISS:
        take_down(name, identity)


if __name__ == "__main__":
    main(*sys.argv[1:3])
