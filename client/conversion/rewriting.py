"""What is changed in a script so that its own loop becomes elastic, and what is left to its author; what it asks of
torch.distributed, and what each of several processes would do again (files, trackers, draws).

Promise: a closed list of patterns is changed (docs/how-to/convert-a-script.md); all else that decides what is trained
stays in its place, and a comment names it. The rank is asked of the job where it is needed, because it may change.
Limit: nothing is run: what a name stands for is what the files say. What holds under torchrun alone is left as it is,
as a worker of `selastic run` does not come there.
"""

import re
from pathlib import Path

import libcst as cst

from slurm_elastic.protocol.errors import ElasticError

from .change import Change, begin
from .loops import epochs
from .source import Block, Loop, Source, arguments, code, names, walk
from .state import kept, models, steps

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
