"""`python -m slurm_elastic.daemon.sandbox up|down|status`: the same as `selastic sandbox`."""

from __future__ import annotations

import argparse
import sys

from .cli import add_arguments, run


def main() -> int:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(prog="selastic sandbox", description="A private real Slurm on this host.")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
