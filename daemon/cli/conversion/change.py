"""The change of one script while it is made: what the rules know, and what they have to write at the end.

Promise: a rule takes a Change, and does one thing to it; lines stand in the order in which they are given. Limit:
nothing here knows PyTorch.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from .edits import Edits
from .script import Loop, Scope, Script

Left = list[tuple[int, str]]
"""Lines of the script as it was, and what is to be done there."""


@dataclass
class Change:
    """See the module."""

    script: Script
    edits: Edits
    loop: Loop
    """The one that becomes the job's."""
    left: Left = field(default_factory=list)
    needed: list[ast.AST] = field(default_factory=list)
    """What needs the job, in the loop's own function."""
    elsewhere: bool = False
    """The job is needed in other functions."""
    settings: list[str] = field(default_factory=list)
    """Lines for in front of join()."""
    before: list[str] = field(default_factory=list)
    """Lines for in front of the loop."""
    top: list[str] = field(default_factory=list)
    """Lines for the top of the loop's body."""
    shares: list[tuple[ast.stmt, str]] = field(default_factory=list)
    """Lines in front of statements of the loop."""
    batch: str = ""
    """What join(batch=...) is given; "" where it is not known."""
    whole: bool = False
    """That it is the global batch is known."""
    removed: list[ast.stmt] = field(default_factory=list)
    replaced: set[ast.AST] = field(default_factory=set)
    """What nobody reads any more."""

    def __post_init__(self) -> None:
        self.scope: Scope = self.script.scope(self.loop)
        self.needed.append(self.loop)

    def leave(self, node: ast.AST, sentence: str) -> None:
        """Say what the author has to do in the node's line."""
        self.left.append((getattr(node, "lineno", 1), sentence))

    def remove(self, statement: ast.stmt) -> None:
        self.removed.append(statement)
        self.replaced |= set(ast.walk(statement))

    def needs_job(self, node: ast.AST) -> None:
        """The job has to be there before this runs."""
        if self.script.scope(node) is self.scope:
            self.needed.append(node)
        else:
            self.elsewhere = True
