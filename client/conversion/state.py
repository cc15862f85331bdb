"""Models, optimizers and all else that the loop goes on with: given to the job, or named.

Promise: only what certainly has a value when the loop begins is given to the job; what the loop changes besides is
named. Limit: what a call does to an object is known by its name.
"""

import re
from itertools import pairwise

import libcst as cst

from .change import Change, counted_by, is_count
from .source import Loop, Source, arguments, bindings, code, handed, names, parameters, walk

OPTIMIZER = r"(^|\.)optim\.(?!lr_scheduler|swa_utils)(\w+\.)*[A-Z]\w*$|(configure_optimizers|create_optimizer\w*)$"
OPTIMIZER += r"|^(Adam|AdamW|SGD|RMSprop|Adagrad|RAdam|NAdam|Muon)$"
SCHEDULER = r"(^|\.)lr_scheduler\.|LR$|ReduceLROnPlateau$|get_\w*schedule\w*$"
STEPS = r"(?i)(sched|plateau|warmup|prof|ema|stopp|anneal)\w*$"
"""Names of what has a step() and is no optimizer."""
AROUND = r"^(train|eval|parameters|\w+_parameters|zero_grad|\w*state_dict|to|modules|named_\w+|no_sync|\w+_)$"
"""What may be asked of a model beside its forward pass."""
PRINTS = r"(^|\.)(print|log|info|debug|warning|write|set_postfix\w*|set_description\w*|add_scalars?)$"
CHANGES = r"^(append|extend|add|update\w*|step|insert|pop|clear|push|\w+_|put|load_state_dict)$"
"""Methods that change an object."""
QUIET = r"tqdm|getLogger|parse_args|time\.\w+\(|SummaryWriter|wandb|^open\("
"""What makes objects on which no training depends."""
PLAIN = r"^-?(\d[\d_.e+-]*|float\(.*\)|(math|np|numpy|torch)\.inf|None|True|False|[\"'].*)$"


def models(change: Change) -> None:
    """Replicate what optimizers have parameters of, in place of DistributedDataParallel."""
    source = change.source
    for name, value, node in source.stores(change.scope):
        made = source.called(value) if change.early(node) else ""
        copied = made.endswith("deepcopy") and isinstance(arguments(value).get("0"), cst.Name)  # type: ignore[arg-type]
        if copied or re.search(rf"{OPTIMIZER}|{SCHEDULER}|GradScaler$|AveragedModel$", made):
            change.keep[name.split(".")[-1]] = name
        if value is not None and re.search(OPTIMIZER, made):
            own = _parameters_of(change, value)
            change.models |= dict.fromkeys(own, "")
            if not own:
                change.leave(node, f"whose parameters {name} has is not seen: job.replicate(model) before the loop")
    for call in source.calls(source.module, r"(^|\.)DistributedDataParallel$"):
        given, above = arguments(call), source.parents[call]
        inside = code(given.get("0", given.get("module", call)))
        target = code(above.targets[0].target) if isinstance(above, cst.Assign) else ""
        if target and source.scope(call) is change.scope:
            change.models.pop(inside, None)
            change.models[target] = "" if change.for_torchrun(call) else "wrapped"
        elif not change.for_torchrun(call):
            change.leave(call, "write job.replicate(model) in place of this, in the loop's function")
        if change.models.get(target) == "wrapped":
            others = [e for e in given.items() if e[0] not in ("device_ids", "output_device", "module", "0")]
            change.edits.replace(call, f"job.replicate({', '.join([inside, *(f'{k}={code(v)}' for k, v in others)])})")
    for name, wrapped in change.models.items():
        if not name.isidentifier() or not change.certain(name):
            change.leave(change.loop, f"{name} may have no value here: job.replicate() where the model has one")
        elif not wrapped:
            change.edits.before(change.loop, f"{name} = job.replicate({name})")
    for place in change.reach:
        for call in source.calls(place, r"^\w+\.\w+$"):
            model, _, method = code(call.func).partition(".")
            if model in change.models and not re.search(AROUND, method):
                change.leave(call, f"the job sees {model}'s forward pass where {model} itself is called")
    if not change.models or not any(re.search(OPTIMIZER, change.maker(name)) for name in change.keep.values()):
        change.leave(change.loop, "no optimizer of a model is seen: job.replicate(), job.keep() before the loop")


def _parameters_of(change: Change, value: cst.BaseExpression, depth: int = 0) -> list[str]:
    """Names of the models whose parameters an expression takes, perhaps by a variable."""
    found = []
    for node in walk(value):
        if isinstance(node, cst.Attribute) and re.search(
            r"^((named_)?parameters|configure_optimizers)$", node.attr.value
        ):
            root = node.value
            while isinstance(root, (cst.Attribute, cst.Subscript)):
                root = root.value
            found.append(code(root))
        if "create_optimizer" in change.source.called(node) and isinstance(node, cst.Call):
            found += [code(entry) for key, entry in arguments(node).items() if key in ("0", "model")]
    by_name = [given for name in names(value) for given, _ in change.given(name.value) if given is not None]
    return found or [model for given in by_name if depth < 2 for model in _parameters_of(change, given, depth + 1)]


# -- the steps of optimizers -------------------------------------------------------------------------------------------


def steps(change: Change) -> None:
    """One step of each optimizer for each batch, under no condition."""
    source = change.source
    for loop in [entry.node for entry in change.passes]:
        taken = _calls_of(change, loop, "step")
        if not taken:
            change.leave(loop, "no step() of an optimizer is seen here; each batch takes one")
        for call in [*taken, *_calls_of(change, loop, "zero_grad")]:
            if not _always(change, call, loop):
                sentence = f"{code(call.func)}() under a condition, or more than once: each batch takes one step"
                change.leave(call, f"{sentence}. Gradients of several batches are a larger batch")
    own = {change.loop, *(entry.node for entry in change.passes)}
    for node in [node for place in change.reach for node in walk(place)]:
        above = list(source.above(node)) if isinstance(node, (cst.Continue, cst.Break, cst.Return)) else []
        around = next((entry for entry in above if isinstance(entry, Loop)), None)
        tests = [entry.test for entry in above if isinstance(entry, cst.If) and source.inside(entry, around)]
        same = not isinstance(node, cst.Continue) and all(change.alike(test) for test in tests)
        if around in own and not same:
            change.leave(node, "every rank takes the step of each batch, and ends its loops in the same one")


def _calls_of(change: Change, loop: Loop, kind: str) -> list[cst.Call]:
    """Calls of an optimizer's step(), itself or by a scaler, or of zero_grad(), in what a loop runs."""
    places = change.source.reached(loop.body)
    found = [call for place in places for call in change.source.calls(place, rf"\.{kind}$")]
    of = [code(call.func).rpartition(".")[0] for call in found]
    return [
        e for e, n in zip(found, of, strict=True) if not re.search(rf"{STEPS}|{SCHEDULER}", f"{n} {change.maker(n)}")
    ]


def _always(change: Change, call: cst.Call, loop: Loop) -> bool:
    """Whether it runs once in each round of the loop: in each way of an if, and in no loop of its own."""
    source, method = change.source, rf"\.{code(call.func).rpartition('.')[2]}$"
    if method == r"\.step$" and arguments(call) and "scale" not in code(call.func):
        return False  # a closure
    for child, parent in pairwise([call, *source.above(call)]):
        if parent is loop:
            return True
        if isinstance(parent, cst.FunctionDef):
            callers = [entry for entry in source.callers(parent) if change.runs(entry)]
            return source.inside(loop, parent) or all(_always(change, entry, loop) for entry in callers)
        if isinstance(parent, (cst.For, cst.While, cst.ExceptHandler)):
            return False
        if isinstance(parent, cst.If) and child is not parent.test:
            other = parent.orelse if child is parent.body else parent.body
            if other is None or not source.calls(other, method):
                return False
    return False


# -- what else is changed ----------------------------------------------------------------------------------------------


def kept(change: Change) -> None:
    source, variables = change.source, []
    for name, changed in _changed(source, change.loop.body, ()).items():
        nodes = [node for node in changed if not change.edits.gone(node)]
        if name in (*change.models, *change.keep.values()):
            for node in [node for node in nodes if name in [bound for bound, _, _ in bindings(node)]]:
                change.leave(node, f"{name} is another object from here on, which no worker that joins has")
        elif nodes and change.given(name):
            variables += [name] if _keeps(change, name, nodes) else []
    for key, name in list(change.keep.items()):
        if not (change.certain(name) if name.isidentifier() else change.given(name)):
            del change.keep[key]
            sentence = f"{name} may have no value at the loop: job.keep({key}={name}) where it has"
            change.leave(change.given(name)[-1][1], sentence)
    for entry in change.passes:
        stores = {name: node for name, _, node in reversed(source.stores(entry.node))}
        for name, node in stores.items():
            scope = source.scope(node)
            values = [code(given) for n, given, _ in source.stores(scope) if n == name and given is not None]
            known = (scope is change.scope and change.given(name)) or any(re.search(QUIET, value) for value in values)
            known = known or _first_bound(source, [entry.node], name) or is_told(source, scope, name)
            if not known:
                change.leave(node, f"{name} is of this rank's part alone, and of what came since it joined")
    within = ["vars(kept)" if change.boxed else "globals()", *(f'"{name}"' for name in variables)]
    words = [*(within if variables else []), *(f"{key}={name}" for key, name in change.keep.items())]
    change.edits.before(change.loop, f"job.keep({', '.join(words)})")


def _keeps(change: Change, name: str, nodes: list[cst.CSTNode]) -> bool:
    """Whether a name is a variable to keep; objects are kept, or named, here."""
    texts = [code(value) for value, _ in change.given(name) if value is not None]
    rebound = any(not isinstance(entry, cst.Call) for entry in nodes)
    inner = [e for e in nodes for inside in change.passes if change.source.inside(e, inside.node)]
    alike = all(is_count(change.source, entry) for entry in inner)
    if any(re.search(QUIET, text) for text in texts) or is_told(change.source, change.scope, name):
        return False
    if _first_bound(change.source, [change.loop, *(entry.node for entry in change.passes)], name):
        return False
    if change.certain(name) and not rebound and isinstance(change.value(name), (cst.List, cst.Dict)):
        change.keep[name] = name
    elif change.certain(name) and any(re.search(PLAIN, text) for text in texts) and alike:
        own = any(bound == name for bound, _, _ in change.source.stores(change.scope))
        if not isinstance(change.scope, cst.Module) and own and not change.shares(name):
            _box(change, name)
        return True
    else:
        sentence = f"{name} is changed in the loop and not kept: a worker that joins, or starts again, has another"
        change.leave(nodes[0], sentence)
    return False


def _box(change: Change, name: str) -> None:
    """A variable of a function becomes one of an object, whose variables the job can keep."""
    if not change.boxed:
        first = change.source.statement(next(names(change.scope, name)))
        change.edits.before(first, "kept = types.SimpleNamespace()", first=True)
        change.boxed = True
    for entry in names(change.scope, name):
        change.edits.replace(entry, f"kept.{name}")


def _first_bound(source: Source, loops: list[Loop], name: str) -> bool:
    """Whether each round of the first loop binds a name before it reads it; the others are in it."""
    first = next(names(loops[0], name), None)
    if first is None or not source.binds(first):
        return False
    statement = source.statement(first)
    if isinstance(statement, (cst.For, cst.With)):
        return statement in loops or all(source.inside(entry, statement) for entry in names(loops[0], name))
    block, values = source.parents[statement], [n.value for n in walk(statement) if isinstance(n, cst.Assign)]
    while isinstance(source.parents[block], cst.With):
        block = source.parents[source.parents[block]]
    whole = any(block is loop.body for loop in loops) or all(source.inside(e, block) for e in names(loops[0], name))
    return bool(values) and whole and not any(True for value in values for _ in names(value, name))


def _changed(source: Source, place: cst.CSTNode, seen: tuple[cst.CSTNode, ...]) -> dict[str, list[cst.CSTNode]]:
    """Names that a piece of code binds, or whose objects it changes, as they are called outside of it."""
    found: dict[str, list[cst.CSTNode]] = {}
    shared = {entry.name.value for n in walk(place) if isinstance(n, cst.Global) for entry in n.names}
    counters = {name for node in walk(place) for name in counted_by(source, node)}
    inside, stores = isinstance(place, cst.FunctionDef), source.stores(place)
    for name, _, node in stores:
        if name in shared or not (inside or name in counters):
            found.setdefault(name, []).append(node)
    local = {name for name, _, _ in stores if inside} - set(parameters(place))
    for node in walk(place):
        if (name := _object_changed(node)) and name not in local:
            found.setdefault(name, []).append(node)
        called = source.function(node) if isinstance(node, cst.Call) else None
        if isinstance(node, cst.Call) and called and called not in seen:
            given, theirs = handed(called, node), parameters(called)
            for inner, nodes in _changed(source, called, (*seen, called)).items():
                outer = given.get(inner, cst.Name(inner))
                if isinstance(outer, cst.Name) and (inner in given or inner not in theirs):
                    found.setdefault(outer.value, []).extend(nodes)
    return found


def _object_changed(node: cst.CSTNode) -> str:
    """The name whose object a call or an assignment changes; "" for none."""
    target: cst.CSTNode | None = None
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and re.search(CHANGES, node.func.attr.value):
        target = node.func.value
    elif isinstance(node, (cst.AssignTarget, cst.AugAssign)) and not isinstance(node.target, cst.Name):
        target = node.target
    while isinstance(target, (cst.Subscript, cst.Attribute)):
        target = target.value
    return target.value if isinstance(target, cst.Name) else ""


def is_told(source: Source, scope: cst.CSTNode, name: str) -> bool:
    """Whether a name is only printed."""
    return all(
        source.binds(node) or any(re.search(PRINTS, source.called(entry)) for entry in [node, *source.above(node)])
        for node in names(scope, name)
    )
