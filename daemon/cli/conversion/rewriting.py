"""What is changed in a script so that its own loop becomes elastic, and what is left to its author.

Every change follows one rule of docs/how-to/convert-a-script.md. Where a rule does not fit, nothing is changed, and one
sentence says what is to be done in that line. What stands behind a condition that holds under torchrun only is left:
`selastic run` does not come to it.
"""

from __future__ import annotations

import ast

from slurm_elastic.protocol.errors import ElasticError

from .change import Change, Left
from .edits import Edits
from .epochs import epochs
from .iterations import iterations
from .models import kept, models
from .ranks import groups, ranks
from .remarks import remarks
from .script import Loop, Script

OWN_LIBRARIES = ("lightning", "pytorch_lightning", "transformers.Trainer", "accelerate.Accelerator")


def converted(text: str, name: str) -> tuple[str, Left]:
    """The script's text after the change, and what is left to its author. Raises ElasticError where nothing fits."""
    try:
        script = Script(text, name)
    except (SyntaxError, ValueError) as error:
        raise ElasticError(f"{name} is no Python program: {error}") from None
    loop, *others = _loops(script, name)
    change = Change(script, Edits(text), loop)
    for other in others:
        change.leave(other, "this is another loop that trains; only one can be the job's, and it is left as it is")
    _apply(change)
    _import(change)
    _write(change)
    after = change.edits.result()
    try:
        ast.parse(after)
    except SyntaxError as error:
        raise ElasticError(f"{name} is written in a way that this cannot change: line {error.lineno}") from None
    return after, sorted(set(change.left))


def _loops(script: Script, name: str) -> list[Loop]:
    """The job's loop, and others that train. Raises ElasticError for a script that is not for this."""
    imported = set(script.aliases.values())
    if any(entry.startswith("slurm_elastic") for entry in imported):
        raise ElasticError(f"{name} imports slurm_elastic already; accepted: a script that is not elastic yet")
    if found := next((e for e in imported if any(e == own or e.startswith(f"{own}.") for own in OWN_LIBRARIES)), None):
        raise ElasticError(f"{name} leaves its loop to {found}; its adapter is in docs/how-to/frameworks.md")
    loops = script.loops()
    if not loops:
        raise ElasticError(
            f"{name} has no loop over epochs or iterations that comes to a backward(); accepted: `for ... in "
            "range(...)` or `while` around the training, in this file"
        )
    inside = next(script.above(script.scope(loops[0])), None)
    if isinstance(inside, ast.ClassDef):
        raise ElasticError(
            f"line {loops[0].lineno} of {name} has its loop in {inside.name}; accepted: a loop in a function or in the "
            "module; docs/how-to/make-a-script-elastic.md has what to write by hand"
        )
    return loops


def _apply(change: Change) -> None:
    """The rules, in the order in which they build on each other."""
    groups(change)
    of_models = models(change)
    if change.script.over_data(change.loop):
        epochs(change)
    else:
        iterations(change)
    kept(change, of_models)
    ranks(change)
    remarks(change)


def _import(change: Change) -> None:
    body = change.script.tree.body
    imports = (node for node in body if isinstance(node, (ast.Import, ast.ImportFrom)))
    first = next((node for node in imports if getattr(node, "module", "") != "__future__"), body[0])
    change.edits.before(first, ["import slurm_elastic.trainer_shim as elastic"])


def _write(change: Change) -> None:
    """What the rules have collected becomes changes of the text."""
    script, edits, scope, loop = change.script, change.edits, change.scope, change.loop
    for statement in change.removed:
        block = script.block(statement)
        edits.remove(statement, alone=statement is block[0] and all(entry in change.removed for entry in block))
    place = min((script.at_top(node, scope) for node in change.needed), key=lambda statement: statement.lineno)
    declared = ["global job"] if change.elsewhere and not isinstance(scope, ast.Module) else []
    edits.before(place, [*declared, *change.settings, f"job = elastic.join(batch={_batch(change, place)})"])
    edits.before(script.at_top(loop, scope) if change.before else loop, change.before)
    inside = next((entry for entry in loop.body if not _is_text(entry)), loop.body[0])
    edits.before(inside, change.top)
    for statement, line in change.shares:
        edits.before(statement, [line])


def _batch(change: Change, place: ast.stmt) -> str:
    """What join() is given, and a sentence where it may not be the global batch."""
    batch, script = change.batch, change.script
    if not batch:
        change.leave(place, "join(batch=256) is a guess: say the global batch that the learning rate was tuned for")
        return "256"
    wrapped = next(script.calls(script.tree, "DistributedDataParallel"), None)
    if wrapped and not change.whole and "micro" not in batch:
        change.leave(
            place, f"join(batch=...) is the global batch: {batch}, if it was one GPU's, times the number of GPUs"
        )
    return batch


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
