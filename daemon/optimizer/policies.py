"""The policies: what each counts as a job's progress, and the utility of that progress in the objective.

To add one, add an entry to POLICIES: settings, command line and documentation list what is in it. One that is installed
beside the daemon joins them under its name (daemon/policies/).

Promise: a utility grows with progress. Limit: a utility sees one job at a time, and utilities are added; a wish about
jobs together needs a planner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import PlanInputError

if TYPE_CHECKING:
    from .problem import Planner

Array = Any

DEFAULT_POLICY = "auto"
"""A job that trains a fixed number of epochs ends when its samples are done, and its request says which batches its
user accepts: throughput within them is its progress. One that stops at a reached quality pays for the samples that a
large batch wastes: its progress is goodput. Logarithms of both have the same unit, a relative gain."""
IDLE_SHARE = 0.01
"""Progress a job without GPUs is credited with under log and harmonic, relative to its smallest size."""


@dataclass(frozen=True)
class Policy:
    """What is maximised: the sum of each job's weight times the utility of its progress."""

    summary: str
    utility: Callable[[float], float]
    """Of progress, which is 1 on one GPU at the job's reference batch."""
    least_progress: float = 0.0
    """Progress that every choice is credited with at least, relative to the job's smallest size."""
    relative: bool = False
    """Whether a relative gain of progress is worth the same at any size, as with logarithms."""
    efficiency: bool | None = False
    """Whether a sample counts by its statistical efficiency; None: only of jobs that train until a quality is reached.
    """
    fixed_batch: bool = False
    """Every job keeps its reference batch."""
    fixed_size: bool = False
    """Every job keeps the size it asked for."""
    planner: Planner | None = None
    """Picks one choice for each job, with the exact plan before it; None: the exact plan is the plan."""

    def utilities(self, progress: Sequence[float]) -> Sequence[float]:
        """The utility of each. Raises PolicyFailed where the policy is not ours and does not give it."""
        return [self.utility(one) for one in progress]

    def begin_round(self) -> None:
        """Called before each round's plan, for policies that may take a limited time in it."""


class _BuiltIn(Policy):
    """One whose utility takes an array, too: of all choices of all jobs."""

    def utilities(self, progress: Array) -> Array:
        return self.utility(progress)


def _log(progress: Array) -> Array:
    import numpy as np  # now: every command reads the list of policies, and few plan

    return np.log(progress)


def _sum(progress: Array) -> Array:
    return progress


def _harmonic(progress: Array) -> Array:
    return -1.0 / progress


POLICIES: dict[str, Policy] = {
    "auto": _BuiltIn(
        "sum of the logarithms of each job's own progress: goodput until a quality is reached, else throughput",
        _log, IDLE_SHARE, relative=True, efficiency=None,
    ),
    "throughput": _BuiltIn("sum of speedups, the batch as large as its range pays: the paper's objective", _sum),
    "goodput": _BuiltIn(
        "sum of speedups counted in goodput (throughput x statistical efficiency)", _sum, efficiency=True
    ),
    "log-throughput": _BuiltIn(
        "sum of the logarithms of speedups: proportional fairness, any accepted batch as good as another",
        _log, IDLE_SHARE, relative=True,
    ),
    "log-goodput": _BuiltIn(
        "sum of the logarithms of goodput: proportional fairness", _log, IDLE_SHARE, relative=True, efficiency=True
    ),
    "harmonic": _BuiltIn(
        "minus the sum of 1 / goodput: time per unit of progress", _harmonic, IDLE_SHARE, efficiency=True
    ),
    "fixed-batch": _BuiltIn(
        "sum of speedups with every job's batch held at its reference: the paper's baseline", _sum, fixed_batch=True
    ),
    "static": _BuiltIn(
        "every job keeps the size it asked for: what Slurm does by itself", _sum, fixed_batch=True, fixed_size=True
    ),
}  # fmt: skip


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises PlanInputError listing those there are."""
    if name not in POLICIES:
        raise PlanInputError(f"policy '{name}' is not known; accepted: {', '.join(POLICIES)}")
    return POLICIES[name]
