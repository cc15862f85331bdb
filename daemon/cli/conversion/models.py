"""Models are given to the job, and it keeps optimizers, schedulers, scaler, and numbers that the loop goes on with.

Promise: what is wrapped for torchrun is replicated, what is cut up is sharded in each world. Limit: what is kept is
found in the loop's own function, by the names of what makes it.
"""

from __future__ import annotations

import ast
import re

from .change import Change


def models(change: Change) -> set[str]:
    """Replicate what was wrapped; the names of models."""
    script = change.script
    _data_parallel(change)
    wraps = list(script.calls(script.tree, "DistributedDataParallel"))
    found = {_replicate(change, call) for call in wraps if call.args}
    if not wraps:
        way = "shard" if _shards(change) else "replicate"
        for name in _parameters_of(change):
            found.add(name)
            change.before.append(f"{name} = job.{way}({name})")
    if not found:
        change.leave(change.loop, "no model is found; give each to job.replicate(model) before the loop")
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Attribute) and node.attr == "no_sync" and not script.for_torchrun(node):
            change.leave(node, "gradients travel with the last micro batch of job.share() by themselves")
    return found


def _data_parallel(change: Change) -> None:
    """One process for several GPUs: there is one for each now."""
    for call in change.script.calls(change.script.tree, "DataParallel"):
        statement = change.script.statement(call)
        if isinstance(statement, ast.Assign) and statement.value is call:
            change.remove(statement)
        elif call.args:
            change.edits.replace(call, change.edits.source(call.args[0]))


def _replicate(change: Change, call: ast.Call) -> str:
    """job.replicate() in place of DistributedDataParallel(); the name that it is given to, "" for none."""
    script, edits = change.script, change.edits
    model, statement = edits.source(call.args[0]), script.statement(call)
    kept = [edits.source(entry) for entry in call.keywords if entry.arg == "find_unused_parameters"]
    replicated = f"job.replicate({', '.join([model, *kept])})"
    target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    behind = script.for_torchrun(call)
    change.replaced |= {node for entry in call.keywords for node in ast.walk(entry)}
    if behind is None:
        edits.replace(call, replicated)
        change.needs_job(call)
    elif behind.body == [statement] and not behind.orelse and target and script.for_torchrun(behind) is None:
        edits.replace(behind, f"{target} = {replicated}")
        change.needs_job(behind)
    else:
        if target == model:
            change.remove(statement)
        else:
            edits.replace(call, model)
        if (line := f"{target} = job.replicate({target})") not in change.before:
            change.before.append(line)
    return target


def _shards(change: Change) -> bool:
    """What is cut up before there is a world is remembered, and done in each one; whether there is such."""
    calls = list(change.script.calls(change.script.tree, "fully_shard"))
    for call in calls:
        change.edits.replace(call.func, "elastic.fully_shard")
        for entry in call.keywords:
            if entry.arg == "mesh":
                change.leave(call, "leave mesh= out: each world has a mesh of its own, job.mesh")
    if calls:
        change.leave(
            min(calls, key=lambda call: call.lineno),
            "the model is cut up in the loop, where there is a world: what looks at its parts, or loads them, "
            "before it has to go; job.save(path) writes the whole model",
        )
    return bool(calls)


def _parameters_of(change: Change) -> list[str]:
    """Names whose parameters optimizers are made of."""
    found: dict[str, None] = {}
    for _, value, _ in _made_by(change, r"optim(?!.*lr_scheduler)"):
        for node in ast.walk(value):
            if isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters"):
                found[ast.unparse(node.value)] = None
    return list(found)


def _made_by(change: Change, pattern: str) -> list[tuple[str, ast.expr, ast.stmt]]:
    """What is made before the loop by calls of such names."""
    script = change.script
    return [
        (name, value, statement)
        for name, value, statement in script.assigned(change.scope)
        if isinstance(value, ast.Call)
        and statement.lineno < change.loop.lineno
        and re.search(pattern, script.full_name(value.func) or ast.unparse(value.func))
    ]


def kept(change: Change, of_models: set[str]) -> None:
    """Optimizers, schedulers, scaler, and numbers that the loop goes on with."""
    words = _kept_numbers(change)
    parts = {}
    for name, _, statement in _made_by(change, r"(?i)optim|lr_scheduler|LR$|_scheduler$|GradScaler$"):
        change.needed.append(statement)
        parts[name.split(".")[-1]] = name
    if not _made_by(change, r"optim(?!.*lr_scheduler)|(?i:create_optimizer)"):
        change.leave(
            change.loop, "no optimizer is found in this function; job.keep(optimizer=optimizer) before the loop"
        )
    words += [f"{key}={name}" for key, name in parts.items() if name not in of_models]
    if words:
        change.before.append(f"job.keep({', '.join(words)})")


def _kept_numbers(change: Change) -> list[str]:
    """How job.keep() is given them, where they are of the module."""
    numbers, scope = _numbers(change), change.scope
    if not numbers:
        return []
    declared = {name for node in ast.walk(scope) if isinstance(node, ast.Global) for name in node.names}
    if isinstance(scope, ast.Module) or set(numbers) <= declared:
        return ["globals()", *(f'"{name}"' for name in numbers)]
    change.leave(
        change.loop,
        f"{', '.join(numbers)} of {scope.name}() would not survive: keep them in an object, "
        'e.g. types.SimpleNamespace, and job.keep(vars(object), "name")',
    )
    return []


def _numbers(change: Change) -> list[str]:
    """Variables with a number before the loop that the loop assigns."""
    script, loop = change.script, change.loop
    of_loop = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name):
        of_loop.discard(loop.target.id)
    where = [change.scope] if isinstance(change.scope, ast.Module) else [change.scope, script.tree]
    given = [entry for scope in where for entry in script.assigned(scope)]
    found = {
        name: None
        for name, value, statement in given
        if name in of_loop and _is_number(value) and loop not in script.above(statement)
    }
    return list(found)


def _is_number(value: ast.expr) -> bool:
    number = value.operand if isinstance(value, ast.UnaryOp) else value
    if not isinstance(number, ast.Constant):
        return False
    return isinstance(number.value, (int, float)) and not isinstance(number.value, bool)
