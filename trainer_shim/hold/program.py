"""Becomes a command of the user's that ends with who has started it, however that ends.

Usage: python -m slurm_elastic.trainer_shim.hold.program COMMAND...
"""

import ctypes
import os
import signal
import sys

from ..node.worker_process import NOTICES, PR_SET_PDEATHSIG


def main() -> int:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    for number in (signal.SIGTSTP, signal.SIGINT, *NOTICES):
        signal.signal(number, signal.SIG_DFL)
    if "SELASTIC_HEAD" not in os.environ:  # on a node that has joined: where its agent has found us
        os.environ["SELASTIC_HEAD"] = os.environ.get("SELASTIC_CONTROL", "").rpartition(":")[0].strip("[]")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        print(f"selastic hold: {sys.argv[1]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main())
