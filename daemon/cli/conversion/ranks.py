"""What torchrun's processes do: their groups go, and rank and world size are asked of the job.

Promise: in the loop they are asked anew, because they may change there. Limit: what is for torchrun only is left as it
is.
"""

from __future__ import annotations

import ast
import re

from .change import Change
from .world import RANK, asks, asks_in, is_size, undivided

GROUPS = ("init_process_group", "destroy_process_group", "cuda.set_device", "accelerator.set_device_index")


def groups(change: Change) -> None:
    """The process group and the device are the job's."""
    script = change.script
    for call in script.calls(script.tree, *GROUPS):
        if "device" in ast.unparse(call.func) and "rank" not in ast.unparse(call).lower():
            continue  # not one of several; each worker sees its own alone
        if behind := script.for_torchrun(call):
            change.leave(behind, "this is for torchrun; `selastic run` does not set RANK, so it is not taken there")
        elif isinstance(script.parents[call], ast.Expr):
            change.remove(script.statement(call))
    for call in script.calls(script.tree, "multiprocessing.spawn", "start_processes"):
        change.leave(call, "this starts processes by itself; `selastic run` starts one for each GPU: call the function")


def ranks(change: Change) -> None:
    """Rank and world size are asked of the job, in the loop, where they may change."""
    _conditions(change)
    _world_sizes(change)
    for node in list(ast.walk(change.script.tree)):
        kind = asks(change, node)
        if not kind or node in change.replaced or change.script.for_torchrun(node):
            continue
        if isinstance(node, ast.expr):
            change.edits.replace(node, kind)
            change.needs_job(node)
    _names(change)


def _conditions(change: Change) -> None:
    """`if not distributed or rank == 0` of the loop."""
    for node in ast.walk(change.loop):
        if isinstance(node, ast.If):
            test = ast.unparse(node.test)
            if re.search(r"rank\b", test) and re.search(r"distributed|world_size", test):
                change.edits.replace(node.test, f"{RANK} == 0")
                change.replaced |= set(ast.walk(node.test))


def _world_sizes(change: Change) -> None:
    """A number divided by the world's size is this rank's part of one that is the job's now, and shared out by it.
    Before the loop nobody knows that size."""
    script, edits = change.script, change.edits
    for node in ast.walk(script.tree):
        if node in change.replaced or script.for_torchrun(node):
            continue
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.FloorDiv) and is_size(change, node.value):
            change.remove(node)
        if not isinstance(node, ast.BinOp):
            continue
        early = script.scope(node) is change.scope and node.lineno < change.loop.lineno
        if (of_job := undivided(change, node)) is not node:
            edits.replace(node, edits.source(of_job))
            change.replaced |= set(ast.walk(node)) - set(ast.walk(node.left))
        elif early and (is_size(change, node.left) or is_size(change, node.right)):
            change.leave(node, "job.world_size is 0 before the loop: write the number that is meant")


def _names(change: Change) -> None:
    """Names for the rank, or for that it is 0, that the loop reads are given again at its top."""
    given = list(change.script.assigned(change.scope))
    kinds = {name: kind for name, value, _ in given if (kind := asks_in(change, value))}
    names: dict[str, str] = {}
    for name, value, statement in given:
        if statement.lineno >= change.loop.lineno or name in names:
            continue
        asked = _is_0(value)
        if kind := asks_in(change, value):
            names[name] = kind
        elif asked is not None and RANK in (asks_in(change, asked), kinds.get(ast.unparse(asked))):
            names[name] = f"{RANK} == 0"
    if "args.rank" in kinds:
        names.setdefault("args.rank", RANK)
    change.top += [f"{n} = {kind}" for n, kind in names.items() if _reads(change, n) and not kind.startswith("(")]


def _reads(change: Change, name: str) -> bool:
    """Whether the loop, or what it may call, reads a name."""
    within = change.script.tree if isinstance(change.scope, ast.Module) else change.loop
    start = change.loop.lineno
    return any(
        isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and node not in change.replaced
        and ast.unparse(node) == name
        and (node.lineno >= start or change.script.scope(node) is not change.scope)
        for node in ast.walk(within)
    )


def _is_0(value: ast.expr) -> ast.expr | None:
    """What is compared with 0, or in a list with 0 and -1."""
    if isinstance(value, ast.Compare) and len(value.ops) == 1 and isinstance(value.ops[0], (ast.Eq, ast.In)):
        return value.left if re.search(r"\b0\b", ast.unparse(value.comparators[0])) else None
    return None
