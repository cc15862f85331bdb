"""What --constraint= says about nodes. Pure.

Known are names joined by & and |, of which & binds more, perhaps all in one pair of brackets: [a|b] means nodes that
are all alike in one of these. Limit: counts, parentheses and brackets within are not known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


def meets(constraint: str, features: Collection[str]) -> bool:
    """Whether a node with these features is one that the constraint accepts.

    What is not known is taken to be met: whether it is, Slurm will say.
    """
    if not constraint or _unknown(constraint) or constraint.startswith("["):
        return True
    return any(set(group.split("&")) <= set(features) for group in constraint.split("|"))


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


def _unknown(constraint: str) -> bool:
    return any(sign in constraint for sign in "()*!,") or "[" in constraint[1:] or "]" in constraint[:-1]
