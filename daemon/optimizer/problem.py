"""What a planner is given, and the check of what it gives back: a planner picks one choice for each job by itself.

Promise: a plan that passes keeps every capacity and every limit, and gives no job what is not among its choices: so
none less than its minimum, and none that may not move anything else.
Limit: whether a plan is any good is the planner's affair.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from numbers import Integral

from slurm_elastic.protocol.records import record

from .errors import PolicyFailed
from .solver.limits import Cap
from .solver.table import Choice


@record(frozen=True, slots=True)
class Layout:
    """Where the jobs are, where there is room, and how much one round moves. Jobs and pools as in the Problem."""

    free: Sequence[Mapping[str, int]] = ()
    """Of each pool: free GPUs by node."""
    node_gpus: Sequence[int] = ()
    """Of each pool: GPUs of its largest node."""
    held: Sequence[Mapping[int, Mapping[str, int]]] = ()
    """Of each job: GPUs by node, at its present size and at every smaller one that it can come down to."""
    most_moves: int = 0
    """Jobs that one round moves; 0: any number."""
    min_gain: float = 0.0
    """Least gain for which anything is moved, in relative gains of one job's progress."""


@record(frozen=True, slots=True)
class Problem:
    """All jobs of all pools, in one order: pool by pool, the oldest first."""

    labels: Sequence[str]
    """Job ids."""
    choices: Sequence[Sequence[Choice]]
    """What each job may have, with its value: sizes rise."""
    present: Sequence[int]
    """GPUs that each has; 0: it does not run."""
    pools: Sequence[int]
    """The pool of each, as an index of `capacities`."""
    capacities: Sequence[int]
    """GPUs of each pool."""
    caps: Sequence[Cap]
    """At most so many GPUs for these jobs (indices) together."""
    exact: Sequence[int]
    """The plan with the largest sum of values, as an index into each job's choices."""
    weights: Sequence[float]
    """Of each job, which its values are multiplied by already."""
    spread: Sequence[float] = ()
    """Of each job, the share of its progress that is lost on one node more than its value counts on; empty: not known.
    """
    nodes: Sequence[Sequence[int]] = ()
    """Of each choice, the nodes that its value counts on; empty: as few as the GPUs need."""
    layout: Layout = field(default_factory=Layout)
    """Empty where it is not known."""


Planner = Callable[[Problem], Sequence[int]]
"""An index into each job's choices."""


def checked(problem: Problem, answer: Sequence[int]) -> list[int]:
    """The answer as plain integers. Raises PolicyFailed, in words that follow "the policy"."""
    if len(answer) != len(problem.choices):
        raise PolicyFailed(f"gave {len(answer)} choices for {len(problem.choices)} jobs")
    for label, own, i in zip(problem.labels, problem.choices, answer, strict=True):
        if not isinstance(i, Integral) or not 0 <= i < len(own):
            raise PolicyFailed(f"gave job {label} choice {i!r}; accepted: 0 to {len(own) - 1}")
    plan = [int(i) for i in answer]
    sizes = [own[i].gpus for own, i in zip(problem.choices, plan, strict=True)]
    used = [0] * len(problem.capacities)
    for gpus, pool in zip(sizes, problem.pools, strict=True):
        used[pool] += gpus
    for gpus, capacity in zip(used, problem.capacities, strict=True):
        if gpus > capacity:
            raise PolicyFailed(f"gave {gpus} GPUs of a pool that has {capacity}")
    for cap in problem.caps:
        held = sum(sizes[j] for j in cap.members)
        if held > cap.limit:
            raise PolicyFailed(f"gave {held} GPUs where {cap.label or 'a limit'} allows {cap.limit}")
    return plan
