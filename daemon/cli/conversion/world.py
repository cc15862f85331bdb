"""What a script asks of torch.distributed, and what each of several processes would do again: files, trackers, draws.

Promise: the rank is asked of the job where it is needed, because it may change; what cannot be is named. Limit: what
holds under torchrun alone is left as it is, as a worker of `selastic run` does not come there.
"""

from __future__ import annotations

import re

import libcst as cst

from .change import Change
from .loops import divide
from .source import Loop, Source, code, walk

GROUPS = r"(init_process_group|destroy_process_group|cuda\.set_device|accelerator\.set_device_index)$"
OF_JOB = {"RANK": "job.rank", "WORLD_SIZE": "job.world_size", "LOCAL_RANK": "(job.device.index or 0)"}
RANK, LOCAL = OF_JOB["RANK"], OF_JOB["LOCAL_RANK"]
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
SEVERAL_AND_0 = r"(is_initialized|distributed|world_size).*== *0"
JUDGES = r"no_grad|inference_mode|\.eval\(\)"
"""Functions that train nothing."""
UNEVEN = r"\b(reduction=[\"'](?!mean)|ignore_index=|weight=(?!None)|size_average=)"


def ranks(change: Change) -> None:
    """Rank and world size are asked of the job."""
    source, edits = change.source, change.edits
    for call in source.calls(source.module, GROUPS):
        if change.for_torchrun(call):
            change.note(call, "this is for torchrun; `selastic run` does not set RANK, so it is not taken there")
        elif "device" not in code(call.func) or "rank" in code(call).lower():
            edits.remove(call)
    found: dict[str, str] = {}
    given = [entry for scope in dict.fromkeys([change.scope, source.module]) for entry in source.stores(scope)]
    defined: dict[cst.CSTNode, tuple[str, cst.CSTNode]] = {}
    otherwise = set()
    """Names that have a value of their own where there is no torchrun."""
    for name, value, node in given:
        kind = _value(change, value, found) if value is not None and change.early(node) else ""
        if kind:
            found.setdefault(name, kind)
        if value is not None and not change.for_torchrun(node):
            defined |= {value: (name, node)} if kind else {}
            otherwise |= set() if kind else {name}
    for node in source.nodes:
        kind = "" if change.for_torchrun(node) or edits.gone(node) else _asked(change, node, found)
        if not kind or any(entry in defined for entry in [node, *source.above(node)]):
            continue
        chain, here = [node, *source.above(node)], source.scope(node) is change.scope
        parent, early = chain[1], change.early(node) if here else not change.runs(source, node)
        device = [e for e in chain if isinstance(e, cst.FormattedString) or source.called(e) == "torch.device"]
        if early and code(node) in otherwise:
            continue
        if (of_job := divide(change, parent)) is not None:
            edits.replace(parent, code(of_job))
        elif isinstance(parent, cst.AugAssign) and "/=" in code(parent):
            edits.remove(parent)
        elif kind == LOCAL and here and (device or isinstance(parent, cst.Arg)):
            edits.replace(device[-1] if device else node, "job.device")
        elif (early and (kind != LOCAL or not here)) or (kind == LOCAL and isinstance(parent, cst.Comparison)):
            change.leave(node, "job.rank and world_size are known in the loop; job.on_each_node() is once for each")
            found[f"{code(node)} "] = kind
        else:
            change.elsewhere |= not here
            tests = [e.test for e in chain if isinstance(e, cst.If) and source.inside(node, e.test)]
            several = [e for e in tests if re.search(SEVERAL_AND_0, code(e), re.DOTALL)]
            short = several or (node in tests and "==" in kind)
            edits.replace(several[0] if several else node, f"{RANK} == 0" if short else kind)
    for given_as, (name, node) in defined.items():
        if f"{name} " in found:
            edits.replace(given_as, found[name])
        elif not edits.gone(node):
            edits.remove(node)


def _asked(change: Change, node: cst.CSTNode, found: dict[str, str]) -> str:
    """What of the job an expression reads: by itself, or by a name that was given it; "" for nothing."""
    parent = change.source.parents.get(node)
    if isinstance(node, (cst.Name, cst.Attribute)) and code(node) in found:
        other = isinstance(parent, (cst.Arg, cst.Attribute)) and node is not parent.value
        bound = other or change.source.binds(node) or isinstance(parent, cst.ImportAlias)
        return "" if bound else found[code(node)]
    if isinstance(node, cst.Call) and re.search(r"distributed\.get_(rank|world_size)$", change.source.called(node)):
        return OF_JOB[change.source.called(node).rpartition("get_")[2].upper()]
    read = READ.search(code(node)) if isinstance(node, cst.Call) else None
    return OF_JOB[read[1]] if read and (_is_0(parent) or not isinstance(parent, cst.Comparison)) else ""


def _is_0(node: cst.CSTNode | None) -> bool:
    """Whether it compares something with 0, or with 0 and -1."""
    return isinstance(node, cst.Comparison) and bool(re.search(r"(== *|in [\[(].*)(?<![\d.])0\b", code(node)))


def _value(change: Change, value: cst.BaseExpression, found: dict[str, str]) -> str:
    """What of the job a value is, also in one way of `a if b else c`; or whether the rank is 0."""
    for part in [value.body, value.orelse] if isinstance(value, cst.IfExp) else [value]:
        if isinstance(part, cst.Comparison) and _is_0(part) and _asked(change, part.left, found) == RANK:
            return f"({RANK} == 0)"
        if kind := _asked(change, part, found):
            return kind
    return ""


# -- what is looked at, and not changed --------------------------------------------------------------------------------


def remarks(change: Change, join: cst.CSTNode) -> None:
    """One sentence for each call that several processes would make, and for what no rule has taken. join: where the job
    joins."""
    main = change.source
    places = change.program.reached(main, main.module)
    for place in [places[0], *(place for place in places if place.source is not main)]:
        source = place.source
        for call in source.calls(place.node, ""):
            if source is main and (change.for_torchrun(call) or change.edits.gone(call)):
                continue
            name, words = source.called(call), [code(entry) for entry in call.args]
            in_loop, first = change.runs(source, call), source is main and source.line(call) < source.line(join)
            seeded = any(main.line(entry) < main.line(call) for entry in main.calls(main.module, SEEDS))
            sentence = next((sentence for pattern, sentence in NAMED if re.search(pattern, name)), "")
            if re.search(r"(^|\.)(?!Sequential)\w+Sampler$", name) and name not in source.classes:
                taken = [call, *(entry for entry in source.above(call) if source.called(entry).endswith("DataLoader"))]
                if not change.claimed & set(taken):
                    sentence = "job.loader() does not ask this which samples it chooses"
            seeded |= any("generator=" in word or "state=" in word for word in words)
            if re.search(DRAWS, name) and first and not seeded:
                sentence = "each worker draws for itself here, also one that joins later: seed it, generator="
            judged = isinstance(source.scope(call), cst.FunctionDef) and re.search(JUDGES, code(source.scope(call)))
            if not judged and name.endswith(("Loss", "_loss", "cross_entropy")) and re.search(UNEVEN, " ".join(words)):
                sentence = "this is no mean over samples, and the job takes the mean over the ranks: weigh it"
            if in_loop and re.search(r"\.sum\(\)\.backward$", code(call.func)):
                sentence = "a sum over the batch: each rank has its part, and the job takes the mean of them"
            if name == "torch.load" and source is main and change.early(call):
                change.note(call, "the job's own checkpoints win over what is loaded here, once there is one")
            opened = name == "open" and any(re.search(r"^(mode=)?[\"'][wax]", word) for word in words[1:])
            if opened or re.search(WRITES, name):
                _file(change, source, call)
            if sentence:
                change.leave(call, sentence, source)
    for source in change.program.sources:
        known = [change.loop, *(entry.node for entry in change.inner)]
        for node in source.nodes:
            if isinstance(node, Loop) and change.program.trains(source, node) and node not in known:
                change.leave(node, "this loop trains, too: only one can be the job's, a step for a batch", source)


def _file(change: Change, source: Source, call: cst.Call) -> None:
    """One rank writes a file: where the statement does nothing else, it is put behind a condition."""
    if _on_rank_0(change, source, call, 4):
        return
    statement = source.statement(call)
    own = source is change.source and source.scope(call) is change.scope and not change.early(call)
    ends = (cst.Assign, cst.AugAssign, cst.Break, cst.Continue, cst.Return)
    binds = any(isinstance(node, ends) for node in walk(statement))
    if own and not binds and isinstance(statement, (cst.SimpleStatementLine, cst.With)):
        change.edits.behind(call, f"{RANK} == 0")
    else:
        change.leave(call, "every rank writes this file: `if job.rank == 0:`, in the loop or behind it", source)


def _on_rank_0(change: Change, source: Source, node: cst.CSTNode, depth: int) -> bool:
    """Whether it stands behind a condition on the rank, here or wherever its function is called."""
    if any(isinstance(entry, cst.If) and ON_RANK_0.search(code(entry.test)) for entry in source.above(node)):
        return True
    called = change.program.callers(source.scope(node)) if depth else []
    return bool(called) and all(_on_rank_0(change, where, call, depth - 1) for where, call in called)
