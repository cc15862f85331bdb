"""What the weights of one pool's jobs are multiplied by: to be fair between groups, and to let short trainings end.

Promise: pure; a job of which nothing is known counts as one in the middle.
Limit: factors are 1 about the mean, not exactly; they say nothing about jobs of other pools.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping

OCTAVES = 2
"""Most doublings of work apart from the middle that count: what a script says of itself changes its job's weight by two
at most, and the longest trainings are not starved. More brought no more on the public workloads."""


def fair_factors(groups: Mapping[int, Hashable]) -> dict[int, float]:
    """By job, what makes its group's jobs share one weight, so that all groups count alike; 1 in the mean.

    groups: the user or account of each job. Empty with one group.
    """
    sizes = Counter(groups.values())
    if len(sizes) < 2:
        return {}
    return {job: len(groups) / (len(sizes) * sizes[group]) for job, group in groups.items()}


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
