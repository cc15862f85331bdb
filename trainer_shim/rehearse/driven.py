"""One run of a rehearsal: `selastic run` on this machine, with a director in selasticd's place that orders a grow,
and a shrink once the training has begun again after a kill. Without torch, whose import is most of a rehearsal."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from slurm_elastic.protocol.errors import ElasticError
from slurm_elastic.protocol.messages import Happening, Rate, Registration, Report, Resize, Shape

from ..allocation.daemon_client import Connect, DaemonClient
from ..supervisor import cli
from ..training.watched import VARIABLE


class Director(DaemonClient):
    """In its place: it asks nobody."""

    def __init__(self, resize: Callable[[Resize], None], failed: Path) -> None:  # and none of the other's threads
        """failed: a file that is made where a resize does not come, for nobody to wait for one."""
        self._resize, self._failed, self._worlds = resize, failed, 0

    def update_registration(self, registration: Registration) -> None:
        """What trains is told with each phase."""

    def report(self, report: Report) -> None:
        """Nobody plans by it."""

    def close(self, timeout_s: float = 3.0) -> bool:
        return True

    def tell(self, said: Happening | Rate) -> None:
        if isinstance(said, Rate):
            return
        if said.what in ("failed", "withdrawn"):  # as it is where the job is about to end
            self._failed.touch()
        if said.what != "running":
            return
        self._worlds += 1
        if self._worlds == 1:
            self._resize(Resize(1, 0, said.pieces, (Shape(1, 1),), 2, 0, "grow_idle", 60.0))
        elif self._worlds == 3:  # the first one, the one that grew, the one after the kill
            self._resize(Resize(2, 0, said.pieces[:1], (), 1, 0, "grow_idle", 60.0))


def main() -> int:
    """Arguments: the plan (see rehearsed.py), and then those of `selastic run`."""
    plan, *words = sys.argv[1:]
    parser = argparse.ArgumentParser(prog="selastic rehearse")
    cli.add_arguments(parser)

    given = json.loads(plan)
    failed = Path(given["folder"], "failed")
    connect: Connect | None = (lambda resize, *_: Director(resize, failed)) if given["resized"] else None
    try:
        return cli.run_here(parser.parse_args(words), {VARIABLE: plan}, connect)
    except ElasticError as error:
        print(f"selastic rehearse: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
