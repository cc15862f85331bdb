"""Changes to a program's text, made by its syntax tree, with all that is not changed left as it is."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence

Node = ast.expr | ast.stmt | ast.keyword


class Edits:
    """Collects changes to a text, and makes them. Positions of a syntax tree count bytes."""

    def __init__(self, text: str) -> None:
        self._data = text.encode()
        self._lines = self._data.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._changes: list[tuple[int, int, str]] = []

    def source(self, node: Node) -> str:
        """The node's own text."""
        start, end = self._span(node)
        return self._data[start:end].decode()

    def replace(self, node: Node, text: str) -> None:
        start, end = self._span(node)
        self._changes.append((start, end, text))

    def remove(self, statement: ast.stmt, alone: bool = False) -> None:
        """Its lines. alone: the only statement of its block, which has to have one."""
        if alone:
            self.replace(statement, "pass")
            return
        first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
        whole = not self._data[self._starts[first] : self._span(statement)[0]].strip()
        end = self._data[self._span(statement)[1] : self._starts[last]].strip()
        if whole and (not end or end.startswith(b"#")):
            self._changes.append((self._starts[first], self._starts[last], ""))
        else:
            self.replace(statement, "pass")

    def replace_from_to(self, first: Node, last: Node, text: str) -> None:
        """From the beginning of one node to the end of another."""
        self._changes.append((self._span(first)[0], self._span(last)[1], text))

    def before(self, statement: ast.stmt, lines: Sequence[str]) -> None:
        """New lines in front of a statement, as far in."""
        line = min([statement.lineno, *(entry.lineno for entry in getattr(statement, "decorator_list", []))]) - 1
        self._insert(line, self._indent(line), lines)

    def after(self, statement: ast.stmt, lines: Sequence[str]) -> None:
        self._insert(statement.end_lineno or statement.lineno, self._indent(statement.lineno - 1), lines)

    def _insert(self, line: int, indent: str, lines: Sequence[str]) -> None:
        end = "\r\n" if self._lines and self._lines[0].endswith(b"\r\n") else "\n"
        text = "".join(f"{indent}{entry}{end}" for entry in lines)
        if line and not self._lines[line - 1].endswith(b"\n"):
            text = end + text
        self._changes.append((self._starts[line], self._starts[line], text))

    def _indent(self, line: int) -> str:
        text = self._lines[line].decode()
        return text[: len(text) - len(text.lstrip())]

    def _span(self, node: Node) -> tuple[int, int]:
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[end_line - 1] + end

    def result(self) -> str:
        """The text with all changes, in the order in which they were given where they are in one place. What lies
        within a larger change goes with it."""
        data = self._data
        kept = [(*change, number) for number, change in enumerate(self._changes) if not self._goes(change)]
        for start, end, text, _ in sorted(kept, key=lambda change: (change[0], change[1], change[3]), reverse=True):
            data = data[:start] + text.encode() + data[end:]
        return data.decode()

    def _goes(self, change: tuple[int, int, str]) -> bool:
        """Whether a larger change has what this one would change; new lines at its edges stay."""
        start, end, _ = change
        if start == end:
            return any(other[0] < start < other[1] for other in self._changes)
        larger = (other for other in self._changes if other[1] - other[0] > end - start)
        return any(other[0] <= start and end <= other[1] for other in larger)


def unified(name: str, before: str, after: str) -> str:
    """The change as a diff that `patch` takes."""
    lines = difflib.unified_diff(_split(before), _split(after), fromfile=name, tofile=name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _split(text: str) -> list[str]:
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
