"""What the weights of one pool's jobs are multiplied by: to be fair between groups, and to let short trainings end.

Promise: pure; a job of which nothing is known counts as one in the middle; a job that comes or goes changes the factors
of its own group alone, and of a large group only now and then.
Limit: only the proportions of factors mean anything; they say nothing about jobs of other pools.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

OCTAVES = 2
"""Most doublings of work apart from the middle that count: what a script says of itself changes its job's weight by two
at most, and the longest trainings are not starved. More brought no more on the public workloads."""
BITS = 6
"""Of the number of a group's jobs that count: up to 63 it is exact, then within 1.6 %. What was computed for the others
of a large group stays when one more job comes."""

Group = tuple[tuple[str, float], ...]
"""Between whom weight is divided: from the top of a tree down, the names of what a job belongs to, each with its
shares among those beside it."""


@dataclass(frozen=True, slots=True)
class GroupShare:
    """What a group has of its pool's weight."""

    group: Group
    jobs: int
    """That share it."""
    part: float
    """Of the pool's whole weight: 0 to 1."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What a round makes of all jobs' weights, by job; 1 and nothing for those that are not in it."""

    factors: Mapping[int, float] = field(default_factory=dict)
    """What a weight is multiplied by in all."""
    short: Mapping[int, float] = field(default_factory=dict)
    """Of that, for what is left."""
    shares: Mapping[int, GroupShare] = field(default_factory=dict)
    """What its group has."""


def group_shares(jobs: Mapping[int, Group]) -> dict[Group, GroupShare]:
    """What each group that has a job has; at every node of the tree, what comes down is divided by shares among those
    below it that have jobs."""
    sizes = Counter(jobs.values())
    beside = _beside(sizes)
    return {
        group: GroupShare(group, count, group[0][1] / beside[()] * _below_the_top(group, beside))
        for group, count in sizes.items()
    }


def fair_factors(jobs: Mapping[int, Group]) -> dict[int, float]:
    """By job, what makes its group's jobs share the group's weight. Empty with one group."""
    sizes = Counter(jobs.values())
    if len(sizes) < 2:
        return {}
    beside = _beside(sizes)
    factors = {group: group[0][1] * _below_the_top(group, beside) / _rough(n) for group, n in sizes.items()}
    return {job: factors[group] for job, group in jobs.items()}


def _beside(groups: Mapping[Group, int]) -> dict[Group, float]:
    """Of each node of the tree, the shares in all of those below it that have jobs. The same sum in any order."""
    nodes = {group[:depth] for group in groups for depth in range(1, len(group) + 1)}
    below: dict[Group, list[float]] = {}
    for node in nodes:
        below.setdefault(node[:-1], []).append(node[-1][1])
    return {node: math.fsum(shares) for node, shares in below.items()}


def _below_the_top(group: Group, beside: Mapping[Group, float]) -> float:
    """What of a top node's weight comes down to the group."""
    return math.prod(group[depth][1] / beside[group[:depth]] for depth in range(1, len(group)))


def _rough(count: int) -> int:
    step = 1 << max(0, count.bit_length() - BITS)
    return (count + step // 2) // step * step


def short_factors(work: Mapping[int, float], power: float) -> dict[int, float]:
    """By job, (remaining work / that of the middle job) ** -power, in steps of a doubling of work.

    work: seconds that a job would still train on one GPU. Steps keep weights, and with them what was computed for a
    job, the same from round to round; an estimate that is wrong by a factor of two costs little.
    """
    octaves = {job: math.log2(max(1.0, left)) for job, left in work.items()}
    if not octaves or not power:
        return {}
    middle = round(math.fsum(octaves.values()) / len(octaves))
    steps = {job: max(-OCTAVES, min(OCTAVES, round(octave) - middle)) for job, octave in octaves.items()}
    return {job: 2.0 ** (-power * step) for job, step in steps.items() if step}
