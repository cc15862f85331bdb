"""What holds a world's steps back: a slow rank, a starved input, or gradients that travel while nothing computes.

Pure. Each rank measures, over the same stretch of steps, how long it was busy, waited for input, and waited for the
others' gradients. Promise: a cause is named only where it costs a tenth of the step or more, with the share that it
costs; the costliest is named. Limit: what a rank computes while gradients travel is not told apart from a rank that
has nothing to send, and a sharded model's communication is not measured at all.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SLOW_RANK, STARVED_INPUT, COMMUNICATION = "slow_rank", "starved_input", "communication"
KINDS = (SLOW_RANK, STARVED_INPUT, COMMUNICATION)
SLOW_FACTOR = 1.2
"""A rank is slow when it is busy this many times as long as the median rank, for as many samples."""
LEAST_COST = 0.1
"""Share of a step that a slow rank has to cost the others to be named."""
STARVED_SHARE = 0.15
"""Share of a step spent waiting for input from which the input is what is short."""
COMMUNICATION_SHARE = 0.3
"""Share of a step that even the rank that waits for nobody spends on communication, from which that binds."""


@dataclass(frozen=True, slots=True)
class Pace:
    """One rank's steps of one report. busy_s: median per step, without waiting; shares: of the steps' time."""

    rank: int
    step_s: float
    busy_s: float
    samples: float
    """Samples per step of this rank."""
    input_share: float
    comm_share: float


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`share` of every step that would be saved without it, at `rank`, which means nothing for COMMUNICATION."""

    kind: str
    share: float
    rank: int = 0


def find(paces: Sequence[Pace]) -> Bottleneck | None:
    """The costliest bottleneck, or None. The ranks may be given in any order, and some may be missing."""
    named = [found for found in (_slow_rank(paces), _starved(paces), _communication(paces)) if found is not None]
    return max(named, key=lambda found: found.share, default=None)


def exposed_communication(paces: Sequence[Pace]) -> float:
    """The share of a step that goes to communication alone: the rank that all wait for waits for nobody."""
    return min((pace.comm_share for pace in paces), default=0.0)


def input_wait(paces: Sequence[Pace]) -> float:
    """The share of a step that goes to waiting for input: the others wait for the rank that waits longest."""
    return max((pace.input_share for pace in paces), default=0.0)


def _slow_rank(paces: Sequence[Pace]) -> Bottleneck | None:
    if len(paces) < 2:
        return None
    slowest = max(paces, key=lambda pace: pace.busy_s)
    others = [pace for pace in paces if pace is not slowest]
    usual = statistics.median(pace.busy_s for pace in others)
    # A rank with more samples is busy longer, and not slow for that.
    work = slowest.samples / max(1e-9, statistics.median(pace.samples for pace in others))
    due = usual * max(1.0, work)
    share = (slowest.busy_s - due) / slowest.step_s if slowest.step_s > 0 else 0.0
    if slowest.busy_s < SLOW_FACTOR * due or share < LEAST_COST:
        return None
    return Bottleneck(SLOW_RANK, min(1.0, share), slowest.rank)


def _starved(paces: Sequence[Pace]) -> Bottleneck | None:
    if not paces:
        return None
    worst = max(paces, key=lambda pace: pace.input_share)
    if worst.input_share < STARVED_SHARE:
        return None
    return Bottleneck(STARVED_INPUT, min(1.0, worst.input_share), worst.rank)


def _communication(paces: Sequence[Pace]) -> Bottleneck | None:
    share = exposed_communication(paces) if len(paces) > 1 else 0.0
    return Bottleneck(COMMUNICATION, min(1.0, share)) if share >= COMMUNICATION_SHARE else None
