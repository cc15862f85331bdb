"""How a table fits a terminal: columns that can be spared are left out, and long texts are cut. Pure.

Limit: numbers are never cut, so a table of many numbers may stay wider than a terminal that is narrow.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

SHORTEST = 8
"""Columns of a terminal that a text keeps at least."""
SHORTEST_LAST = 12
"""... the last one, which says why, or what happened."""


def kept(names: Sequence[str], least: Sequence[int], width: int, spare: Sequence[str]) -> list[int]:
    """Which columns stay, where those in `spare` are left out one after another until the rest fits.

    least: how narrow each column can be made; width: of the terminal.
    """
    stay = list(range(len(names)))
    for name in spare:
        if sum(least[index] + 1 for index in stay) - 1 <= width:
            break
        stay = [index for index in stay if names[index] != name]
    return stay


def narrowed(widths: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """The widths, the widest columns narrowed first, and the last one when the others cannot be narrowed any more."""
    found = list(widths)
    surplus = sum(found) + len(found) - 1 - width
    while surplus > 0:
        candidates = [index for index in range(len(found) - 1) if found[index] > least[index]]
        index = max(candidates, key=lambda index: found[index], default=len(found) - 1)
        if found[index] <= least[index]:
            break
        found[index] -= 1
        surplus -= 1
    return found


def least_width(full: int, is_text: bool, is_last: bool) -> int:
    """How narrow a column can be made."""
    return min(full, SHORTEST_LAST if is_last else SHORTEST) if is_text else full


def wrapped(text: str, width: int) -> list[str]:
    """A sentence in lines of so many columns, broken between words. A longer word stays whole."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [text]
