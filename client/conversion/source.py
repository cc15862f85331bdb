"""A training script as a syntax tree: names, calls, functions, where a name gets its values.

Promise: it is parsed, and not run. Limit: one file, and not the modules that it imports; a method is known by its name.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from slurm_elastic.protocol.errors import ElasticError

Loop = cst.For | cst.While
Scope = cst.Module | cst.FunctionDef
Block = cst.Module | cst.IndentedBlock
Binding = tuple[str, cst.BaseExpression | None, cst.CSTNode]
"""A name, the value that it is given where that has an expression of its own, and what gives it."""


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and all below it, in the order of the text."""
    yield node
    for child in node.children:
        yield from walk(child)


def code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node).strip()


def arguments(call: cst.Call) -> dict[str, cst.BaseExpression]:
    """By keyword, or "0", "1", ...; * and ** under those names."""
    return {
        entry.keyword.value if entry.keyword else entry.star or str(number): entry.value
        for number, entry in enumerate(call.args)
    }


def names(node: cst.CSTNode, name: str = "") -> Iterator[cst.Name]:
    """Variables, or those of one name: not attributes, nor keywords of calls."""
    if isinstance(node, cst.Name) and name in ("", node.value):
        yield node
    left_out = node.attr if isinstance(node, cst.Attribute) else node.keyword if isinstance(node, cst.Arg) else None
    for child in node.children:
        if child is not left_out:
            yield from names(child, name)


def bindings(node: cst.CSTNode) -> Iterator[Binding]:
    """What one statement or expression binds; `a.b` counts as a name."""
    pairs: list[tuple[cst.BaseExpression, cst.BaseExpression | None]] = []
    if isinstance(node, cst.Assign):
        pairs = [(entry.target, node.value) for entry in node.targets]
    elif isinstance(node, (cst.AnnAssign, cst.NamedExpr)):
        pairs = [(node.target, node.value)] if node.value is not None else []
    elif isinstance(node, (cst.AugAssign, cst.For)):
        pairs = [(node.target, None)]
    elif isinstance(node, cst.AsName):
        pairs = [(node.name, None)]
    while pairs:
        target, value = pairs.pop(0)
        if isinstance(target, (cst.Tuple, cst.List)):
            own = [e.value for e in value.elements] if isinstance(value, (cst.Tuple, cst.List)) else []
            same = len(own) == len(target.elements)
            pairs[:0] = [(e.value, own[n] if same else None) for n, e in enumerate(target.elements)]
        elif isinstance(target, (cst.Name, cst.Attribute)):
            yield code(target), value, node


def parameters(function: cst.CSTNode) -> list[str]:
    found = walk(function.params) if isinstance(function, cst.FunctionDef) else ()
    return [entry.name.value for entry in found if isinstance(entry, cst.Param)]


def handed(function: cst.CSTNode, call: cst.Call) -> dict[str, cst.BaseExpression]:
    """What each parameter of a function is given by a call."""
    own = parameters(function)
    own = own[1:] if own[:1] == ["self"] else own
    given = arguments(call)
    return given | {name: given[str(number)] for number, name in enumerate(own) if str(number) in given}


class Source:
    def __init__(self, text: str, path: Path) -> None:
        self.path = path
        try:
            wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        except (cst.ParserSyntaxError, ValueError, RecursionError) as error:
            line = f"line {error.raw_line}" if isinstance(error, cst.ParserSyntaxError) else str(error)
            raise ElasticError(f"{path} is no Python program: {line}") from None
        self.module = wrapper.module
        self.parents = dict(wrapper.resolve(ParentNodeProvider))
        self._positions = wrapper.resolve(PositionProvider)
        self.nodes = list(walk(self.module))
        self.aliases = dict(self._imports())
        self.functions = {node.name.value: node for node in self.nodes if isinstance(node, cst.FunctionDef)}
        self.classes = {node.name.value: node for node in self.nodes if isinstance(node, cst.ClassDef)}
        self._trains: dict[cst.CSTNode, bool] = {}
        self._bindings = [entry for node in self.nodes for entry in bindings(node)]

    def _imports(self) -> Iterator[tuple[str, str]]:
        for node in self.nodes:
            if isinstance(node, cst.Import):
                for entry in node.names:
                    whole = code(entry.name)
                    yield (code(entry.asname.name), whole) if entry.asname else (whole.split(".")[0],) * 2
            elif isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar):
                module = f"{code(node.module)}." if node.module else ""
                for entry in node.names:
                    yield code(entry.asname.name if entry.asname else entry.name), f"{module}{code(entry.name)}"

    def line(self, node: cst.CSTNode) -> int:
        return self._positions[node].start.line if node in self._positions else 1

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def inside(self, node: cst.CSTNode, outer: cst.CSTNode | None) -> bool:
        return node is outer or any(entry is outer for entry in self.above(node))

    def scope(self, node: cst.CSTNode) -> Scope:
        """The function that it stands in, or the module."""
        return next(entry for entry in self.above(node) if isinstance(entry, Scope))

    def binds(self, node: cst.CSTNode) -> bool:
        """Whether a name is bound here, and not read."""
        parent = self.parents[node]
        while isinstance(parent, (cst.Tuple, cst.List, cst.Element)):
            node, parent = parent, self.parents[parent]
        stores = isinstance(parent, (cst.For, cst.AugAssign, cst.AnnAssign, cst.NamedExpr)) and node is parent.target
        return stores or isinstance(parent, (cst.AssignTarget, cst.Param, cst.AsName, cst.FunctionDef, cst.NameItem))

    def statement(self, node: cst.CSTNode) -> cst.BaseStatement:
        """The statement of a block that it is a part of."""
        chain = [node, *self.above(node)]
        return next(e for e, above in pairwise(chain) if isinstance(e, cst.BaseStatement) and isinstance(above, Block))

    def full_name(self, node: cst.CSTNode) -> str:
        """a.b.c with the first part as it was imported; `.c` where something else has it."""
        parts: list[str] = []
        while isinstance(node, cst.Attribute):
            parts.insert(0, node.attr.value)
            node = node.value
        first = self.aliases.get(node.value, node.value) if isinstance(node, cst.Name) else ""
        return ".".join([first, *parts])

    def called(self, call: cst.CSTNode | None) -> str:
        """The full name of what is called; "" for no call."""
        return self.full_name(call.func) if isinstance(call, cst.Call) else ""

    def calls(self, within: cst.CSTNode, pattern: str) -> list[cst.Call]:
        """Calls of what has such a full name."""
        return [node for node in walk(within) if isinstance(node, cst.Call) and re.search(pattern, self.called(node))]

    def stores(self, scope: cst.CSTNode) -> list[Binding]:
        """What a function, or the module, binds itself; or any other node and all below it."""
        if isinstance(scope, Scope):
            return [entry for entry in self._bindings if self.scope(entry[2]) is scope]
        return [entry for entry in self._bindings if self.inside(entry[2], scope)]

    def function(self, call: cst.Call) -> cst.FunctionDef | None:
        """The function of the script that is called; a method by its name alone."""
        module, _, last = self.called(call).rpartition(".")
        if (found := self.functions.get(last)) is None or module in self.aliases.values():
            return None
        method = isinstance(self.parents.get(self.parents[found]), cst.ClassDef)
        return found if method == isinstance(call.func, cst.Attribute) else None

    def callers(self, function: cst.CSTNode) -> list[cst.Call]:
        return [call for call in self.calls(self.module, "") if self.function(call) is function]

    def reached(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """The node, and all functions of the script that may run in it."""
        found = [node]
        for place in found:
            called = (self.function(call) for call in self.calls(place, ""))
            found += [entry for entry in dict.fromkeys(called) if entry is not None and entry not in found]
        return found

    def trains(self, node: cst.CSTNode) -> bool:
        """Whether it comes to a backward pass, perhaps in a function."""
        if node not in self._trains:
            self._trains[node] = any(self.calls(place, r"\.backward$") for place in self.reached(node))
        return self._trains[node]
