"""What is changed in a script so that its own loop becomes elastic, and what is left to its author.

Promise: a closed list of patterns is changed (docs/how-to/convert-a-script.md); all else that decides what is trained
stays in its place, and a comment names it. Limit: nothing is run: what a name stands for is what the files say.
"""

from __future__ import annotations

import re
from pathlib import Path

import libcst as cst

from slurm_elastic.protocol.errors import ElasticError

from .change import Change, begin
from .loops import epochs
from .source import Block, Source, arguments, code, names, walk
from .state import kept, models, steps
from .world import SEEDS, ranks, remarks

OWN_LIBRARIES = ("lightning", "pytorch_lightning", "transformers.Trainer", "accelerate.Accelerator")


def converted(text: str, path: Path) -> tuple[str, set[tuple[int, str]]]:
    """The script after the change; and what is left to its author, by line as it was and sentence. Raises ElasticError
    where there is no training loop that this could change."""
    source = Source(text, path)
    for entry in source.aliases.values():
        if entry.startswith("slurm_elastic"):
            raise ElasticError(f"{path} imports slurm_elastic already; accepted: a script that is not elastic yet")
        if any(entry == own or entry.startswith(f"{own}.") for own in OWN_LIBRARIES):
            raise ElasticError(f"{path} leaves its loop to {entry}; its adapter is in docs/how-to/frameworks.md")
    for found in names(source.module):
        if found.value in ("job", "elastic", "kept"):
            line = f"line {source.line(found)} of {path}"
            raise ElasticError(f"{line} has a variable `{found.value}`, which the change needs; give it another name")
    change = begin(source)
    epochs(change)
    models(change)
    steps(change)
    kept(change)
    place = _place(change)
    ranks(change)
    remarks(change, place)
    _join(change, place)
    after = change.edits.result()
    compile(after, str(path), "exec")
    return after, change.said


def _place(change: Change) -> cst.BaseStatement:
    """The statement in front of which the job joins: the first where the batch is known, as from there on all workers
    draw the same random numbers."""
    source, loop = change.source, change.loop
    blocks = [entry for entry in source.above(loop) if isinstance(entry, Block) and source.inside(entry, change.scope)]
    tests = [code(getattr(source.parents.get(block), "test", cst.Name("_"))) for block in blocks]
    blocks = blocks[: next((n + 1 for n, test in enumerate(tests) if "__name__" in test), None)]
    options = source.calls(change.scope, r"^exec$|parse_args$")
    needed = [*change.behind, *(call for call in options if change.early(call))]
    last = min((source.line(call) for call in change.made if source.inside(call, source.module)), default=1 << 30)
    for part in walk(cst.parse_expression(change.batch)):
        named = isinstance(part, (cst.Name, cst.Attribute)) and not change.behind
        needed += [node for _, node in change.given(code(part)) if source.line(node) < last] if named else []
    for block in reversed(blocks):
        body, own = list(block.body), next(n for n, entry in enumerate(block.body) if source.inside(loop, entry))
        inside = [n for n, entry in enumerate(body) if any(source.inside(node, entry) for node in needed)]
        first = next((n for n, entry in enumerate(body) if not _is_head(entry)), 0)
        if max(inside, default=-1) < own:
            return source.statement(body[min(max([first, *(n + 1 for n in inside)]), own)])
    return source.statement(loop)


def _is_head(statement: cst.CSTNode) -> bool:
    """Whether it is an import, a docstring or `global`."""
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else statement
    text = isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))
    return text or isinstance(small, (cst.Import, cst.ImportFrom, cst.Global))


def _join(change: Change, place: cst.BaseStatement) -> None:
    """The job joins, with the seed of the script where it has been set by then."""
    source, scope = change.source, change.scope
    words = [change.batch]
    for call in source.calls(scope, ""):
        called = source.function(call)
        seeds = re.search(SEEDS, source.called(call)) or (called and source.calls(called, SEEDS))
        if seeds and source.scope(call) is scope and source.line(call) < source.line(place) and len(call.args) == 1:
            words = [*words, f"seed={code(arguments(call).popitem()[1])}"]
    declared = ["global job"] if change.elsewhere and not isinstance(scope, cst.Module) else []
    change.edits.before(place, *declared, f"job = elastic.join(batch={', '.join(words)})", first=True)
    imports = [entry for entry in source.nodes if isinstance(entry, (cst.Import, cst.ImportFrom))]
    first = next((e for e in imports if "__future__" not in code(e)), source.nodes[1])
    types = ["import types"] if change.boxed and source.aliases.get("types") != "types" else []
    change.edits.before(source.statement(first), *types, "import slurm_elastic.trainer_shim as elastic", first=True)
