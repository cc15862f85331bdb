"""A loop over epochs becomes job.epochs(), and the DataLoader that it trains on job.loader().

Promise: a loader that something else reads stays beside the job's. Limit: the loader is found in the loop's own
function.
"""

from __future__ import annotations

import ast

from slurm_elastic.protocol.errors import ElasticError

from .change import Change
from .world import undivided

OF_LOADER = ("batch_size", "sampler", "shuffle", "drop_last", "batch_sampler", "generator", "persistent_workers")
"""DataLoader's options that job.loader() does without."""


def epochs(change: Change) -> None:
    """The job counts the epochs. Raises ElasticError for `while`."""
    edits, loop = change.edits, change.loop
    if not isinstance(loop, ast.For):
        raise ElasticError(
            f"line {loop.lineno} goes over epochs with while; accepted: `for epoch in range(n)`, which becomes "
            "job.epochs(n)"
        )
    counted = change.script.range_of(loop)
    assert counted is not None
    first, last = (counted.args[0], counted.args[1]) if len(counted.args) > 1 else (None, counted.args[0])
    count, start = edits.source(last), edits.source(first) if first is not None else "0"
    if start == "1" and isinstance(last, ast.BinOp) and ast.unparse(last).endswith(" + 1"):
        count = edits.source(last.left)
        change.top.append(f"{ast.unparse(loop.target)} += 1")
    elif start != "0":
        change.before.append(f"job.begin_at(epoch={start})")
        change.leave(loop, f"job.begin_at(epoch={start}) counts until the job has a checkpoint of its own")
    edits.replace(counted, f"job.epochs({count})")
    _samplers(change)
    _loader(change)


def _samplers(change: Change) -> None:
    """The job's loader shares out by itself, in another order each epoch."""
    script = change.script
    samplers = [call for call in script.calls(script.tree, "DistributedSampler") if not script.for_torchrun(call)]
    for call in samplers:
        change.edits.replace(call, "None")
    for call in script.calls(script.tree, "set_epoch") if samplers else ():
        statement = script.statement(call)
        if script.for_torchrun(call) is None and isinstance(statement, ast.Expr):
            change.remove(statement)


def _loader(change: Change) -> None:
    """job.loader() at the top of each epoch, for the one that is trained on."""
    script = change.script
    loaders = {
        name: (value, statement)
        for name, value, statement in script.assigned(change.scope)
        if isinstance(value, ast.Call) and script.full_name(value.func).endswith("DataLoader")
    }
    trained = [name for name in loaders if _trained_on(change, name)]
    if len(trained) != 1:
        change.leave(
            change.loop,
            "the DataLoader that is trained on is not found in this function; write job.loader(dataset, ...) in "
            "its place, inside the loop, and join(batch=...) with its batch",
        )
        return
    (name,) = trained
    call, statement = loaders[name]
    options = _options(change, call, statement)
    dataset = call.args[0] if call.args else next((e.value for e in call.keywords if e.arg == "dataset"), None)
    named = isinstance(dataset, (ast.Name, ast.Attribute))
    data = change.edits.source(dataset) if isinstance(dataset, (ast.Name, ast.Attribute)) else f"{name}_dataset"
    if not named:
        change.edits.after(statement, [f"{data} = {name}.dataset"])
    change.top.append(f"{name} = job.loader({', '.join([data, *options])})")
    change.needed.append(statement)
    beside = not named or script.parents[statement] is not change.scope
    if not beside and not script.used(name, change.scope, but=change.loop):
        change.remove(statement)


def _options(change: Change, call: ast.Call, statement: ast.stmt) -> list[str]:
    """What job.loader() is given after the dataset; the batch is join()'s."""
    written = {entry.arg: entry.value for entry in call.keywords if entry.arg}
    written |= dict(zip(("batch_size", "shuffle"), call.args[1:3], strict=False))
    options = {key: change.edits.source(undivided(change, value)) for key, value in written.items()}
    unseen = any(entry.arg is None for entry in call.keywords)
    if unseen:
        change.leave(
            statement,
            "what ** gives to the DataLoader is not seen: batch_size goes to join(batch=...), and "
            "others, without shuffle, to job.loader(...)",
        )
    if options.get("drop_last") == "True":
        change.leave(
            statement, "job.loader() has a short last step in place of drop_last; join(slice=...) keeps sizes even"
        )
    change.batch = options.get("batch_size", "")
    change.whole = "batch_size" in written and undivided(change, written["batch_size"]) is not written["batch_size"]
    shuffled = options.get("shuffle") not in (None, "False") or "sampler" in options
    given = [f"{key}={value}" for key, value in options.items() if key not in (*OF_LOADER, "dataset")]
    return given if shuffled or unseen else ["shuffle=False", *given]


def _trained_on(change: Change, name: str) -> bool:
    """Whether the loop goes over this loader and trains, or hands it to a function that does."""
    script = change.script
    for node in ast.walk(change.loop):
        over = isinstance(node, ast.For) and node is not change.loop and script.used(name, node.iter)
        if over and script.trains(node):
            return True
        if isinstance(node, ast.Call) and script.trains(node):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            words = [*node.args, *(entry.value for entry in node.keywords)]
            if called in script.functions and any(isinstance(w, ast.Name) and w.id == name for w in words):
                return True
    return False
