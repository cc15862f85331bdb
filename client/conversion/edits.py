"""Changes to a script's syntax tree; what is not changed stays as it is, to the byte.

Promise: lines stand in the order in which they are given, and a comment in front of its statement. Limit: nothing here
knows PyTorch.
"""

from __future__ import annotations

import difflib
import textwrap
from collections import defaultdict
from typing import Any

import libcst as cst

from .source import Block, Source

MARK, WIDTH = "elastic:", 100
"""What each comment begins with, and how long its lines are."""


class Edits(cst.CSTTransformer):
    """Collects changes, and makes them."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._changed: dict[cst.CSTNode, Any] = {}
        self._before: dict[cst.CSTNode, list[str]] = defaultdict(list)
        self._top: dict[cst.CSTNode, list[str]] = defaultdict(list)
        self._comments: dict[cst.CSTNode, dict[str, None]] = defaultdict(dict)
        self._behind: dict[cst.CSTNode, str] = {}

    def replace(self, node: cst.CSTNode, text: str) -> None:
        self._changed[node] = cst.parse_expression(text)

    def remove(self, node: cst.CSTNode) -> None:
        """The small statement that it is a part of."""
        chain = [node, *self._source.above(node)]
        self._changed[next(entry for entry in chain if isinstance(entry, cst.BaseSmallStatement))] = (
            cst.RemoveFromParent()
        )

    def gone(self, node: cst.CSTNode) -> bool:
        """Whether it is changed already, or what it is a part of."""
        return any(entry in self._changed for entry in [node, *self._source.above(node)])

    def before(self, statement: cst.CSTNode, *lines: str, first: bool = False) -> None:
        """Lines in front of a statement. first: of those that go there."""
        self._before[statement] = [*lines, *self._before[statement]] if first else [*self._before[statement], *lines]

    def top(self, loop: cst.CSTNode, line: str) -> None:
        """A line for the beginning of a loop's body."""
        self._top[loop].append(line)

    def comment(self, node: cst.CSTNode, sentence: str) -> None:
        self._comments[self._source.statement(node)][sentence] = None

    def behind(self, node: cst.CSTNode, test: str) -> None:
        """Put the statement behind a condition."""
        self._behind[self._source.statement(node)] = test

    def result(self) -> str:
        return self._source.module.visit(self).code

    def _lines(self, lines: list[str]) -> list[Any]:
        return [cst.parse_statement(line, config=self._source.module.config_for_parsing) for line in lines]

    def on_leave(self, original: Any, updated: Any) -> Any:
        if original in self._changed:
            return self._changed[original]
        if original in self._top:
            body = [*self._lines(self._top[original]), *updated.body.body]
            updated = updated.with_changes(body=updated.body.with_changes(body=body))
        if not isinstance(original, cst.BaseStatement) or not isinstance(self._source.parents[original], Block):
            return updated
        return self._statement(original, updated)

    def _statement(self, original: Any, updated: Any) -> Any:
        """With the lines and comments that go in front of it; libcst gives a `pass` to a block that gets empty."""
        statements, words = self._lines(self._before[original]), self._comments[original]
        lines = [line for entry in words for line in textwrap.wrap(f"{MARK} {entry}", WIDTH)]
        leading, comments = updated.leading_lines, [cst.EmptyLine(comment=cst.Comment(f"# {line}")) for line in lines]
        if not isinstance(updated, cst.SimpleStatementLine) or updated.body:
            updated = updated.with_changes(leading_lines=comments)
            if (test := self._behind.get(original)) is not None:
                inside = cst.IndentedBlock([updated.with_changes(leading_lines=[])])
                updated = cst.If(cst.parse_expression(test), inside, leading_lines=comments)
            statements.append(updated)
        if statements:
            first = statements[0]
            statements[0] = first.with_changes(leading_lines=[*leading, *first.leading_lines])
        return cst.FlattenSentinel(statements)


def unified(name: str, before: str, after: str) -> str:
    """The change as a diff that `patch` takes."""
    lines = difflib.unified_diff(_split(before), _split(after), fromfile=name, tofile=name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _split(text: str) -> list[str]:
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
