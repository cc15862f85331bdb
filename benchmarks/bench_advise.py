"""How good the answers of `selastic advise` are on Gavel's table of measured speeds: 26 programs on K80, P100 and V100.

`python benchmarks/bench_advise.py FOLDER`: with simulation_throughputs.json of stanford-futuredata/gavel. A program was
measured at three (two) of the sizes 1, 2, 4 and 8, drawn anew for each question, on each kind of GPU; the rest is the
shipped prior's. 3,000 deadlines, drawn in logarithms from the fastest to the slowest time in the table; prices 1, 1.62
and 2.75 a GPU-hour. The optimum is the cheapest entry of the full table that keeps the deadline, known beforehand. No
waits, one kind of GPU an answer, and the batch is the program's. Exit status 1: a goal was missed.
"""

from __future__ import annotations

import _setup  # noqa: F401  # isort: skip
import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean

from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.throughput import fit_many
from slurm_elastic.daemon.prediction.advice import Aim, Option, ranked, worth_measuring

PRICES = {"k80": 1.0, "p100": 1.62, "v100": 2.75}
SIZES = (1, 2, 4, 8)
GOALS = {3: (1.05, 0.03), 2: (1.10, 0.08)}
"""By sizes measured: cost over the optimum's, share of deadlines missed."""
RIGHT = 0.05
"""How far a printed probability may be from the share of deadlines that are kept."""
QUESTIONS = 3000
SAMPLES = 1e6
Place = tuple[str, int]
Table = dict[Place, float]
"""Seconds by (kind of GPU, GPUs)."""
Seen = frozenset[Place]


def tables(path: Path) -> dict[str, tuple[int, Table]]:
    """By program: its batch on one GPU, and how long it takes wherever it runs."""
    found: dict[str, tuple[int, Table]] = {}
    for kind, rows in json.loads(path.read_text()).items():
        for key, rates in rows.items():
            name, gpus = re.fullmatch(r"\('(.*)', (\d+)\)", key).groups()
            if kind in PRICES and rates["null"]:  # 0: it does not fit there
                batch = int(said[1]) if (said := re.search(r"batch size (\d+)", name)) else 16
                found.setdefault(name, (batch, {}))[1][kind, int(gpus)] = SAMPLES / rates["null"]
    return found


def options(batch: int, table: Table, seen: Seen) -> list[Option]:
    """All that can be asked for, as the model has it; a kind of GPU that was not measured is not among them."""
    kinds = [kind for kind in PRICES if any(place[0] == kind for place in seen)]
    models = fit_many([
        [Observation(n, 1, batch * n, batch, 1, n * table[kind, n] / SAMPLES, 8.0) for k, n in seen if k == kind]
        for kind in kinds
    ])  # fmt: skip
    found = []
    for kind, model in zip(kinds, models, strict=True):
        points = [(n, 1, batch * n) for n in SIZES if (kind, n) in table]
        for (n, _, whole), speed, doubt in zip(points, model.throughputs(points), model.sigmas(points), strict=True):
            run_s, price = SAMPLES * batch / speed, PRICES[kind] * n
            found.append(Option("", kind, n, 1, whole, run_s, doubt, (kind, n) in seen, price))
    return found


class Answers:
    """What was advised, beside what came of it."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.rated: list[tuple[float, bool]] = []

    def add(self, option: Option, said: float, table: Table, deadline: float) -> None:
        took = {place: seconds * PRICES[place[0]] * place[1] for place, seconds in table.items()}
        best = min(cost for place, cost in took.items() if table[place] <= deadline)
        place = option.gpu_type, option.gpus
        kept = table[place] <= deadline
        self.rated.append((said, kept))
        if kept:
            self.costs.append(took[place] / best)

    def figures(self) -> tuple[float, float, float]:
        """Cost over the optimum's where the deadline was kept; share missed; how far the probability was off."""
        said, kept = (fmean(column) for column in zip(*self.rated, strict=True))
        return fmean(self.costs), 1.0 - kept, said - kept

    def bins(self, edges: Sequence[float] = (0.0, 0.5, 0.9, 1.01)) -> str:
        """Printed and kept, by what was printed."""
        words = []
        for low, high in pairwise(edges):
            some = [one for one in self.rated if low <= one[0] < high]
            if some:
                said, kept = (fmean(column) for column in zip(*some, strict=True))
                words.append(f"{said:.0%} printed, {kept:.0%} kept of {len(some)}")
        return "; ".join(words)


def ask(programs: dict[str, tuple[int, Table]], count: int, seed: int, in_all: bool) -> tuple[Answers, Answers]:
    """The answers with so many measured sizes, and with the one more that is proposed."""
    drawn, plain, more = Random(seed), Answers(), Answers()
    known: dict[tuple[str, Seen], list[Option]] = {}

    def rated(name: str, seen: Seen, aim: Aim) -> tuple[Option, float]:
        if (name, seen) not in known:
            known[name, seen] = options(*programs[name], seen)
        return ranked(known[name, seen], aim)[0]

    for _ in range(QUESTIONS):
        name = drawn.choice(sorted(programs))
        table = programs[name][1]
        ends = min(table.values()), max(table.values())
        deadline = math.exp(drawn.uniform(*map(math.log, ends))) * (1 + 1e-9)
        sizes = drawn.sample(SIZES, count)
        seen = frozenset(
            place for place in table if place[1] in sizes or not any((place[0], n) in table for n in sizes)
        )
        if in_all:
            seen = frozenset(drawn.sample(sorted(table), count))
        aim = Aim(deadline)
        plain.add(*rated(name, seen, aim), table, deadline)
        if (next_one := worth_measuring(known[name, seen], aim)) is not None:
            seen |= {(next_one.gpu_type, next_one.gpus)}
        more.add(*rated(name, seen, aim), table, deadline)
    return plain, more


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    path = args.folder / "simulation_throughputs.json"
    if not path.is_file():
        print(f"there is no {path}; accepted: make bench-advise DATA=FOLDER, with Gavel's table in it", file=sys.stderr)
        return 2
    programs, missed = tables(path), False
    for count, goals in GOALS.items():
        plain, more = ask(programs, count, args.seed, False)
        cost, late, off = plain.figures()
        for what, value, goal, form in (
            ("cost over the optimum's", cost, goals[0], "{:.3f}"),
            ("deadlines missed", late, goals[1], "{:.1%}"),
            ("printed probability off by", abs(off), RIGHT, "{:.1%}"),
        ):
            missed = missed or value > goal
            words = "missed" if value > goal else "met"
            print(f"{count} sizes: {what:<27} {form.format(value)} (goal {form.format(goal)}: {words})")
        print(f"         {plain.bins()}")
        for words, other in (
            ("and the one proposed", more),
            ("in all, not of each kind", ask(programs, count, args.seed, True)[0]),
        ):
            print("         {}: cost {:.3f}, {:.1%} missed, off by {:+.1%}".format(words, *other.figures()))
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
