"""Which further nodes suit a job: by --constraint=, and by which hosts reach each other. Pure.

Known constraints are names joined by & and |, read from left to right as Slurm does: a|b&c is (a|b)&c. All in one pair
of brackets, [a|b] means nodes that are all alike in one of these. Limit: counts, parentheses and brackets within are
not known.
"""

import re
from collections.abc import Collection, Iterable

from slurm_elastic.db.rows import HostPair

FAILURES = 3
"""Resizes in a row that fail for a pair of hosts before it is left out."""
USERS = 3
"""Users whose jobs found a pair so, from which on it is left out for everybody: nobody closes a pair to others."""
REST_S = 3600.0
"""How long a pair is left out first; twice as long after each further failure."""
REST_MAX_S = 86400.0
CLOCK_S = 600.0
"""What lies further in the future was stored by a wrong clock: no pair is left out for it."""


def meets(constraint: str, features: Collection[str]) -> bool:
    """Whether a node with these features is one that the constraint accepts.

    What is not known is taken to be met: whether it is, Slurm will say.
    """
    if not constraint or _unknown(constraint) or constraint.startswith("["):
        return True
    met, joined = True, "&"
    for name, following in re.findall(r"([^&|]+)([&|]?)", constraint):
        met = (met and name in features) if joined == "&" else (met or name in features)
        joined = following
    return met


def held_to(constraint: str, nodes: Iterable[Collection[str]]) -> str | None:
    """What further nodes have to meet beside `nodes`, given by their features; None where that is not known.

    "ib" for "[ib|roce]" and nodes that have ib.
    """
    if not constraint.startswith("["):
        return None if _unknown(constraint) else constraint
    inside = constraint[1:-1]
    if not constraint.endswith("]") or _unknown(inside):
        return None
    known = list(nodes)
    return next((one for one in inside.split("|") if all(meets(one, features) for features in known)), None)


def left_out_until(pair: HostPair) -> float:
    """When the two are tried together again; 0: they still are."""
    if pair.failures < FAILURES:
        return 0.0
    return pair.last_at + min(REST_MAX_S, REST_S * 2.0 ** min(20, pair.failures - FAILURES))


def apart(pairs: Iterable[HostPair], user: str, now: float) -> frozenset[tuple[str, str]]:
    """The pairs of hosts that no world of this user's is to have both of now."""
    rests: dict[tuple[str, str], set[str]] = {}
    for pair in pairs:
        if pair.last_at - CLOCK_S <= now < left_out_until(pair):
            rests.setdefault((pair.host, pair.other), set()).add(pair.user)
    return frozenset(both for both, users in rests.items() if user in users or len(users) >= USERS)


def out_of_reach(own: Collection[str], free: Collection[str], pairs: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Which of the free nodes a job on `own` does without: each that one of its own does not reach, and one of each two
    that do not reach each other."""
    left_out: set[str] = set()
    left = sorted(pairs)
    for host, other in left:
        left_out |= {other} if host in own else set()
        left_out |= {host} if other in own else set()
    left = [both for both in left if left_out.isdisjoint(both) and set(both) <= set(free)]
    while left:  # whoever is in most of them first
        names = [name for both in left for name in both]
        gone = max(sorted(set(names)), key=names.count)
        left_out.add(gone)
        left = [both for both in left if gone not in both]
    return frozenset(left_out)


def _unknown(constraint: str) -> bool:
    return any(sign in constraint for sign in "()*!,") or "[" in constraint[1:] or "]" in constraint[:-1]
