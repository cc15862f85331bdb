"""What a training script is made of: its loop, models, optimizers, loaders, and what it asks torch.distributed.

Found by the syntax alone. Limit: what a name is bound to is looked up in the loop's own function, calls in the file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.While
TORCHRUN = re.compile(r"\b(?:ddp|is_ddp|distributed|is_distributed|use_ddp|world_size|RANK|LOCAL_RANK)\b")
"""In a condition: it holds under torchrun, and not under `selastic run`."""


class Script:
    """See the module."""

    def __init__(self, text: str, name: str) -> None:
        self.tree = ast.parse(text, name)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.aliases = dict(self._imports())
        self.functions = {n.name: n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef)}
        self._trains: dict[str, bool] = {}

    def _imports(self) -> Iterator[tuple[str, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for entry in node.names:
                    yield (entry.asname, entry.name) if entry.asname else (entry.name.split(".")[0],) * 2
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for entry in node.names:
                    yield entry.asname or entry.name, f"{node.module}.{entry.name}"

    def full_name(self, node: ast.expr | None) -> str:
        """a.b.c with the first part as it was imported; "" for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.aliases.get(node.id, node.id), *reversed(parts)])

    def calls(self, within: ast.AST, *ends: str) -> Iterator[ast.Call]:
        """Calls of functions whose name ends so."""
        for node in ast.walk(within):
            if isinstance(node, ast.Call):
                name = self.full_name(node.func)
                if any(name == end or name.endswith(f".{end}") for end in ends):
                    yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that it is a part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements that it stands among."""
        parent = self.parents[statement]
        blocks = (getattr(parent, name, []) for name in ("body", "orelse", "finalbody"))
        return next(block for block in blocks if isinstance(block, list) and statement in block)

    def scope(self, node: ast.AST) -> Scope:
        """The function that it stands in, or the module."""
        while not isinstance(node, Scope):
            node = self.parents[node]
        return node

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def at_top(self, node: ast.AST, scope: Scope) -> ast.stmt:
        """The statement of the scope's own block that it is in."""
        while self.parents[node] is not scope:
            node = self.parents[node]
        assert isinstance(node, ast.stmt)
        return node

    def for_torchrun(self, node: ast.AST) -> ast.If | None:
        """The condition behind which it stands, where that holds under torchrun only."""
        for child, parent in zip([node, *self.above(node)], self.above(node), strict=False):
            if isinstance(parent, ast.If) and child in parent.body and TORCHRUN.search(ast.unparse(parent.test)):
                return parent
        return None

    # -- the loop ------------------------------------------------------------------------------------------------

    def trains(self, node: ast.AST) -> bool:
        """Whether it comes to a backward pass, perhaps in a function of this file."""
        for call in ast.walk(node):
            if isinstance(call, ast.Call):
                called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                if called == "backward" or self._function_trains(called):
                    return True
        return False

    def _function_trains(self, name: str) -> bool:
        if name not in self.functions:
            return False
        if name not in self._trains:
            self._trains[name] = False  # it may call itself
            self._trains[name] = self.trains(self.functions[name])
        return self._trains[name]

    def over_data(self, node: ast.AST) -> bool:
        """Whether there is a loop inside over something else than numbers, that trains."""
        for inner in ast.walk(node):
            if inner is not node and isinstance(inner, ast.For) and not self.counts(inner) and self.trains(inner):
                return True
            if isinstance(inner, ast.Call):
                called = inner.func.attr if isinstance(inner.func, ast.Attribute) else getattr(inner.func, "id", "")
                function = self.functions.get(called)
                trains = function is not None and self._function_trains(called)
                if function is not None and trains and node not in ast.walk(function) and self.over_data(function):
                    return True
        return False

    def counts(self, loop: ast.AST) -> bool:
        """Whether it is `for ... in range(...)`, perhaps with a bar around it."""
        return isinstance(loop, ast.For) and self.range_of(loop) is not None

    def range_of(self, loop: ast.For) -> ast.Call | None:
        found: ast.expr = loop.iter
        while isinstance(found, ast.Call) and self.full_name(found.func) != "range":
            if not found.args or not re.search(r"tqdm|trange|track", self.full_name(found.func)):
                return None
            found = found.args[0]
        return found if isinstance(found, ast.Call) else None

    def loops(self) -> list[Loop]:
        """Outermost loops that train, those over epochs first."""
        found = [
            loop
            for loop in ast.walk(self.tree)
            if isinstance(loop, Loop)
            and self.trains(loop)
            and not any(isinstance(outer, Loop) and self.trains(outer) for outer in self.above(loop))
        ]
        chosen = [loop for loop in found if isinstance(loop, ast.While) or self.counts(loop)]
        return sorted(chosen, key=lambda loop: (not self.over_data(loop), loop.lineno))

    # -- names ---------------------------------------------------------------------------------------------------

    def assigned(self, scope: Scope) -> Iterator[tuple[str, ast.expr, ast.stmt]]:
        """name = value, in this scope alone, one by one; `a.b` counts as a name."""
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and self.scope(self.parents[node]) is scope:
                for target in node.targets:
                    if isinstance(target, (ast.Name, ast.Attribute)):
                        yield ast.unparse(target), node.value, node
                    elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        for one, value in zip(target.elts, node.value.elts, strict=False):
                            yield ast.unparse(one), value, node

    def used(self, name: str, within: ast.AST, but: ast.AST | None = None) -> bool:
        """Whether a name is read somewhere, outside of `but`."""
        left_out = set(ast.walk(but)) if but is not None else set()
        return any(
            isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load) and node not in left_out
            for node in ast.walk(within)
        )
