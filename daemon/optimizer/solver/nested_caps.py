"""Limits per user, account or any nest of groups: exact, by making a group whose limit binds one job.

A group's members are folded into a table "best value of the group with c GPUs", c = 0 .. limit, which then enters the
outer problem like one job's options. Only groups that an optimum without them would break are folded: an optimum of
the relaxed problem that keeps every limit is an optimum of the whole.
Limit: groups must be nested or apart (a tree), as Slurm's associations are; folding costs options x limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, ulp

import numpy as np

from ..errors import InfeasiblePlan, PlanInputError
from .inputs import check_capacity
from .knapsack import Solution, solve
from .table import Choice

NONE = float("-inf")
MOST_ENTRIES = 10**8
"""Most jobs x limit that a group is folded at: it takes so many places in memory."""


@dataclass(frozen=True, slots=True)
class Cap:
    """At most `limit` GPUs for the jobs at these positions together."""

    limit: int
    members: frozenset[int]
    label: str = ""


@dataclass(frozen=True)
class _Group:
    """A folded group: its options, and for each of them the members' choices."""

    options: list[Choice]
    picks: list[dict[int, int]]


def solve_capped(
    options: Sequence[Sequence[Choice]],
    capacity: int,
    caps: Sequence[Cap],
    labels: Sequence[str] | None = None,
) -> Solution:
    """The best choice for every job with no group above its limit.

    Raises InfeasiblePlan (naming the group whose members' smallest sizes exceed its limit), PlanInputError.
    """
    check_capacity(capacity)
    _check(caps, len(options))
    binding = set[int]()
    while True:
        choice, answer = _solve_folded(options, capacity, [caps[i] for i in sorted(binding)], labels)
        broken = {i for i, cap in enumerate(caps) if _used(options, choice, cap) > cap.limit}
        if not broken:
            value = fsum(row[i].value for row, i in zip(options, choice, strict=True))
            summed = len(options) * ulp(fsum(max(abs(o.value) for o in row) for row in options)) if binding else 0.0
            return Solution(choice, value, answer.gap, answer.price, answer.rounding + 2 * summed)
        binding |= broken


def foldable(options: Sequence[Sequence[Choice]], cap: Cap, capacity: int) -> bool:
    """Whether a group's table is small enough to be made."""
    return len(cap.members) * _reachable(options, cap, capacity) <= MOST_ENTRIES


def _reachable(options: Sequence[Sequence[Choice]], cap: Cap, capacity: int) -> int:
    """The most GPUs that the group can have."""
    return min(cap.limit, capacity, sum(max(o.gpus for o in options[j]) for j in cap.members))


def _used(options: Sequence[Sequence[Choice]], choice: Sequence[int], cap: Cap) -> int:
    return sum(options[j][choice[j]].gpus for j in cap.members)


def _solve_folded(
    options: Sequence[Sequence[Choice]], capacity: int, caps: list[Cap], labels: Sequence[str] | None
) -> tuple[tuple[int, ...], Solution]:
    """The optimum when only these caps hold: (choice, the outer problem's solution)."""
    groups = [(cap, _fold(options, cap, [c for c in caps if c.members < cap.members], capacity)) for cap in _top(caps)]
    inside = frozenset[int]().union(*(cap.members for cap, _ in groups))
    free = [j for j in range(len(options)) if j not in inside]
    rows: list[Sequence[Choice]] = [options[j] for j in free]
    names = [labels[j] if labels else str(j) for j in free] + [cap.label or "group" for cap, _ in groups]
    answer = solve([*rows, *(group.options for _, group in groups)], capacity, names)
    choice = [0] * len(options)
    for j, i in zip(free, answer.choice, strict=False):
        choice[j] = i
    for (_, group), i in zip(groups, answer.choice[len(free) :], strict=True):
        for j, picked in group.picks[i].items():
            choice[j] = picked
    return tuple(choice), answer


def _top(caps: list[Cap]) -> list[Cap]:
    """The caps inside no other; of equal groups the first stands for the tightest."""
    tight = dict[frozenset[int], Cap]()
    for cap in caps:
        known = tight.get(cap.members)
        if known is None or cap.limit < known.limit:
            tight[cap.members] = cap
    return [c for c in tight.values() if not any(c.members < o.members for o in tight.values())]


def _fold(options: Sequence[Sequence[Choice]], cap: Cap, inner: list[Cap], capacity: int) -> _Group:
    """The group's best value at each number of GPUs up to its limit, by the plain recurrence."""
    limit = _reachable(options, cap, capacity)
    if not foldable(options, cap, capacity):
        raise PlanInputError(
            f"limit {cap.limit} of {cap.label or 'a group'} is too large to fold its {len(cap.members)} jobs under"
        )
    children = [(c, _fold(options, c, [i for i in inner if i.members < c.members], limit)) for c in _top(inner)]
    inside = frozenset[int]().union(*(c.members for c, _ in children))
    single = [j for j in sorted(cap.members) if j not in inside]
    rows = [(j, list(options[j]), None) for j in single] + [(-1, g.options, g.picks) for _, g in children]
    best: list[float] = [0.0] * (limit + 1)
    steps = list[list[int]]()
    for _, row, _ in rows:
        best, step = _append(best, row)
        steps.append(step)
    out = _Group([], [])
    for total in range(limit + 1):
        if best[total] == NONE or (total and best[total] <= best[total - 1]):
            continue
        at, picks = total, dict[int, int]()
        for (j, row, inner_picks), step in zip(reversed(rows), reversed(steps), strict=True):
            index = step[at]
            picks.update(inner_picks[index] if inner_picks is not None else {j: index})
            at -= row[index].gpus
        out.options.append(Choice(total, best[total]))
        out.picks.append(picks)
    if not out.options:
        raise InfeasiblePlan(
            f"{cap.label or 'a group'}: its jobs' smallest sizes need more than its limit of {cap.limit} GPUs",
            tuple(sorted(cap.members)),
        )
    return out


def _append(best: list[float], row: Sequence[Choice]) -> tuple[list[float], list[int]]:
    """One step of the recurrence: (best value within each total, index of the option taken there)."""
    old = np.asarray(best)
    grown, step = np.full(len(old), NONE), np.full(len(old), -1)
    for index, option in enumerate(row):
        if option.gpus < len(old):
            shifted = old[: len(old) - option.gpus] + option.value
            better = shifted > grown[option.gpus :]
            grown[option.gpus :][better] = shifted[better]
            step[option.gpus :][better] = index
    return grown.tolist(), step.tolist()


def check_cap(cap: Cap, jobs: int) -> None:
    """PlanInputError for what is no limit."""
    group = cap.label or "a group"
    check_capacity(cap.limit, f"limit of {group}:")
    if any(not 0 <= j < jobs for j in cap.members):
        raise PlanInputError(f"limit of {group}: its jobs are numbered from 0 to {jobs - 1}, not {sorted(cap.members)}")


def _check(caps: Sequence[Cap], jobs: int) -> None:
    for i, cap in enumerate(caps):
        check_cap(cap, jobs)
        for other in caps[:i]:
            common = cap.members & other.members
            if common and common not in (cap.members, other.members):
                raise PlanInputError(f"groups {other.label or '?'} and {cap.label or i} overlap; groups must nest")
