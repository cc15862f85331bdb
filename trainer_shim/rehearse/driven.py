"""One run of a rehearsal: `selastic run` on this machine, with a director in selasticd's place that orders a grow, a
shrink and another grow, each as soon as the one before has come."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

from slurm_elastic.protocol.errors import ElasticError
from slurm_elastic.protocol.messages import Grant, Phase, Piece, Registration, Report, Resize, Shape

from ..supervisor import cli
from ..supervisor.daemon_client import DaemonClient
from ..training.rehearsed import VARIABLE

GROWS = (True, False, True)


class Director(DaemonClient):
    """In its place: it asks nobody."""

    def __init__(self, resize: Callable[[Resize], None]) -> None:  # and none of the other's threads
        self._resize = resize
        self._base: tuple[Piece, ...] = ()
        self._ordered = 0

    def update_registration(self, registration: Registration) -> None:
        """What trains is told with each phase."""

    def report(self, report: Report) -> None:
        """Nobody plans by it."""

    def close(self, timeout_s: float = 3.0) -> bool:
        return True

    def report_phase(self, phase: Phase) -> None:
        if phase.phase != "running" or phase.resize != self._ordered or self._ordered == len(GROWS):
            return
        self._base = self._base or phase.pieces
        add = (Shape(1, 1),) if GROWS[self._ordered] else ()
        self._ordered += 1
        gpus = sum(piece.gpus for piece in self._base) + len(add)
        self._resize(Resize(self._ordered, 0, self._base, add, gpus, 0, "grow_idle", 60.0))


def main() -> int:
    """Arguments: the plan (see rehearsed.py), and then those of `selastic run`."""
    plan, *words = sys.argv[1:]
    parser = argparse.ArgumentParser(prog="selastic rehearse")
    cli.add_arguments(parser)

    def connect(
        resize: Callable[[Resize], None], say: Callable[[str], None], took: Callable[[Grant], None]
    ) -> Director:
        return Director(resize)

    try:
        resized = bool(json.loads(plan)["waits"])
        return cli.run_here(parser.parse_args(words), {VARIABLE: plan}, connect if resized else None)
    except ElasticError as error:
        print(f"selastic rehearse: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
