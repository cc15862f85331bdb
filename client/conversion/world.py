"""What a script asks of torch.distributed, and what each of several processes would do again: files, trackers, draws.

Promise: the rank is asked of the job where it is needed, because it may change; what cannot be is named. Limit: what
holds under torchrun alone is left as it is, as a worker of `selastic run` does not come there.
"""

from __future__ import annotations

import re

import libcst as cst

from .change import Change
from .source import Loop, code, walk

GROUPS = r"(init_process_group|destroy_process_group|cuda\.set_device|accelerator\.set_device_index)$"
OF_JOB = {"RANK": "job.rank", "WORLD_SIZE": "job.world_size"}
READ = re.compile(r"^int\(os\.(?:environ\[|environ\.get\(|getenv\()[\"'](RANK|WORLD_SIZE|LOCAL_RANK)[\"']")
SEEDS = r"(^|\.)manual_seed$|(^|\.)(seed_everything|set_seed)$"
WRITES = (
    r"(^|\.)(torch\.save|save_image|savefig|savez?|savetxt|to_csv|write_(text|bytes)|save_pretrained|save_file|rmtree"
)
WRITES += r"|os\.(remove|rename)|FileHandler)$"
DRAWS = r"random_split$|train_test_split$|randperm$|random\.(shuffle|sample|choice)$"
ON_RANK_0 = re.compile(r"rank\b.*== *0|master|main_process|is_main")
NAMED = (
    (r"^torch\.distributed\.barrier$", "no barrier is needed: job.once(function) has the others wait"),
    (r"^torch\.distributed\.(?!get_|is_)[a-z_]+(?<!process_group)$", "all ranks: in the loop, and not in job.once()"),
    (r"wandb\.init$|SummaryWriter$|mlflow\.start_run$", "it is rank 0's: job.tracker(...) (docs/how-to/log-a-run.md)"),
    (r"(^|\.)no_sync$", "gradients travel with the last micro batch of job.share(), with no no_sync()"),
    (r"(multiprocessing|^mp)\.(spawn|start_processes)$", "`selastic run` starts a process for each GPU: call it"),
    (r"convert_sync_batchnorm$", "batch normalisation sees one rank's part: there is no synchronised one"),
    (r"(^|\.)(DataParallel)$", "each GPU has a process of its own: leave the model whole"),
    (r"FullyShardedDataParallel$|(^|\.)FSDP$|deepspeed\.init", "give the model whole to job.shard(model)"),
    (r"(^|\.)fully_shard$", "elastic.fully_shard() without mesh=, and job.shard(model) for job.replicate(model)"),
    (r"\.set_epoch$", "the job's loader has another order in each epoch: this goes"),
)
"""Calls, and what is to be done there."""
JUDGES = r"no_grad|inference_mode|\.eval\(\)"
"""Functions that train nothing."""
UNEVEN = r"\b(reduction=[\"'](?!mean)|ignore_index=|weight=(?!None)|size_average=)"


def ranks(change: Change) -> None:
    """Groups are the job's; of it the rank is asked in the loop, and named where it is asked before."""
    source, edits = change.source, change.edits
    for call in source.calls(source.module, GROUPS):
        of_rank = "device" not in code(call.func) or "rank" in code(call).lower()
        if of_rank and not change.for_torchrun(call):
            edits.remove(call)
    for call in source.calls(source.module, ""):
        asked = _asked(change, call)
        if not asked or change.for_torchrun(call) or edits.gone(call):
            continue
        here = source.scope(call) is change.scope
        if asked in OF_JOB and not (change.early(call) if here else not change.runs(call)):
            change.elsewhere |= not here
            edits.replace(call, OF_JOB[asked])
        else:
            known = "job.rank and job.world_size are known in the loop, and job.device in front of it: write them"
            change.leave(call, f"{known} in place of this name; job.on_each_node() is once for each node")


def _asked(change: Change, call: cst.Call) -> str:
    """What of its world a call asks: one of OF_JOB, or the rank on its node; "" for nothing."""
    if re.search(r"distributed\.get_(rank|world_size)$", change.source.called(call)):
        return change.source.called(call).rpartition("get_")[2].upper()
    read, parent = READ.search(code(call)), change.source.parents[call]
    is_0 = re.search(r"(== *|in [\[(].*)(?<![\d.])0\b", code(parent))
    return read[1] if read and (is_0 or not isinstance(parent, cst.Comparison)) else ""


# -- what is looked at, and not changed --------------------------------------------------------------------------------


def remarks(change: Change, join: cst.CSTNode) -> None:
    """One sentence for each call that several processes would make, and for what no rule has taken. join: where the job
    joins."""
    source = change.source
    seeds = [source.line(entry) for entry in source.calls(source.module, SEEDS)]
    for call in source.calls(source.module, ""):
        if change.for_torchrun(call) or change.edits.gone(call):
            continue
        name, words = source.called(call), [code(entry) for entry in call.args]
        sentence = next((sentence for pattern, sentence in NAMED if re.search(pattern, name)), "")
        if re.search(r"(^|\.)(?!Sequential)\w+Sampler$", name) and name not in source.classes:
            taken = [call, *(entry for entry in source.above(call) if source.called(entry).endswith("DataLoader"))]
            if not change.claimed & set(taken):
                sentence = "job.loader() does not ask this which samples it chooses"
        seeded = any(line < source.line(call) for line in seeds)
        seeded |= any("generator=" in word or "state=" in word for word in words)
        if re.search(DRAWS, name) and source.line(call) < source.line(join) and not seeded:
            sentence = "each worker draws for itself here, also one that joins later: seed it, generator="
        judged = isinstance(source.scope(call), cst.FunctionDef) and re.search(JUDGES, code(source.scope(call)))
        if not judged and name.endswith(("Loss", "_loss", "cross_entropy")) and re.search(UNEVEN, " ".join(words)):
            sentence = "this is no mean over samples, and the job takes the mean over the ranks: weigh it"
        if change.runs(call) and re.search(r"\.sum\(\)\.backward$", code(call.func)):
            sentence = "a sum over the batch: each rank has its part, and the job takes the mean of them"
        opened = name == "open" and any(re.search(r"^(mode=)?[\"'][wax]", word) for word in words[1:])
        if opened or re.search(WRITES, name):
            _file(change, call)
        if sentence:
            change.leave(call, sentence)
    known = [change.loop, *(entry.node for entry in change.passes)]
    for node in source.nodes:
        if isinstance(node, Loop) and source.trains(node) and node not in known:
            change.leave(node, "this loop trains, too: only one can be the job's, a step for a batch")
        beside = source.path.parent / _module(node).split(".")[0]
        if _module(node) and (beside.is_dir() or beside.with_suffix(".py").is_file()):
            change.leave(node, "this module is not read: what it does to models, data and files is yours to look at")


def _module(node: cst.CSTNode) -> str:
    """What an import names; the first one of several."""
    if isinstance(node, cst.Import):
        return code(node.names[0].name)
    return code(node.module) if isinstance(node, cst.ImportFrom) and node.module else ""


def _file(change: Change, call: cst.Call) -> None:
    """One rank writes a file: where the statement does nothing else, it is put behind a condition."""
    source = change.source
    if _on_rank_0(change, call, 4):
        return
    statement = source.statement(call)
    own = source.scope(call) is change.scope and not change.early(call)
    ends = (cst.Assign, cst.AugAssign, cst.Break, cst.Continue, cst.Return)
    binds = any(isinstance(node, ends) for node in walk(statement))
    if own and not binds and isinstance(statement, (cst.SimpleStatementLine, cst.With)):
        change.edits.behind(call, "job.rank == 0")
    else:
        change.leave(call, "every rank writes this file: `if job.rank == 0:`, in the loop or behind it")


def _on_rank_0(change: Change, node: cst.CSTNode, depth: int) -> bool:
    """Whether it stands behind a condition on the rank, here or wherever its function is called."""
    source = change.source
    if any(isinstance(entry, cst.If) and ON_RANK_0.search(code(entry.test)) for entry in source.above(node)):
        return True
    calls = source.callers(source.scope(node)) if depth else []
    return bool(calls) and all(_on_rank_0(change, call, depth - 1) for call in calls)
