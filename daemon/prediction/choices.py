"""Which of several sizes to ask for: the cheapest before a deadline, the fastest within a budget, or the best value,
each with how probable it is that it keeps to them. Pure.

    p = mean over the waits of  T((ln limit - ln run) / doubt)       limit: what deadline and budget leave to the run

T is the normal distribution where a size was measured, else Student's t with two degrees of freedom and twice the
doubt: what was never measured is further off, now and then, than the model says (chosen by `make bench-advise`).
Promise: nothing less probable than is asked for comes before what is as probable. Limit: neither what a job gains by
growing beyond the size is counted, nor what preemption costs it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, median_low

from ..optimizer.models.costs import QUANTILE

WHEN_MEASURED, WORTH, HARDLY = 0.03, 1.02, 0.1
"""Relative 1-sigma of a run's time once it was measured; how much better an answer a measurement has to bring; below
which probability choices go by how late or too dear they are."""


@dataclass(frozen=True, slots=True)
class Option:
    """One thing to ask for. run_s: how long the training will run there, as probably shorter as longer; doubt: relative
    1-sigma of that; measured: whether just this was, on this kind of GPU; price: of an hour of all its GPUs; waits_s:
    each as probable as the others."""

    partition: str
    gpu_type: str
    gpus: int
    nodes: int
    batch: int
    run_s: float
    doubt: float
    measured: bool
    price: float
    waits_s: tuple[float, ...] = (0.0,)

    @property
    def cost(self) -> float:
        return self.price * self.run_s / 3600.0

    @property
    def until_s(self) -> float:
        return median_low(self.waits_s) + self.run_s


@dataclass(frozen=True, slots=True)
class Aim:
    """What is wanted, in seconds from now; confidence: the probability with which it is to be kept. Without a deadline
    and a budget: the best value, the least product of cost and time."""

    deadline_s: float = math.inf
    budget: float = math.inf
    confidence: float = 0.95


def probability(option: Option, aim: Aim) -> float:
    """That it is done by the deadline, within the budget; 1 without either."""
    paid = 3600.0 * aim.budget / option.price if option.price else math.inf
    return fmean(_within(option, min(paid, aim.deadline_s - wait)) for wait in option.waits_s)


def _within(option: Option, limit_s: float) -> float:
    if limit_s <= 0 or limit_s == math.inf:
        return float(limit_s > 0)
    z = math.log(limit_s / option.run_s) / max(1e-6, option.doubt)
    return NormalDist().cdf(z) if option.measured else 0.5 + z / (2.0 * math.sqrt(8.0 + z * z))


def ranked(options: Sequence[Option], aim: Aim) -> list[tuple[Option, float]]:
    """The best first, each with its probability: those as probable as is asked for, then the most probable."""

    def place(one: tuple[Option, float]) -> tuple[float, ...]:
        option, likely = one
        if likely < HARDLY:
            return 0.0, max(option.until_s / aim.deadline_s, option.cost / aim.budget)
        return -min(likely, aim.confidence), *_measure(option, aim)

    return sorted([(option, probability(option, aim)) for option in options], key=place)


def _measure(option: Option, aim: Aim) -> tuple[float, ...]:
    """The less the better."""
    if aim.deadline_s < math.inf:
        return option.cost, option.until_s, option.gpus
    return option.until_s * (option.cost if aim.budget == math.inf else 1.0), option.cost, option.gpus


def worth_measuring(options: Sequence[Option], aim: Aim) -> Option | None:
    """The size not measured whose measurement would change the answer by the most, were it as fast or as slow as one in
    ten will be; None: none would."""
    first, found = ranked(options, aim)[0][0], None
    best = 0.0, WORTH
    for tried in options:
        for turn in (-QUANTILE, QUANTILE) if not tried.measured else ():
            size = tried.gpu_type, tried.gpus
            then = [one if (one.gpu_type, one.gpus) != size else _measured(one, turn) for one in options]
            new, likely = ranked(then, aim)[0]
            old = then[options.index(first)]
            missed = round(min(likely, aim.confidence) - min(probability(old, aim), aim.confidence), 2)
            gain = missed, _measure(old, aim)[0] / max(1e-12, _measure(new, aim)[0])
            if new is not old and gain > best and (missed or likely >= aim.confidence):
                best, found = gain, tried
    return found


def _measured(option: Option, turn: float) -> Option:
    return replace(option, run_s=option.run_s * math.exp(turn * option.doubt), doubt=WHEN_MEASURED, measured=True)


Waits = dict[tuple[str, str, int], Sequence[float]]
"""Seconds, by partition, kind of GPU and number; none: it does not start there."""


def with_waits(options: Sequence[Option], waits: Waits) -> list[Option]:
    """With the waits of the nearest size of the kind in the partition of which they are known; without what does not
    start."""
    found = []
    for one in options:
        own = [at for at in waits if at[:2] == (one.partition, one.gpu_type) and (waits[at] or at[2] == one.gpus)]
        near = min(own, key=lambda at: abs(math.log(at[2] / one.gpus)), default=None)
        if near is None or waits[near]:
            found.append(one if near is None else replace(one, waits_s=tuple(waits[near])))
    return found
