"""In which order waiting jobs start, and how Slurm is told. Pure."""

from math import log2

AGES_S = 7 * 86400.0
"""How long a job waits until it counts as one that needs half as much; after twice as long a fifth."""
SHORTEST, LONGEST = 6.0, 30.0
"""Doublings of a GPU second between which jobs are told apart: a minute of one GPU, and a month of 400."""
STEPS = 4
"""Per doubling: nearer ones are equal, so that a factor is seldom written anew."""


def need(left_s: float, gpus: float, waited_s: float) -> float:
    """GPU seconds that a job counts as: the quasi-shortest service first of Helios, aged so that nobody starves."""
    return left_s * gpus / (1.0 + (waited_s / AGES_S) ** 2)


def site_factor(gpu_seconds: float, most: int) -> int:
    """What is added to a job's priority, from 0 to `most`: as much less for each doubling of what it needs.

    Never below 0: Slurm knows no priority below 1, where all would be alike.
    """
    doublings = round(log2(max(1.0, gpu_seconds)) * STEPS) / STEPS
    place = (LONGEST - doublings) / (LONGEST - SHORTEST)
    return round(most * min(1.0, max(0.0, place)))
