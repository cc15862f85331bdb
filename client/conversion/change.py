"""The change of one script while it is made: which loop becomes the job's, what is known of names, what is left, and
the edits of its syntax tree. What is not changed stays as it is, to the byte.

Promise: lines stand in the order in which they are given, and a comment in front of its statement. Limit: one loop over
epochs, in a function or the module of the script itself.
"""

import difflib
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import libcst as cst

from slurm_elastic.protocol.errors import ElasticError

from .source import Block, Loop, Scope, Source, bindings, code, names, parameters, walk

MARK, WIDTH = "elastic:", 100
"""What each comment begins with, and how long its lines are."""


class Edits(cst.CSTTransformer):
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
    lines = difflib.unified_diff(_split(before), _split(after), fromfile=name, tofile=name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _split(text: str) -> list[str]:
    parts = text.split("\n")
    return [f"{part}\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


BAR = r"(^|\.)(tqdm|track)$"
"""A bar around what a loop goes over."""
FLAG = re.compile(
    r"^\(?(\w+\.)?(ddp|is_ddp|use_ddp|(is_|use_|multiprocessing_)?distributed)\b(?! ==| or)|device_count\(\) > 1|"
    r"[\"'](RANK|LOCAL_RANK|WORLD_SIZE|SLURM_PROCID)[\"'] in os\.environ|"
    r"(getenv|environ\.get)\([\"'](RANK|LOCAL_RANK|WORLD_SIZE)[\"'],? *[\"']?-?\d*[\"']?\)+ *(!= *-1|> *1|>= *0|> *-1)"
)
"""Conditions that hold under torchrun, and not in a worker of `selastic run`."""


@dataclass(frozen=True)
class Pass:
    """A loop over data that trains, inside of the job's; `calls` lead to it."""

    node: Loop
    calls: tuple[cst.Call, ...] = ()


@dataclass
class Change:
    source: Source
    edits: Edits
    loop: Loop
    passes: list[Pass]
    said: set[tuple[int, str]] = field(default_factory=set)
    """What is left to the author, by line."""
    claimed: set[cst.CSTNode] = field(default_factory=set)
    """Samplers that a rule has taken."""
    batch: str = ""
    """What join(batch=...) is given."""
    behind: list[cst.CSTNode] = field(default_factory=list)
    """What has to have run before join()."""
    made: list[cst.CSTNode] = field(default_factory=list)
    """The DataLoaders that are trained on."""
    models: dict[str, str] = field(default_factory=dict)
    """How each model is given to the job, by its name."""
    keep: dict[str, str] = field(default_factory=dict)
    elsewhere: bool = False
    """Functions of the script need the job, too."""
    boxed: bool = False
    """Variables of a function became those of an object."""

    def __post_init__(self) -> None:
        self.scope: Scope = self.source.scope(self.loop)
        self.reach = self.source.reached(self.loop.body)
        """All that the loop runs."""
        scopes = dict.fromkeys([self.source.module, self.scope])
        stores = [entry for scope in scopes for entry in self.source.stores(scope)]
        self._flags = {name for name, value, _ in stores if value is not None and FLAG.search(code(value))}

    def leave(self, node: cst.CSTNode, sentence: str) -> None:
        """Name a line in a comment."""
        self.claimed.add(node)
        self.said.add((self.source.line(node), sentence))
        self.edits.comment(node, sentence)

    def for_torchrun(self, node: cst.CSTNode) -> bool:
        """Whether it stands behind a condition that holds under torchrun alone."""
        for child, parent in pairwise([node, *self.source.above(node)]):
            test = code(parent.test) if isinstance(parent, (cst.If, cst.IfExp)) and child is parent.body else ""
            if not test.startswith("not ") and (FLAG.search(test) or test in self._flags):
                return True
        return False

    # -- names of the loop's function, or of the module ----------------------------------------------------------

    def early(self, node: cst.CSTNode) -> bool:
        return self.source.line(node) < self.source.line(self.loop)

    def given(self, name: str) -> list[tuple[cst.BaseExpression | None, cst.CSTNode]]:
        """value and node of all that a name is given before the loop, where it is bound."""
        own = [entry for entry in self.source.stores(self.scope) if entry[0] == name and self.early(entry[2])]
        module = [entry for entry in self.source.stores(self.source.module) if entry[0] == name]
        if isinstance(self.scope, cst.Module) or (own and not self.shares(name)):
            return [entry[1:] for entry in own]
        return [entry[1:] for entry in (*module, *own)]

    def shares(self, name: str) -> bool:
        """Whether the loop's function binds a variable of the module."""
        return any(isinstance(node, cst.Global) and name in code(node) for node in walk(self.scope))

    def value(self, name: str) -> cst.BaseExpression | None:
        """What it is given last before the loop."""
        return next((value for value, _ in reversed(self.given(name))), None)

    def certain(self, name: str) -> bool:
        """Whether it has a value when the loop begins, however the script is started."""
        way = [entry for entry in self.source.above(self.loop) if isinstance(entry, Block)]
        found = [entry for block in way for entry in block.body if self.early(entry) or block is not way[-1]]
        return name in parameters(self.scope) or any(
            _surely(entry, name) for entry in found if not self.source.inside(self.loop, entry)
        )

    def maker(self, name: str) -> str:
        """The full name of what is called for a name's value."""
        return self.source.called(self.value(name))

    def runs(self, node: cst.CSTNode) -> bool:
        """Whether the loop comes to it."""
        return any(self.source.inside(node, place) for place in self.reach)

    def alike(self, node: cst.CSTNode) -> bool:
        """Whether what an expression of a loop reads is the same on every rank: counters, and what no loop assigns."""
        loops = [entry for entry in self.source.above(node) if isinstance(entry, Loop)]
        counters = {name for loop in loops for name in counted_by(self.source, loop)}
        stores = [
            entry for entry in self.source.stores(self.source.scope(node)) if self.source.inside(entry[2], loops[-1])
        ]
        changed = {name for name, _, statement in stores if not is_count(self.source, statement)} - counters
        return not any(entry.value in changed for entry in names(node))


def _surely(statement: cst.CSTNode, name: str) -> bool:
    """Whether it binds, or reads, a name under no condition: behind it there is a value."""
    if not isinstance(statement, (cst.SimpleStatementLine, cst.With)):
        return False
    return any(bound == name for n in walk(statement) for bound, _, _ in bindings(n)) or any(names(statement, name))


def is_count(source: Source, node: cst.CSTNode) -> bool:
    """Whether it counts the rounds of a loop: under no condition, which may hold on one rank alone."""
    around = next((entry for entry in source.above(node) if isinstance(entry, (cst.If, cst.Try, Loop))), None)
    return isinstance(node, cst.AugAssign) and isinstance(node.value, cst.Integer) and isinstance(around, Loop)


def counted_by(source: Source, loop: cst.CSTNode) -> list[str]:
    """The number that a loop gives: of range(), or of enumerate()."""
    if not isinstance(loop, cst.For):
        return []
    target: cst.BaseExpression = loop.target
    if isinstance(target, cst.Tuple) and "enumerate" in code(loop.iter):
        target = target.elements[0].value
    return [code(target)] if target is not loop.target or range_of(source, loop) is not None else []


def range_of(source: Source, loop: cst.For) -> cst.Call | None:
    """The range() that it goes over, perhaps with a bar around it."""
    found: cst.BaseExpression = loop.iter
    while isinstance(found, cst.Call) and found.args and re.search(BAR, source.called(found)):
        found = found.args[0].value
    return found if isinstance(found, cst.Call) and source.called(found) == "range" else None


def over_data(source: Source, loop: Loop) -> bool:
    return isinstance(loop, cst.For) and range_of(source, loop) is None


def nested(source: Source, node: cst.CSTNode, calls: tuple[cst.Call, ...] = ()) -> Iterator[Pass]:
    """Loops that train, the outermost ones below a node, also in functions that are called there."""
    for child in node.children:
        if isinstance(child, Loop) and source.trains(child):
            yield Pass(child, calls)
            continue
        called = source.function(child) if isinstance(child, cst.Call) and len(calls) < 8 else None
        if isinstance(child, cst.Call) and called and source.trains(called):
            yield from nested(source, called, (*calls, child))
        yield from nested(source, child, calls)


def begin(source: Source) -> Change:
    """With the loop that becomes the job's. Raises ElasticError where there is none."""
    loops = [node for node in source.nodes if isinstance(node, Loop) and source.trains(node)]
    below = {id(entry.node) for loop in loops for entry in nested(source, loop)}
    outer = [loop for loop in loops if id(loop) not in below]
    found = [(loop, list(nested(source, loop))) for loop in outer if not over_data(source, loop)]
    by_hand, path = "by hand: docs/how-to/make-a-script-elastic.md", source.path
    if outer and not found:
        line = f"line {source.line(outer[0])} of {path}"
        raise ElasticError(f"{line} goes over its data once; accepted: `for epoch in range(1):` around it")
    if not found:
        wanted = "accepted: `for ... in range(...)` around the training, in this file"
        raise ElasticError(f"{path} has no loop over epochs that comes to a backward(); {wanted}")
    loop, inner = min(found, key=lambda e: (not any(over_data(source, i.node) for i in e[1]), source.line(e[0])))
    line, passes = f"line {source.line(loop)} of {path}", [e for e in inner if over_data(source, e.node)]
    if any(over_data(source, deep.node) for e in inner if e not in passes for deep in nested(source, e.node)):
        raise ElasticError(f"{line} trains again and again, around a loop over epochs; accepted: one training in a run")
    if holder := next((entry for entry in source.above(loop) if isinstance(entry, cst.ClassDef)), None):
        raise ElasticError(f"{line} has its loop in {holder.name.value}; accepted: a loop in a function; {by_hand}")
    if not passes:
        raise ElasticError(f"{line} goes over iterations, and how they are shared out is not seen; {by_hand}")
    if isinstance(loop, cst.While):
        raise ElasticError(f"{line} goes over epochs with while; accepted: `for epoch in range(n)`")
    return Change(source, Edits(source), loop, passes)
