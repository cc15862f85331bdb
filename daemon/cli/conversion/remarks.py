"""What is not changed, and should be looked at: barriers, collectives, trackers, files that every rank writes.

Promise: one sentence in its line for each. Limit: a call is known by its name.
"""

from __future__ import annotations

import ast
import re

from .change import Change
from .world import asks

DISTRIBUTED = "torch.distributed."


def remarks(change: Change) -> None:
    """Calls outside of what is for torchrun only."""
    script = change.script
    calls = (node for node in ast.walk(script.tree) if isinstance(node, ast.Call))
    for call in calls:
        if not script.for_torchrun(call) and (sentence := _remark(change, call)):
            change.leave(call, sentence)


def _remark(change: Change, call: ast.Call) -> str:
    """The sentence for a call; "" for none."""
    name = change.script.full_name(call.func)
    if name.startswith(DISTRIBUTED) and not asks(change, call) and not name.endswith("_process_group"):
        if name.endswith("barrier"):
            return "no barrier is needed: job.once(function) has the others wait"
        if re.fullmatch(r"(?!get_|is_)[a-z_]+", name[len(DISTRIBUTED) :]):
            return f"{name} needs all ranks of the world: in the loop only, and not in job.once()"
    elif name.endswith(("wandb.init", "SummaryWriter", "mlflow.start_run")):
        return "give it to job.tracker(...), so that it is rank 0's (docs/how-to/log-a-run.md)"
    elif name.endswith(("torch.save", "save_image", "savefig")) and not _on_rank_0(change, call):
        return "every rank writes this file; put it behind `if job.rank == 0:`"
    elif name == "torch.load" and change.script.scope(call) is change.scope and call.lineno < change.loop.lineno:
        return "the job's own checkpoints win over what is loaded here, once there is one"
    return ""


def _on_rank_0(change: Change, node: ast.AST) -> bool:
    """Whether it stands behind a condition on the rank, here or wherever its function is called."""
    script = change.script
    chain = [entry for entry in script.above(node) if isinstance(entry, ast.If)]
    if any(re.search(r"rank|master|main_process|is_main", ast.unparse(entry.test)) for entry in chain):
        return True
    scope = script.scope(node)
    if isinstance(scope, ast.Module):
        return False
    called = [call for call in script.calls(script.tree, scope.name) if script.scope(call) is not scope]
    return bool(called) and all(_on_rank_0(change, call) for call in called)
