"""The simulator of Pollux's artifact (adaptdl, branch osdi21-artifact): its modules, its applications, moves' cost.

Nothing of the artifact is kept here: its modules are imported from the folder given, unmodified.
"""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from slurm_elastic.daemon.simulator.programs import Program

NODES, PER_NODE = 16, 4
NCF_BATCH = 32768
"""The artifact runs ncf on one GPU at this batch, whatever the policy."""


def load(folder: Path) -> ModuleType:
    """The artifact's module `simulator`. It was written for a numpy that had np.int, np.float and np.bool."""
    for name, kind in (("int", int), ("float", float), ("bool", bool)):
        if name not in np.__dict__:
            setattr(np, name, kind)
    warnings.filterwarnings("ignore")
    logging.disable(logging.INFO)
    where = folder if (folder / "simulator.py").exists() else folder / "simulator"
    if not (where / "simulator.py").exists():
        raise SystemExit(f"{folder}: no simulator.py in it, nor in simulator/ below it")
    sys.path.insert(0, str(where))
    return import_module("simulator")


@contextmanager
def paused(module: ModuleType, pause_s: float) -> Iterator[None]:
    """A move of any policy costs so much meanwhile, the start of a job too; the artifact's own is 30 s."""
    own = module.Job.reallocate

    def reallocate(job: Any, placement: Sequence[int]) -> None:
        own(job, placement)
        if placement:
            job.rescale_time = pause_s

    module.Job.reallocate = reallocate
    try:
        yield
    finally:
        module.Job.reallocate = own


def placement(gpus: int, nodes: int) -> tuple[int, ...]:
    """GPUs by node, as dense as so many nodes allow."""
    out, left = list[int](), gpus
    for others in range(nodes - 1, -1, -1):
        out.append(min(PER_NODE, left - others))
        left -= out[-1]
    return tuple(out)


def split(app: Any, gpus: int, batch: int) -> tuple[int, int]:
    """(micro batch, micro batches a step): as the artifact shares a batch out."""
    share = math.ceil(batch / gpus - 1e-8)
    steps = math.ceil(share / app.max_local_bsz - 1e-8)
    if gpus == 1 and batch > app.init_batch_size:
        steps = max(2, steps)
    micro = math.ceil(share / steps - 1e-8)
    return max(1, min(micro, int(app.max_batch_size / (gpus * steps)))), steps


@dataclass(eq=False)
class Application(Program):
    """One of the artifact's, as it is measured there: the curves of the oracle."""

    app: Any = None

    def throughput(self, gpus: int, nodes: int, batch: int) -> float:
        key = gpus, nodes, batch
        if key not in self._speeds:
            micro, steps = split(self.app, gpus, batch)
            whole, sync = self.app.get_throughput(placement(gpus, nodes), micro)
            self._speeds[key] = float(gpus * micro * steps / (whole + (steps - 1) * (whole - sync)))
        return self._speeds[key]


def application(app: Any) -> Application:
    """From the artifact's."""
    micros = int(app.min_local_bsz), int(app.max_local_bsz)
    work = float(app.get_progress(app.get_completion_epoch(app.init_batch_size) + 1) * app.init_batch_size)
    return Application(
        app.name, lambda gpus, nodes, micro: 1.0, int(app.init_batch_size), int(app.max_batch_size), micros, work,
        lambda done, batch: 1.0, app=app,
    )  # fmt: skip


def _keep_statistics(job: Any, *measured: Any) -> None:
    job.grad_params = measured[-2:]


def unmeasured(jobs: Iterable[Any]) -> None:
    """Leave Pollux's own fits out, which take most of the time, where nothing reads them."""
    for job in jobs:
        job.update_params = partial(_keep_statistics, job)
