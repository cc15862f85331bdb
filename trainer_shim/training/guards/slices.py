"""By which variables of a script its next step is another one: a slice of its source, backwards from what trains
(backward(), step(), rates, the end of the loop) to the head of the loop that is under way.

What is only logged, or names a file, is in no slice. Limits: functions and methods of the script are followed by their
names, three deep; lists count as a whole.
"""

import ast
import functools
import inspect
import linecache
from collections.abc import Callable, Collection, Iterable, Mapping
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from .script_frames import is_code_of_script, is_of_script, variables

TRAINS = {"backward", "step", "step_update", "stop", "set_epoch"}
"""Methods by whose arguments a training is another one; by what the first one is called of, too."""
SEEDS = {"manual_seed", "seed"}
RATES = {"lr", "weight_decay", "momentum", "betas", "param_groups"}
NO_PLACE = {"rank", "world_size", "device", "log", "share", "batch"}
"""Of a job, what does not say how far the training is."""
LOGS = {"print", "log", "debug", "info", "warning", "add_scalar", "add_scalars", "set_postfix", "set_description"}
CHECKS = {"isfinite", "isinf", "isnan"}
"""What goes by these alone trains, or has failed."""
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
        return _at_head(tree, {**frame.f_globals, **variables(frame)}, frame.f_lineno)
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


def _names(node: ast.AST | None, made_by: Callable[[ast.Call], set[str] | None] = lambda _: None) -> set[str]:
    """Variables that an expression reads. made_by: what the result of a call is made of; None: of all that it has."""
    if node is None or isinstance(node, ast.Lambda):
        return set()
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.Call):
        if getattr(node.func, "attr", getattr(node.func, "id", "")) in CHECKS:
            return set()
        if (found := made_by(node)) is not None:
            return found
        if isinstance(node.func, ast.Attribute):
            children = [node.func.value, *node.args, *node.keywords]
    elif isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return {_key(node)}
    return set[str]().union(*(_names(child, made_by) for child in children))


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

    def __init__(
        self, values: Mapping[str, Any], depth: int, kinds: Any = None, out: Collection[str] = (), result: bool = False
    ) -> None:
        """kinds: of the object that a method is of (_kinds). out: what is live behind the function; result: what it
        returns is."""
        self._values, self._depth, self._kinds, self._out, self._result = values, depth, kinds, out, result
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
            return self._called(node, {*self._out}) | (self.read(node) if self._result else self.needed(node))
        if isinstance(node, ast.Match):
            inside = live.union(*(self.block(case.body, live, loop) for case in node.cases))
            decides = self._decides(node, live, loop)
            return inside | (self.read(node.subject) if decides else self.needed(node.subject))
        if isinstance(node, ast.Try):
            behind = self.block(node.finalbody, live, loop)
            handled = set[str]().union(*(self.block(one.body, behind, loop) for one in node.handlers))
            return handled | self.block(node.body, handled | self.block(node.orelse, behind, loop), loop)
        live = self.block(getattr(node, "body", ()), live, loop)  # of with
        live = self._assigned(node, live)
        return live if hasattr(node, "body") else self._called(node, live) | self.needed(node)

    def _called(self, node: Any, live: set[str]) -> set[str]:
        """What is live before the function that a statement calls."""
        call = getattr(node, "value", None)
        return self._through(call, live)[1] if isinstance(call, ast.Call) and self._function(call)[0] else live

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
            elif _hit(key, live) and not self._function(value)[0]:  # changed in place, perhaps
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
        changes = any(self._function(call)[0] and self._through(call, live, changes=True)[0] for call in calls)
        return assigned or changes or any(map(_sets_rate, parts)) or any(self._trains(call)[0] for call in calls)

    def read(self, node: ast.AST | None) -> set[str]:
        """Variables that an expression, and functions called in it, read."""
        return _names(node, self._made_by) | self.needed(node)

    def _made_by(self, call: ast.Call) -> set[str] | None:
        if self._function(call)[0]:
            return self._through(call, set(), result=True)[1]
        receiver, name = _key(getattr(call.func, "value", call)), getattr(call.func, "attr", "")
        kind = self._kinds_of(receiver)[0]
        if not is_of_script(kind.__module__) or hasattr(kind, name):
            return None
        return {f"{receiver}.{name}"}.union(*map(self.read, [*call.args, *call.keywords]))  # what it holds is called

    def _kinds_of(self, name: str) -> Any:
        root, _, part = name.partition(".")
        kinds = self._kinds if root == "self" and self._kinds else _kinds(self._values.get(root))
        return (dict(kinds[1]).get(part, object), ()) if part else kinds

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
        known = self._function(call)[0]
        trains, found = self._through(call, set()) if known else (False, set[str]())
        if not trains and isinstance(call.func, ast.Attribute) and call.func.attr in TRAINS:
            words = [word for word in call.keywords if call.func.attr != "step_update" or word.arg != "metric"]
            told = [*call.args, *words, *([call.func.value] if call.func.attr == "backward" else [])]
            return True, set[str]().union(*map(self.read, told))
        return trains, found

    def _through(
        self, call: ast.Call, live: set[str], result: bool = False, changes: bool = False
    ) -> tuple[bool, set[str]]:
        """Whether a function of the script that is called trains, or changes what is live; and what is live before it,
        by what is behind it. result: by what it returns, too."""
        function, receiver, kinds = self._function(call)
        code, first = function.__code__, function.__code__.co_varnames[:1] if receiver else ("",)
        mine, own = first[0] if first else "", code.co_varnames
        inside = {
            name: f"{mine}{name[len(receiver) :]}" if receiver and f"{name}.".startswith(f"{receiver}.") else name
            for name in live
        }
        inside = {name: other for name, other in inside.items() if other != name or name.partition(".")[0] not in own}
        trains, before, assigned = _entry(function, self._depth, kinds, frozenset(inside.values()), result)
        if changes:
            return any(_hit(key, inside.values()) for key in assigned), set()
        names = own[bool(receiver) : code.co_argcount + code.co_kwonlyargcount]
        given = dict[Any, ast.AST](zip(names, call.args, strict=False))
        given |= {word.arg: word.value for word in call.keywords}
        found = {name for name in live if name not in inside or inside[name] in before}
        for name in before - set(inside.values()):
            root, dot, part = name.partition(".")
            if root in given:
                other = given[root]
                found |= {f"{other.id}{dot}{part}"} if isinstance(other, ast.Name) else self.read(other)
            elif root == mine:
                found.add(f"{receiver}{dot}{part}")
            elif root not in own and (root in function.__globals__ or root in code.co_freevars):
                found.add(name)
        return trains, found

    def _function(self, call: Any) -> tuple[Any, str, Any]:
        """The script's function that is called, the variable of whose object it is, and that one's class; None: any
        other."""
        value, receiver, name = None, "", ""
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            value = self._values.get(call.func.id)
            if not isinstance(value, (type, FunctionType)):
                receiver, name = call.func.id, "__call__"
        elif isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            receiver, name = _key(call.func.value) if _is_variable(call.func.value) else "", call.func.attr
            if name in dict(self._kinds_of(receiver)[1]):  # an object that an object has
                receiver, name = f"{receiver}.{name}", "__call__"
        kinds = self._kinds_of(receiver)
        if isinstance(module := self._values.get(receiver), ModuleType):
            value, receiver = vars(module).get(name), ""
        elif receiver:
            value = getattr(kinds[0], name, None)
            receiver = "" if isinstance(inspect.getattr_static(kinds[0], name, None), staticmethod) else receiver
        value = inspect.unwrap(value) if isinstance(value, FunctionType) else None  # of torch.no_grad(), say
        known = (
            self._depth
            and isinstance(value, FunctionType)
            and not value.__code__.co_flags & inspect.CO_GENERATOR
            and is_code_of_script(value.__module__, value.__code__.co_filename)
            and _tree(value.__code__) is not None
        )
        return (value, receiver, kinds) if known else (None, "", None)


def _kinds(value: Any) -> tuple[Any, tuple[tuple[str, Any], ...]]:
    """The class of an object, and of the script's own objects that one of the script's has."""
    kind, of = type(value), is_of_script(type(value).__module__) and not isinstance(value, type)
    held = getattr(value, "__dict__", {}) if of else {}
    return kind, tuple((key, type(one)) for key, one in held.items() if is_of_script(type(one).__module__))


def _is_variable(node: ast.AST) -> bool:
    """A name, or an attribute of one."""
    return isinstance(node.value if isinstance(node, ast.Attribute) else node, ast.Name)


@functools.lru_cache(maxsize=1024)
def _entry(
    function: FunctionType, depth: int, kinds: Any, out: frozenset[str], result: bool
) -> tuple[bool, frozenset[str], frozenset[str]]:
    """Whether a function trains; its parameters, and other variables, that are live before it; and what it assigns."""
    tree = _tree(function.__code__)
    found = _Slice(function.__globals__, depth - 1, kinds, out, result)
    live = frozenset(found.block(tree.body, {*out}, None))
    return found._decides(tree, set(), None), live, frozenset(_key(t) for part in _walk(tree) for t in _targets(part))


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
    if isinstance(node, ast.Attribute) and _is_variable(node.value):
        root, _, part = _key(node.value).partition(".")
        value = values.get(root)
        value = getattr(value, "__dict__", {}).get(part) if part else value
        return is_product(value) and node.attr not in NO_PLACE
    return isinstance(node, ast.Name) and (node.id == "enumerate" or hasattr(type(values.get(node.id)), "done"))
