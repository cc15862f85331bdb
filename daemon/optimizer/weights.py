"""What the weights of one pool's jobs are multiplied by: to be fair between groups, and to let short trainings end.

Promise: pure; a job of which nothing is known counts as one in the middle; a job that comes or goes changes the factors
of its own group alone, and of a large group only now and then.
Limit: only the proportions of factors mean anything; they say nothing about jobs of other pools.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

LEAST = 0.125
"""Of a job of average weight, for what is left: the longest trainings are not starved."""
MOST_POWER = 0.9
SOON_S, LATE_S = 1200.0, 2400.0
"""Nobody is preferred where trainings end as soon as the first, short ones fully from the second on: what they gain is
a part of what is left, and has to pay for everyone's moves and for larger sizes at lower efficiency."""
PLACES, FACTORS = 4, 8
"""Steps of a doubling in which remaining work, and factors, are told apart: work is only estimated, and with steps
weights, and what was computed for a job, are the same from round to round."""
BITS = 6
"""Of the number of a group's jobs that count: up to 63 it is exact, then within 1.6 %. What was computed for the others
of a large group stays when one more job comes."""

ShareGroup = tuple[tuple[str, float], ...]
"""Between whom weight is divided: from the top of a tree down, the names of what a job belongs to, each with its
shares among those beside it."""


@dataclass(frozen=True, slots=True)
class GroupShare:
    """What a group has of its pool's weight."""

    group: ShareGroup
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
    urgent: Mapping[int, float] = field(default_factory=dict)
    """Of its factor, for its deadline."""
    paid: Mapping[int, int] = field(default_factory=dict)
    """The most GPUs that its budget pays for; 0: its budget does not pay for its end at any size."""


def group_shares(jobs: Mapping[int, ShareGroup]) -> dict[ShareGroup, GroupShare]:
    """What each group that has a job has; at every node of the tree, what comes down is divided by shares among those
    below it that have jobs."""
    sizes = Counter(jobs.values())
    beside = _beside(sizes)
    return {
        group: GroupShare(group, count, group[0][1] / beside[()] * _below_the_top(group, beside))
        for group, count in sizes.items()
    }


def fairness_factors(jobs: Mapping[int, ShareGroup]) -> dict[int, float]:
    """By job, what makes its group's jobs share the group's weight. Empty with one group."""
    sizes = Counter(jobs.values())
    if len(sizes) < 2:
        return {}
    beside = _beside(sizes)
    factors = {group: group[0][1] * _below_the_top(group, beside) / _rough(n) for group, n in sizes.items()}
    return {job: factors[group] for job, group in jobs.items()}


def _beside(groups: Mapping[ShareGroup, int]) -> dict[ShareGroup, float]:
    """Of each node of the tree, the shares in all of those below it that have jobs. The same sum in any order."""
    nodes = {group[:depth] for group in groups for depth in range(1, len(group) + 1)}
    below: dict[ShareGroup, list[float]] = {}
    for node in nodes:
        below.setdefault(node[:-1], []).append(node[-1][1])
    return {node: math.fsum(shares) for node, shares in below.items()}


def _below_the_top(group: ShareGroup, beside: Mapping[ShareGroup, float]) -> float:
    """What of a top node's weight comes down to the group."""
    return math.prod(group[depth][1] / beside[group[:depth]] for depth in range(1, len(group)))


def _rough(count: int) -> int:
    step = 1 << max(0, count.bit_length() - BITS)
    return (count + step // 2) // step * step


def short_factors(work: Mapping[int, float], power: float) -> dict[int, float]:
    """By job, what it counts for its place in the order of remaining work; the average job's is 1, and left out.

    Of m jobs the one with the r-th most work left gets r**e - (r-1)**e of m**e, e = 1 / (1 - power): shares that make
    the mean time to completion least where k GPUs are k**power times as fast as one (Berg, Vesilo and Harchol-Balter,
    heSRPT, 2020). At 0.5 the one with the most left counts 1, the others 3, 5, 7, ... So no job counts for much more
    than e times the average, whatever its script says. work: seconds that a job would still train on one GPU.
    """
    if not work or not power:
        return {}
    at = {job: round(PLACES * math.log2(max(1.0, left))) for job, left in work.items()}
    alike, e, longer, factors = Counter(at.values()), 1.0 / (1.0 - min(MOST_POWER, power)), 0, dict[int, float]()
    many = stepped(len(at))  # the same for a few jobs more
    for place, count in sorted(alike.items(), reverse=True):
        share = ((longer + count) ** e - longer**e) / count / many ** (e - 1.0)
        factors[place] = stepped(max(LEAST, share))
        longer += count
    return {job: factors[place] for job, place in at.items() if factors[place] != 1.0}


def worth_preferring(work: Mapping[int, float], gpus: float) -> float:
    """How far it pays to prefer those that have less left: 0 to 1, in quarters, so that weights stay from round to
    round. By what the middle one would still train on its equal share of GPUs, `gpus`, with all of their speed: what
    single scripts say does not count. work: as of `short_factors`."""
    if not work:
        return 0.0
    late = math.log2(max(1.0, statistics.median(work.values()) / max(1.0, gpus)) / SOON_S) / math.log2(LATE_S / SOON_S)
    return round(4.0 * min(1.0, max(0.0, late))) / 4.0


def within_groups(factors: Mapping[int, float], groups: Mapping[int, ShareGroup]) -> dict[int, float]:
    """By job, these factors by the mean of its group's: what is left gives no group more than its shares.

    groups: of every job that has one. With one group, or none, nothing is changed. The mean is on the grid of the
    factors, so a group's total is its share to within a sixteenth of a doubling.
    """
    if len(set(groups.values())) < 2:
        return dict(factors)
    members: dict[ShareGroup, list[float]] = {}
    for job, group in groups.items():
        members.setdefault(group, []).append(factors.get(job, 1.0))
    means = {group: stepped(math.fsum(those) / len(those)) for group, those in members.items()}
    within = {job: factors.get(job, 1.0) / means[group] for job, group in groups.items()}
    return {job: factor for job, factor in within.items() if factor != 1.0}


def stepped(factor: float) -> float:
    """On the grid of factors."""
    return float(2.0 ** (round(FACTORS * math.log2(factor)) / FACTORS))
