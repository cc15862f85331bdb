"""Tables in the forms of squeue and sacct: aligned, `a|b|c|` (--parsable), `a|b|c` (--parsable2), with chosen fields;
and their cells, values as the commands print them.

Promise: one list of fields per command gives its columns, --format and --helpformat; what is unknown is a dash in a
table and empty in the parsable forms. Control characters, which a job's name may hold, never reach the terminal.
Limit: text only, no colour; one line per row, but on a terminal that is too narrow for a sentence in the last cell; a
`|` in a value is not escaped, as in Slurm.
"""

import functools
import re
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import groupby
from typing import Any

from slurm_elastic.protocol.errors import ConfigError

from .times import format_time

Row = Any
"""Any object that the columns know how to read."""
Cell = Callable[[Row], str]
"""Makes a column's text from a row; empty when the row does not know it."""
UNKNOWN = "-"
SHORTEST = 8
"""Columns of a terminal that a text keeps at least."""
SHORTEST_LAST = 12
"""... the last one, which says why, or what happened."""
EASY_LAST = 30
"""... and what it is narrowed to before other columns are cut."""
_width = unicodedata.east_asian_width


@dataclass(frozen=True, slots=True)
class Field:
    """One column: its name in --format, its header, how its text is made from a row, and what it means."""

    name: str
    header: str
    text: Cell
    help: str
    left: bool = False
    width: int = 0
    """Fixed width in columns of a terminal, longer text is cut and ends in `+`; 0: as wide as its longest cell."""


def choose(fields: Sequence[Field], default: str, spec: str | None) -> list[Field]:
    """The columns of `--format=name[%[-]width],...`; names in any case, ALL for every field, None for `default`.

    A width aligns to the right, a negative one to the left, as in sacct. Raises ConfigError naming the word.
    """
    by_name = {field.name.lower(): field for field in fields}
    chosen: list[Field] = []
    for word in (spec if spec is not None else default).split(","):
        name, percent, width = word.strip().partition("%")
        if name.lower() == "all" and not percent:
            chosen += fields
            continue
        field = by_name.get(name.lower())
        if field is None:
            close = get_close_matches(name.lower(), by_name, n=1)
            hint = f" (did you mean {by_name[close[0]].name}?)" if close else ""
            raise ConfigError(f"unknown field '{name}' in --format{hint}; accepted: {_names(fields)}")
        if percent:
            if not re.fullmatch(r"-?[1-9][0-9]{0,3}", width):
                raise ConfigError(
                    f"'{word.strip()}' in --format has no width after %; accepted: 1 to 9999, or -1 to -9999"
                )
            field = replace(field, width=abs(int(width)), left=width.startswith("-"))
        chosen.append(field)
    return chosen


def _names(fields: Sequence[Field]) -> str:
    return ", ".join(field.name for field in fields)


def helpformat(fields: Sequence[Field]) -> list[str]:
    """What --helpformat prints: every field with its meaning."""
    width = max(len(field.name) for field in fields)
    return [f"{field.name:<{width}}  {field.help}" for field in fields]


def lines(
    columns: Sequence[Field],
    rows: Iterable[Row],
    *,
    header: bool = True,
    style: str = "table",
    rule: bool = False,
    terminal: int = 0,
    spare: Sequence[str] = (),
) -> list[str]:
    """The printed lines. `style`: table, parsable (trailing `|`) or parsable2; `rule`: dashes under the header.

    terminal: its width, which a table is made to fit (0: as wide as it is); spare: names of columns to be left out
    first for that, in this order.
    """
    cells = [[clean(column.text(row)) for column in columns] for row in rows]
    heads = [column.header for column in columns]
    if style != "table":
        tail = "|" if style == "parsable" else ""
        return ["|".join(line) + tail for line in ([heads] if header else []) + cells]
    cells = [[cell or UNKNOWN for cell in line] for line in cells]
    shown = ([heads] if header else []) + cells
    widths = [
        column.width or max((columns_of(line[index]) for line in shown), default=0)
        for index, column in enumerate(columns)
    ]
    if terminal:
        last = len(columns) - 1
        least = [
            least_width(width, column.left, index == last)
            for index, (column, width) in enumerate(zip(columns, widths, strict=True))
        ]
        stay = kept([column.name for column in columns], least, terminal, spare)
        columns = [columns[index] for index in stay]
        widths = narrowed([widths[index] for index in stay], [least[index] for index in stay], terminal)
        shown = [part for line in shown for part in _wrapped([line[index] for index in stay], widths)]
    if header and rule:
        shown.insert(1, ["-" * width for width in widths])
    return [_aligned(columns, widths, line) for line in shown]


def _wrapped(line: list[str], widths: Sequence[int]) -> list[list[str]]:
    """The row, in several lines where its last cell is a sentence that needs them."""
    first, *rest = wrapped(line[-1], widths[-1])
    return [[*line[:-1], first], *([*([""] * (len(line) - 1)), part] for part in rest)]


def _aligned(columns: Sequence[Field], widths: Sequence[int], line: Sequence[str]) -> str:
    words = []
    for column, width, cell in zip(columns, widths, line, strict=True):
        text = cut(cell, width)
        blanks = " " * (width - columns_of(text))
        words.append(text + blanks if column.left else blanks + text)
    return " ".join(words).rstrip()


def columns_of(text: str) -> int:
    """How many columns of a terminal a printable text takes: two for a letter of East Asian width, none for a mark that
    stands on the letter before it."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(letter) else 1 + (_width(letter) in "WF") for letter in text)


def cut(text: str, width: int, mark: str = "+") -> str:
    """The text, or as much of it as fits so many columns with the mark behind it."""
    if columns_of(text) <= width:
        return text
    kept = text[: width - 1]
    while columns_of(kept) > width - 1:
        kept = kept[:-1]
    return kept + mark


def clean(text: str) -> str:
    """The text with every control character shown as `?`: a job's name must not steer another user's terminal."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def number(value: float | None, digits: int = 3) -> str:
    """A number with about so many significant digits and without exponents; empty for None."""
    if value is None:
        return ""
    size = abs(value)
    whole_digits = len(str(int(size))) if size >= 1 else 1
    return f"{value:.{max(0, digits - whole_digits)}f}"


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
    """The widths: the last column, which is told in several lines, is narrowed to EASY_LAST, then the widest others,
    and the last one again when those cannot be narrowed any more."""
    found = list(widths)
    surplus = sum(found) + len(found) - 1 - width
    if found and least[-1] < found[-1]:
        easy = max(least[-1], min(found[-1], max(found[-1] - max(0, surplus), EASY_LAST)))
        surplus -= found[-1] - easy
        found[-1] = easy
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
    """A sentence in lines of so many columns, broken between words; a longer word is broken as well."""
    return textwrap.wrap(text, width, break_on_hyphens=False) or [text]


Form = Callable[[Any], str]
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")


def digits(count: int = 3) -> Form:
    """So many significant digits."""
    return functools.partial(number, digits=count)


def share(value: float) -> str:
    """A part of one, in percent."""
    return f"{value:.0%}"


def moment(value: float) -> str:
    """A time as SLURM_TIME_FORMAT wants it."""
    return format_time(value, time.time())


def folded(names: str) -> str:
    """ "n[1-3,7]" for "n1,n2,n3,n7", as Slurm writes a node list; here without the daemon's library for them."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    found = [_NUMBERED.fullmatch(name) for name in names.split(",")]
    padded = {(each[1], each[3], len(each[2])) for each in found if each and each[2][0] == "0"}
    for name, each in zip(names.split(","), found, strict=True):
        if each is None:
            groups[name, "", -1] = []
            continue
        digits = len(each[2]) if (each[1], each[3], len(each[2])) in padded else 0
        groups.setdefault((each[1], each[3], digits), []).append(int(each[2]))
    return ",".join(_group(*key, sorted(set(numbers))) for key, numbers in groups.items())


def _group(before: str, behind: str, digits: int, numbers: list[int]) -> str:
    """One node list of names that differ in one number. digits: with as many of them, 0: with as many as it takes."""
    parts = []
    for _, run in groupby(enumerate(numbers), key=lambda entry: entry[1] - entry[0]):
        first, *more = [f"{number:0{digits}d}" for _, number in run]
        parts.append(f"{first}-{more[-1]}" if more else first)
    inside = ",".join(parts)
    return before + (f"[{inside}]" if len(numbers) > 1 else inside) + behind


def bounds(low: str, high: str) -> Callable[[Any], str]:
    """A cell with MIN-MAX of two fields, or one number when they are equal."""

    def cell(record: object) -> str:
        first, last = getattr(record, low), getattr(record, high)
        if first is None or last is None:
            return ""
        return str(first) if first == last else f"{first}-{last}"

    return cell
