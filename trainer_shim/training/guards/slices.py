"""By which variables of a script its next step is another one: a slice of its source, backwards from what trains
(backward(), step(), rates, the end of the loop) to the head of the loop that is under way.

What is only logged, or names a file, is in no slice. Limits: functions of the script are followed by their names, three
deep; lists and objects count as a whole; `match` is not looked into.
"""

import ast
import functools
import linecache
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any

from .script_frames import is_code_of_script

TRAINS = {"backward", "step", "step_update", "stop", "set_epoch"}
"""Methods by whose arguments a training is another one; by what the first one is called of, too."""
SEEDS = {"manual_seed", "seed"}
RATES = {"lr", "weight_decay", "momentum", "betas", "param_groups"}
NO_PLACE = {"rank", "world_size", "device", "log", "share", "batch"}
"""Of a job, what does not say how far the training is."""
LOGS = {"print", "log", "debug", "info", "warning", "add_scalar", "add_scalars", "set_postfix", "set_description"}
PURE = {"float", "int", "len", "list", "max", "min", "round", "sum"}
DEPTH = 3
APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def is_product(value: Any) -> bool:
    """Whether it is of this product."""
    return str(type(value).__module__).startswith("slurm_elastic.")


def at_head(frame: FrameType) -> set[str]:
    """Variables, "name" or "object.attribute", by which the next turn of a loop under way trains, but for those that
    are made of how far the training is."""
    if (tree := _tree(frame.f_code)) is None:
        return set()
    try:
        return _at_head(tree, {**frame.f_globals, **frame.f_locals}, frame.f_lineno)
    except Exception:  # a source of a form that is not known here; no training ends by that
        return set()


def _at_head(tree: Any, values: Mapping[str, Any], line: int) -> set[str]:
    found = _Slice(values, DEPTH)
    found.block(tree.body, set(), None)
    around = [live for loop, live in found.heads.items() if loop.lineno <= line <= (loop.end_lineno or line)]
    assigned = {_key(target) for node in ast.walk(tree) for target in _targets(node)}
    fixed = {name for name, value in values.items() if isinstance(value, (int, float)) and name not in assigned}
    return set[str]().union(*around) - _placed(tree, values) - fixed  # a rank that a function is given, say


def only_logged(file: str, name: str) -> bool:
    """Whether all that a script does with a variable is to make it of what it was, and to log it, or what is made of
    it."""
    tree, names, before = _parsed(file), {name}, set[str]()
    while names != before:
        before = set(names)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Assign, ast.AugAssign)) and _names(node.value) & names:
                names.update(map(_key, _targets(node)))
    return bool(tree.body) and not _uses(tree, names)


def _uses(node: ast.AST, names: set[str]) -> bool:
    called = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
    if called in LOGS:
        return False
    if isinstance(node, (ast.Assign, ast.AugAssign)) and names.issuperset(map(_key, _targets(node))):
        calls = [
            part for part in ast.walk(node.value) if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
        ]
        return any(_names(call) & names and _key(call.func) not in PURE for call in calls)
    if isinstance(node, ast.Name):
        return node.id in names and isinstance(node.ctx, ast.Load)
    return any(_uses(child, names) for child in ast.iter_child_nodes(node))


@functools.lru_cache(maxsize=64)
def _parsed(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


@functools.lru_cache(maxsize=64)
def _tree(code: CodeType) -> Any:
    """The module, or the function, that a code is of; None where its source is not to be had."""
    tree = _parsed(code.co_filename)
    if code.co_name == "<module>":
        return tree
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == code.co_name]
    return {min([node.lineno, *(e.lineno for e in node.decorator_list)]): node for node in found}.get(
        code.co_firstlineno
    )


def _walk(node: ast.AST | None) -> list[ast.AST]:
    """All of it but for what functions and classes that are made there do."""
    children = ast.iter_child_nodes(node) if node is not None else ()
    return (
        [node, *(part for child in children if not isinstance(child, APART) for part in _walk(child))] if node else []
    )


def _key(node: ast.AST) -> str:
    """Of a variable, or of an attribute of one."""
    while isinstance(node, (ast.Subscript, ast.Starred, ast.Attribute)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return f"{node.value.id}.{node.attr}"
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.AST | None) -> set[str]:
    """Variables that an expression reads."""
    if node is None or isinstance(node, ast.Lambda):
        return set()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _names(node.func.value).union(*map(_names, [*node.args, *node.keywords]))
    if isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return {_key(node)}
    return set[str]().union(*map(_names, ast.iter_child_nodes(node)))


def _targets(node: Any) -> list[ast.expr]:
    single = isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.NamedExpr))
    found = [node.target] if single else node.targets if isinstance(node, ast.Assign) else []
    return [leaf for entry in found for leaf in (entry.elts if isinstance(entry, (ast.Tuple, ast.List)) else [entry])]


def _hit(key: str, live: Iterable[str]) -> set[str]:
    """Those that are this variable, a part of it, or what it is a part of."""
    return {name for name in live if f"{name}.".startswith(f"{key}.") or f"{key}.".startswith(f"{name}.")}


def _sets_rate(node: ast.AST) -> bool:
    parts = [part for target in _targets(node) for part in ast.walk(target)]
    return any(getattr(part, "attr", getattr(part, "value", None)) in RATES for part in parts)


class _Slice:
    """Of one function. heads: of each loop what is live where its next turn begins."""

    def __init__(self, values: Mapping[str, Any], depth: int) -> None:
        self._values, self._depth = values, depth
        self.heads: dict[Any, set[str]] = {}

    def block(self, body: Iterable[Any], live: set[str], loop: Any) -> set[str]:
        """What is live before these statements, by what is behind them. loop: the innermost one, with what is live
        behind it."""
        for node in [*body][::-1]:
            if not isinstance(node, APART):
                live = self._before(node, set(live), loop)
        return live

    def _before(self, node: Any, live: set[str], loop: Any) -> set[str]:
        if isinstance(node, (ast.For, ast.While)):
            return self._loop(node, live)
        if isinstance(node, ast.If):
            inside = self.block(node.body, live, loop) | self.block(node.orelse, live, loop)
            return inside | (self.read(node.test) if self._decides(node, live, loop) else self.needed(node.test))
        if isinstance(node, (ast.Break, ast.Continue)) and loop is not None:
            return set(loop[1] if isinstance(node, ast.Break) else self.heads[loop[0]])
        if isinstance(node, ast.Return):
            return self.needed(node)
        for inner in ("finalbody", "orelse", "handlers", "body"):  # of with and try
            live = self.block(getattr(node, inner, ()), live, loop)
        return self._assigned(node, live) | (set() if hasattr(node, "body") else self.needed(node))

    def _assigned(self, node: Any, live: set[str]) -> set[str]:
        targets, value, found = _targets(node), getattr(node, "value", None), set[str]()
        sources: list[Any] = value.elts if isinstance(value, ast.Tuple) else []
        sources = sources if len(sources) == len(targets) else [value] * len(targets)
        for target, source in zip(targets, sources, strict=True):
            key = _key(target)
            if _hit(key, live) or _sets_rate(node):
                found |= self.read(source)
            if not isinstance(node, ast.AugAssign) and not isinstance(target, ast.Subscript):
                live = {name for name in live if not f"{name}.".startswith(f"{key}.")}
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not targets:
            key = _key(value.func.value)
            if value.func.attr in SEEDS:
                live = live - {key}
            elif _hit(key, live):  # changed in place, perhaps
                found |= self.read(value)
        return live | found

    def _loop(self, node: Any, live: set[str]) -> set[str]:
        of = node.iter if isinstance(node, ast.For) else node.test
        targets = {_key(target) for target in _targets(node)}
        head: set[str] | None = None
        found = set(live)
        while found != head:
            self.heads[node] = head = found
            found = head | self.block(node.body, head, (node, live)) | self.needed(of)
            taken = {name for name in found if name.partition(".")[0] in targets}
            if taken or self._decides(node, head, None):
                found |= self.read(of)
            found -= taken
        return found

    def _decides(self, node: Any, live: set[str], loop: Any) -> bool:
        """Whether what trains, or makes what is live, depends on this condition."""
        parts = _walk(node)
        if loop is not None and any(isinstance(part, (ast.Break, ast.Continue, ast.Return)) for part in parts):
            parts += _walk(loop[0])
        calls = [part for part in parts if isinstance(part, ast.Call)]
        assigned = any(_hit(_key(target), live) for part in _walk(node) for target in _targets(part))
        return assigned or any(map(_sets_rate, parts)) or any(self._trains(call)[0] for call in calls)

    def read(self, node: ast.AST | None) -> set[str]:
        """Variables that an expression, and functions called in it, read."""
        found = _names(node) | self.needed(node)
        for call in _walk(node):
            function, receiver = self._function(call)
            for name in function.__code__.co_names if function else ():
                if receiver or type(function.__globals__.get(name)) in (int, float):
                    found.add(f"{receiver}.{name}" if receiver else name)
        return found

    def needed(self, node: ast.AST | None) -> set[str]:
        """Variables that what trains in an expression, or a statement, goes by."""
        found, parts = set[str](), _walk(node)
        for part in parts:
            found |= self._trains(part)[1]
            decides = [part.test] if isinstance(part, ast.IfExp) else []
            decides += part.values[:-1] if isinstance(part, ast.BoolOp) else []
            if decides and any(self._trains(one)[0] for one in _walk(part)):
                found |= set[str]().union(*map(_names, decides))
        return found

    def _trains(self, call: Any) -> tuple[bool, set[str]]:
        if not isinstance(call, ast.Call):
            return False, set()
        if isinstance(call.func, ast.Attribute) and call.func.attr in TRAINS:
            told = [*call.args, *call.keywords, *([call.func.value] if call.func.attr == "backward" else [])]
            return True, set[str]().union(*map(self.read, told))
        function, receiver = self._function(call)
        if function is None:
            return False, set()
        trains, live = _entry(function, self._depth)
        code, found = function.__code__, set[str]()
        names = code.co_varnames[bool(receiver) : code.co_argcount + code.co_kwonlyargcount]
        given = dict[Any, ast.AST](zip(names, call.args, strict=False))
        given |= {word.arg: word.value for word in call.keywords}
        for name in live:
            root, _, part = name.partition(".")
            if root in given:
                found |= self.read(given[root])
            elif root == "self" and receiver:
                found.add(f"{receiver}.{part}")
            elif root in function.__globals__ and root not in names:
                found.add(name)
        return trains, found

    def _function(self, call: Any) -> tuple[Any, str]:
        """The script's function that is called, and the variable of whose object it is; None: any other."""
        value, receiver = None, ""
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            value = self._values.get(call.func.id)
        elif isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            receiver = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
            value = getattr(type(self._values.get(receiver)), call.func.attr, None)
        known = (
            self._depth
            and isinstance(value, FunctionType)
            and is_code_of_script(value.__module__, value.__code__.co_filename)
        )
        return (value, receiver) if known else (None, "")


@functools.lru_cache(maxsize=256)
def _entry(function: FunctionType, depth: int) -> tuple[bool, frozenset[str]]:
    """Whether a function trains, and by which of its parameters and of other variables."""
    if (tree := _tree(function.__code__)) is None:
        return False, frozenset()
    found = _Slice(function.__globals__, depth - 1)
    return found._decides(tree, set(), None), frozenset(found.block(tree.body, set(), None))


def _placed(tree: ast.AST, values: Mapping[str, Any]) -> set[str]:
    """Variables that are assigned how far the training is, or what is made of such; not of what they were."""
    found, before = set[str](), {""}
    while found != before:
        before = set(found)
        for node in _walk(tree):
            targets = {_key(target) for target in _targets(node)}
            value = getattr(node, "iter", getattr(node, "value", None)) if targets else None
            names = _names(value)
            said = any(_says_place(part, values) for part in _walk(value)) or names & found
            if said and not targets & names and not isinstance(node, ast.AugAssign):
                found |= targets
    return found


def _says_place(node: ast.AST, values: Mapping[str, Any]) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return is_product(values.get(node.value.id)) and node.attr not in NO_PLACE
    return isinstance(node, ast.Name) and (node.id == "enumerate" or hasattr(type(values.get(node.id)), "done"))
