"""The engine of all campaigns: round after round something goes wrong with what runs, drawn from a seed, and each time
everything has to come right again, or what grows is measured.

Deterministic in what it chooses (the seed), not in what happens: that is the point.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Heal = Callable[[], Any]
SOAK = "SELASTIC_SOAK_ROUNDS" in os.environ
"""Whether this is `make soak-cluster`, which says how much: `asked` gives that."""


@dataclass(frozen=True)
class Asked:
    """How long a campaign is, and what may go wrong in it."""

    rounds: int
    seed: int
    most: int
    """In one round."""
    kinds: tuple[str, ...]
    """Empty for all."""


def asked(rounds: int, seed: int, most: int) -> Asked:
    """What the environment says, or else this."""

    def number(name: str, usual: int) -> int:
        return int(os.environ.get(f"SELASTIC_SOAK_{name}", usual))

    kinds = os.environ.get("SELASTIC_SOAK_KINDS", "").split(",")
    return Asked(number("ROUNDS", rounds), number("SEED", seed), number("KILLS", most), tuple(filter(None, kinds)))


class Ground:
    """What a campaign happens on, what can go wrong there, and what right is.

    Each of its `kinds` is a method that does it, counts it in `happened`, and gives what heals it; None where nothing
    has to be healed, or nothing was there to go wrong."""

    kinds: tuple[str, ...] = ()
    healed_first: tuple[str, ...] = ()
    """These, in this order, before the others, which are healed in the order in which they happened."""
    healed_last = ""
    stays_s: tuple[float, ...] = ()
    """How long what has gone wrong may stay so."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.happened, self.stages = Counter[str](), Counter[str]()
        self.rounds = 0
        """Those that count."""

    def begin(self) -> None:
        """Bring up what is to be kept right."""

    def choose(self, kinds: tuple[str, ...], most: int) -> list[str]:
        """What goes wrong in one round, in the order in which it does."""
        return self.chance.sample(kinds, k=min(most, len(kinds)))

    def provoke(self) -> str:
        """Have something begin that must not be lost, and come back in the middle of it; where it is then."""
        return ""

    def healed(self) -> None:
        """Take away what would rightly keep things from coming right."""

    def settle(self) -> bool:
        """Wait until everything is right, and check it; whether the round counts."""
        return True

    def end(self) -> None:
        """What runs comes to its end, and a good one."""

    def close(self) -> None:
        """In any case: nothing is left running."""

    def told(self) -> str:
        """What was done and found."""
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(self.happened.items()))
        stages = ", ".join(f"{count} {name}" for name, count in sorted(self.stages.items()))
        return f"{self.rounds} rounds: {kinds or 'nothing went wrong'}; at {stages or 'any time'}"


def run(
    ground: Ground, rounds: int, most: int = 0, kinds: tuple[str, ...] = (), minutes: float = math.inf
) -> Counter[str]:
    """`rounds` rounds in which up to `most` things go wrong, fewer where the time is over before; what happened.

    kinds: of those that are possible on this ground; all of them, if none of these is. AssertionError at the first
    thing that does not come right again. What was done is printed in any case."""
    kinds = tuple(kind for kind in kinds if kind in ground.kinds) or ground.kinds
    over = time.monotonic() + 60 * minutes
    first = {kind: number - len(ground.healed_first) for number, kind in enumerate(ground.healed_first)}
    try:
        ground.begin()
        while ground.rounds < rounds and time.monotonic() < over:
            chosen = ground.choose(kinds, most)
            at = ground.provoke()
            if at:
                ground.stages[at] += 1
            if chosen:
                print(f"round {ground.rounds + 1}: {' + '.join(chosen)} at {at}", flush=True)
            heals = {kind: getattr(ground, kind.replace("-", "_"))() for kind in chosen}
            if ground.stays_s:
                time.sleep(ground.chance.choice(ground.stays_s))  # how long it stays dead, not a wait for anything
            for kind in sorted(chosen, key=lambda kind: first.get(kind, int(kind == ground.healed_last))):
                if heals[kind] is not None:
                    heals[kind]()
            ground.healed()
            ground.rounds += ground.settle()
        ground.end()
    finally:
        ground.close()
        print(ground.told(), flush=True)
    return ground.happened
