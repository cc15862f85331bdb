"""What an expression asks torch.distributed or torchrun's environment for: the rank, or the size of the world.

Promise: the answer is what the job has in its place. Limit: a name is followed to what it is given in the loop's own
function, one step.
"""

from __future__ import annotations

import ast

from .change import Change

RANK, WORLD_SIZE = "job.rank", "job.world_size"
OF_JOB = {"RANK": RANK, "WORLD_SIZE": WORLD_SIZE, "LOCAL_RANK": "(job.device.index or 0)"}
"""What the job has in place of torchrun's variables."""


def asks(change: Change, node: ast.AST) -> str:
    """What of the job this expression asks for; "" for nothing."""
    if isinstance(node, ast.Call):
        name = change.script.full_name(node.func)
        if name.endswith(("distributed.get_rank", "distributed.get_world_size")):
            return RANK if name.endswith("rank") else WORLD_SIZE
        if name == "int" and len(node.args) == 1:
            return OF_JOB.get(_variable(node.args[0]), "")
    return ""


def asks_in(change: Change, value: ast.expr) -> str:
    """The same, also in one of the two ways of `a if b else c`."""
    if found := asks(change, value):
        return found
    nodes = ast.walk(value) if isinstance(value, ast.IfExp) else ()
    return next((kind for node in nodes if (kind := asks(change, node))), "")


def is_size(change: Change, node: ast.expr) -> bool:
    """Whether it is the world's size."""
    if asks(change, node) == WORLD_SIZE:
        return True
    given = [value for name, value, _ in change.script.assigned(change.scope) if name == ast.unparse(node)]
    return any(asks_in(change, value) == WORLD_SIZE for value in given)


def undivided(change: Change, node: ast.expr) -> ast.expr:
    """What of an expression is the job's, where it is divided by the world's size; else the expression."""
    if isinstance(node, ast.Call) and change.script.full_name(node.func) == "int" and len(node.args) == 1:
        inside = undivided(change, node.args[0])
        return node if inside is node.args[0] else inside
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.FloorDiv, ast.Div)) and is_size(change, node.right):
        return node.left
    return node


def _variable(node: ast.expr) -> str:
    """The environment variable that os.environ["X"], .get("X") or getenv("X") reads; not one with a default."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
        node = node.slice
    elif (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(("environ.get", "getenv"))
        and len(node.args) == 1
    ):
        node = node.args[0]
    else:
        return ""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
