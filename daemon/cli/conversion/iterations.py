"""A loop over iterations becomes job.next(), and its loop over micro batches goes over this rank's share of them.

Promise: a batch is drawn where it is used, so that none is lost at a resize. Limit: how samples are shared out is known
only where an iteration has micro batches; else it is left.
"""

from __future__ import annotations

import ast

from .change import Change


def iterations(change: Change) -> None:
    """The job counts the iterations."""
    script, edits, loop = change.script, change.edits, change.loop
    if isinstance(loop, ast.For):
        _counted(change, loop)
    else:
        if not isinstance(loop.test, ast.Constant):
            change.top += [f"if not ({edits.source(loop.test)}):", "    break"]
        edits.replace(loop.test, "job.next()")
    inner = [n for n in ast.walk(loop) if n is not loop and script.counts(n) and script.trains(n)]
    if not inner:
        change.leave(
            loop,
            "say how an iteration is shared out: go over job.share(micro_batches), or take "
            "job.share(samples).positions of what all ranks draw",
        )
        return
    assert isinstance(inner[0], ast.For)
    _accumulation(change, inner[0])
    _draw_inside(change, inner[0])


def _counted(change: Change, loop: ast.For) -> None:
    """`for number in range(first, last)`."""
    edits, counted = change.edits, change.script.range_of(loop)
    assert counted is not None
    first, last = (counted.args[0], counted.args[1]) if len(counted.args) > 1 else (None, counted.args[0])
    if first is not None and edits.source(first) != "0":
        change.before.append(f"job.begin_at(step={edits.source(first)})")
    if (number := ast.unparse(loop.target)) != "_":
        change.top.append(f"{number} = job.global_step")
    edits.replace_from_to(_Start(loop), loop.iter, f"while job.next({edits.source(last)})")


def _accumulation(change: Change, inner: ast.For) -> None:
    """A global batch is so many micro batches, of which each rank has its share."""
    edits, counted = change.edits, change.script.range_of(inner)
    assert counted is not None
    steps = edits.source(counted.args[-1])
    edits.replace(inner.iter, "micros")
    if isinstance(counted.args[-1], ast.Name):
        change.settings.append(f"micro_batches = {steps}")
        change.shares.append((inner, f"{steps} = len(micros := job.share(micro_batches))"))
        change.batch = "micro_batches"
    else:
        change.shares.append((inner, f"micros = job.share({steps})"))
        change.batch = steps
        change.leave(inner, f"divide the loss by len(micros), this rank's part, where it is divided by {steps}")
    if any(name == "batch_size" for name, _, _ in change.script.assigned(change.scope)):
        change.batch = f"{change.batch} * batch_size, micro_batch=batch_size"
    else:
        change.leave(change.loop, "join(batch=...) is given micro batches; multiply by the samples of one")


def _draw_inside(change: Change, inner: ast.For) -> None:
    """A batch that is drawn for the next micro batch would be lost at a resize: it is drawn where it is used."""
    body = change.scope.body
    texts = {ast.unparse(node): node for node in body if node.lineno < change.loop.lineno}
    for node in inner.body[1:]:
        before = texts.get(ast.unparse(node))
        if isinstance(node, ast.Assign) and before is not None:
            change.remove(node)
            change.remove(before)
            change.edits.before(inner.body[0], [change.edits.source(node)])


class _Start(ast.stmt):
    """The beginning of a statement."""

    def __init__(self, node: ast.stmt) -> None:
        super().__init__()
        self.lineno, self.col_offset = node.lineno, node.col_offset
        self.end_lineno, self.end_col_offset = node.lineno, node.col_offset
