"""The exact finish: a dynamic program over the few choices that a duality gap leaves open.

At a multiplier p/q the base plan takes each job's best v*q - p*w. Any other choice has a loss >= 0 against it, and
U - (losses) - p * (GPUs unused) is the value of a plan, so a plan better than the incumbent has losses + p * unused
below the gap G. Choices with a loss above G are out for good; what is left is the core. The search deepens: it
decides completely whether a plan within `tau` of the bound exists, and raises tau by DEEPER until it does.

Why only B choices per change of weight suffice: take a best plan with the fewest moves away from the base. No part of
its moves sums to zero (dropping it would cost nothing), and moves can be ordered so that all prefix sums lie in a
window of 2*wm + |final change| without a repeat; so it has fewer than B moves, and a move outside the B cheapest of
its change could be swapped for one of them whose job does not move. Nor can a plan within tau hold more moves than
the cheapest ones of as many jobs that lose tau together.

Limit: in the worst case this is the full dynamic program; `work` bounds it, and the answer then keeps its gap.
After Pisinger, "A minimal algorithm for the multiple-choice knapsack problem", 1995.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Move = tuple[int, int, int, int]
"""(loss, change of weight, job, position in the table)"""
State = tuple[int, "Link | None"]
"""(loss, the moves to here)"""
Link = tuple[Any, "Link | None"]
"""(the last move, those before it)"""

DEEPER = 64
"""Factor by which the search deepens."""
MANY, FEW = 200, 2
"""Above MANY open choices, a try with only the FEW cheapest per change of weight comes first: ties close there."""


@dataclass
class Finish:
    """The best moves found, what they lose in all, and a proven lower limit of that loss."""

    moves: list[Move]
    loss: int
    proven: int
    work: int
    exhausted: bool = False


def fill(moves: list[Move], slack: int, price: int) -> tuple[list[Move], int]:
    """Cheap upgrades that fit the slack: a first incumbent. Returns (moves taken, losses + price * unused)."""
    taken, total, used = list[Move](), price * slack, set[int]()
    for move in moves:
        loss, change, job, _ = move
        if 0 < change <= slack and loss < price * change and job not in used:
            taken.append(move)
            used.add(job)
            slack -= change
            total += loss - price * change
            if not slack:
                break
    return taken, total


def finish(moves: list[Move], slack: int, price: int, unit: int, work: int) -> Finish:
    """The best set of moves, at most one per job, with total change <= slack.

    `moves` may come in any order and need to hold every choice whose loss is below price * slack; `unit` is the
    smallest difference between two plans' values (q), so a gap below it is none.
    """
    moves.sort()
    best = Finish(*fill(moves, slack, price), 0, work)
    losses = [m[0] for m in moves]
    tau = max(unit, losses[23]) if len(losses) > 23 else best.loss
    while best.proven + unit <= best.loss:
        tau = min(tau, best.loss - unit)
        within = moves[: bisect_right(losses, tau)]
        widest = max((abs(m[1]) for m in within), default=0)
        enough = min(2 * widest + max(slack, tau // price) + 2, _most_moves(within, tau))
        for most in (FEW, enough) if len(within) > MANY else (enough,):
            found = _search(_shortlist(within, most), slack, price, min(tau, best.loss - unit), best)
            if best.exhausted:
                return best
            if found is not None:
                best.moves, best.loss = found
                if best.loss < best.proven + unit:
                    break
        else:
            best.proven = min(tau + 1, best.loss)
        tau *= DEEPER
    best.proven = best.loss
    return best


def _most_moves(moves: list[Move], tau: int) -> int:
    """How many moves a plan that loses at most tau can hold: the cheapest one of each job, while they fit."""
    jobs, total = set[int](), 0
    for move in moves:
        if move[2] not in jobs:
            total += move[0]
            if total > tau:
                break
            jobs.add(move[2])
    return len(jobs)


def _shortlist(moves: list[Move], most: int) -> list[list[Move]]:
    """The moves by job, per change of weight only the `most` cheapest."""
    count, rows, widest = dict[int, int](), dict[int, list[Move]](), dict[int, int]()
    for move in moves:
        _, change, job, _ = move
        seen = count.get(change, 0)
        if seen >= most:
            continue
        count[change] = seen + 1
        width = change if change > 0 else -change
        if job in rows:
            rows[job].append(move)
            if width > widest[job]:
                widest[job] = width
        else:
            rows[job], widest[job] = [move], width
    order = sorted(rows, key=lambda job: (-widest[job], rows[job][0]))
    return [rows[job] for job in order]


def _search(rows: list[list[Move]], slack: int, price: int, tau: int, best: Finish) -> tuple[list[Move], int] | None:
    """The least losses + price * unused that is <= tau, over at most one move per row; None when there is none."""
    up, down = [0], [0]  # what the rows still to come can add or take away
    for row in reversed(rows):
        most = least = 0
        for move in row:
            if move[1] > most:
                most = move[1]
            elif move[1] < least:
                least = move[1]
        up.append(up[-1] + most)
        down.append(down[-1] - least)
    states: dict[int, State] = {0: (0, None)}
    for i, row in enumerate(rows):
        left = len(rows) - 1 - i
        top, floor = slack + down[left], slack - up[left]
        grown = dict[int, State]()
        for at, state in states.items():
            cost, link = state
            if at <= top and (at >= floor or cost + price * (floor - at) <= tau):
                known = grown.get(at)
                if known is None or cost < known[0]:
                    grown[at] = state
            for move in row:
                there, paid = at + move[1], cost + move[0]
                if paid > tau:
                    break  # a row's moves come by rising loss
                if there > top or (there < floor and paid + price * (floor - there) > tau):
                    continue
                known = grown.get(there)
                if known is None or paid < known[0]:
                    grown[there] = (paid, (move, link))
        states = grown
        best.work -= len(states) * len(row)
        if best.work < 0:
            best.exhausted = True
            return None
    return cheapest([(cost + price * (slack - at), at) for at, (cost, _) in states.items() if at <= slack], states, tau)


def cheapest(ends: list[tuple[int, Any]], states: Mapping[Any, State], tau: int) -> tuple[list[Any], int] | None:
    """(the moves to the (loss, state) that loses least, its loss); None when all lose more than tau."""
    if not ends or min(ends)[0] > tau:
        return None
    total, at = min(ends)
    moves, link = list[Any](), states[at][1]
    while link is not None:
        moves.append(link[0])
        link = link[1]
    return moves, total
