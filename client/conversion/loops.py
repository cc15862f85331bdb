"""The loop becomes the job's: epochs over a DataLoader, by job.epochs() and job.loader().

Promise: a DataLoader stays where it is, with all that decides which samples it gives; what the job's loader would not
do is named.
"""

import re

import libcst as cst

from .change import BAR, Change, Pass, range_of
from .source import arguments, code, handed, names, parameters, walk

PLACES = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler")
"""DataLoader's first arguments."""
OPTIONS = r"dataset|batch_size|shuffle|generator|num_workers|collate_fn|pin_memory(_device)?|timeout|worker_init_fn"
OPTIONS += r"|multiprocessing_context|prefetch_factor|persistent_workers|batch_sampler|sampler|drop_last"
WORLD = re.compile(r"world_?size|n_?gpus|num_?gpus|num_replicas|device_count", re.IGNORECASE)
"""What a number of processes is called."""
SEVERAL = r"(^|\.)(DistributedDataParallel|DistributedSampler|init_process_group)$"
PLUS_1 = r" *\+ *1$"


def epochs(change: Change) -> None:
    """The job counts the epochs, and shares out the data."""
    loop = change.loop
    if (count := _counted(change)) and isinstance(loop, cst.For) and (number := range_of(change.source, loop)):
        if count[0] == "1":
            change.edits.top(loop, f"{code(loop.target)} += 1")
        change.edits.replace(number, f"job.epochs({count[1]})")
    for call in change.source.calls(change.source.module, r"(^|\.)DistributedSampler$"):
        if not change.for_torchrun(call):
            _distributed_sampler(change, call)
    for entry in change.passes:
        _pass(change, entry)


def _counted(change: Change) -> tuple[str, str] | None:
    """First and last number of the loop over range(), "1" and how many for numbers from 1; None, and said, where it
    goes in steps of its own."""
    loop = change.loop
    call = range_of(change.source, loop) if isinstance(loop, cst.For) else None
    if call is None or not isinstance(loop, cst.For):
        return None
    words = [code(entry.value) for entry in call.args]
    if any(entry.star for entry in call.args) or words[2:] not in ([], ["1"]) or not isinstance(loop.target, cst.Name):
        change.leave(loop, f"{code(call)} goes in steps of its own, and the job by one from 0: say how long it is")
        return None
    first, last = (words[0], words[1]) if len(words) > 1 else ("0", words[0])
    if first == "1" and re.search(PLUS_1, last):
        return first, re.sub(PLUS_1, "", last)
    if first != "0":
        change.edits.before(loop, f"job.begin_at(epoch={first})")
    return "0", last


# -- passes over data --------------------------------------------------------------------------------------------------


def _pass(change: Change, entry: Pass) -> None:
    """What a loop goes over becomes the job's loader."""
    source, loop = change.source, entry.node
    found = loop.iter if isinstance(loop, cst.For) else loop.test
    while isinstance(found, cst.Call) and found.args and re.search(rf"{BAR}|^enumerate$", source.called(found)):
        if source.called(found) == "enumerate" and isinstance(found.args[0].value, cst.Call):
            change.leave(
                loop, "a worker that joins in a pass counts on in enumerate(loader) alone: the bar goes around it"
            )
        found = found.args[0].value
    name = _outside(change, entry, found.value) if isinstance(found, cst.Name) else None
    made = _made(change, name) if name is not None and change.certain(name) else []
    if name is None or not made:
        sentence = (
            "the DataLoader that this trains on is not seen: job.loader(dataset, ...) before the loop over epochs"
        )
        change.leave(loop, sentence)
        change.batch = change.batch or "256"
        return
    change.edits.before(change.loop, f"{name} = job.loader({name})")
    passes = {node for e in change.passes if isinstance(e.node, cst.For) for node in walk(e.node.iter)}
    passes |= {node for e in change.passes for call in e.calls for node in walk(call)}
    for node in [entry for entry in names(change.scope, name) if not change.early(entry)]:
        parent = source.parents[node]
        read = isinstance(parent, cst.Attribute) and parent.attr.value in ("dataset", "sampler")
        if node not in passes and not read and source.called(source.parents[parent]) != "len":
            change.leave(node, f"{name} is the job's loader here, each pass of which trains: this needs one of its own")
    for call in made:
        _options(change, call, name)


def _outside(change: Change, entry: Pass, name: str) -> str | None:
    """The name in the job's function of what a loop in a called function calls `name`; None where it is no name."""
    for call in reversed(entry.calls):
        function = change.source.function(call)
        assert function is not None
        given = handed(function, call).get(name)
        if given is None:  # no parameter: of the module, perhaps
            return name if name not in parameters(function) else None
        if not isinstance(given, cst.Name):
            return None
        name = given.value
    return name


def _made(change: Change, name: str) -> list[cst.Call]:
    """The calls of DataLoader that a name may come from, also those of a function that it is given by."""
    found: list[cst.Call] = []
    for value, node in change.given(name):
        call = value if value is not None else getattr(node, "value", None)
        function = change.source.function(call) if isinstance(call, cst.Call) else None
        if isinstance(call, cst.Call) and change.source.called(call).endswith("DataLoader"):
            found.append(call)
        elif function and (loaders := change.source.calls(function, r"DataLoader$")):
            found += loaders
        else:
            return []
    return found


def _options(change: Change, call: cst.Call, name: str) -> None:
    """What the DataLoader was given: which samples, how many, in which order."""
    source = change.source
    change.claimed.add(call)
    change.made.append(call)
    given = {PLACES[int(key)] if key in "01234" else key: value for key, value in arguments(call).items()}
    for key, value in given.items():
        if key == "batch_sampler" or (key == "sampler" and not _plain(change, value)):
            choice = f"{code(value)} decides which samples are trained on, and job.loader() takes a plain order only"
            change.leave(call, f"{choice}: a Subset of what it chooses, in each epoch (script-parts.md)")
        elif key == "drop_last" and code(value) != "False":
            change.leave(call, "what drop_last leaves out, job.loader() trains on, in a short last step")
        elif not re.fullmatch(OPTIONS, key):
            change.leave(call, f"{key} may decide what is trained on, and job.loader() does not know it")
    dataset = given.get("dataset")
    dataset = (change.value(code(dataset)) if dataset is not None else None) or dataset
    kind = source.classes.get(source.called(dataset))
    if kind is not None and any("Iterable" in code(base.value) for base in kind.bases):
        change.leave(call, f"{kind.name.value} is a stream: docs/how-to/data-that-is-no-dataset.md")
    batch, known, here = given.get("batch_size"), change.batch, source.scope(call) in (change.scope, source.module)
    change.batch = code(batch) if batch is not None and here else f"{name}.batch_size"
    if change.batch.startswith(f"{name}."):
        change.behind += [node for _, node in change.given(name)]
    if batch is None and "**" not in given:
        change.leave(call, f"join(batch={name}.batch_size): say the global batch")
    elif batch is not None and _of_one_gpu(change, code(batch)):
        change.leave(call, f"join(batch=...) is the global batch, here too, and {code(batch)} may be that of one GPU")
    if known not in ("", change.batch):
        change.leave(call, f"another batch than {known}: join(batch=...) is the global batch of every pass")


def _of_one_gpu(change: Change, batch: str) -> bool:
    """Whether a batch may be that of one GPU: it is divided where it is used, or nowhere."""
    last, kinds = batch.split(".")[-1], (cst.BinaryOperation, cst.AugAssign)
    found = [code(n) for n in change.source.nodes if isinstance(n, kinds)] if last.isidentifier() else []
    divided = any(re.search(rf"\b{last}\b.*/", line) and WORLD.search(line) for line in found)
    return bool(change.source.calls(change.source.module, SEVERAL)) and not divided


def _plain(change: Change, sampler: cst.BaseExpression) -> bool:
    """Whether a sampler is None in a worker of `selastic run`, or gives each sample once."""
    values = [value for value, _ in change.given(code(sampler))] or [sampler]
    for value in [e for v in values for e in ([v.body, v.orelse] if isinstance(v, cst.IfExp) else [v])]:
        kind = re.search(r"(^|\.)(Distributed|Random|Sequential)Sampler$", change.source.called(value))
        if isinstance(value, cst.Call) and kind and not {"replacement", "num_samples", "1"} & set(arguments(value)):
            change.claimed.add(value)
        elif value is None or code(value) != "None":
            return False
    return True


def _distributed_sampler(change: Change, call: cst.Call) -> None:
    """The job shares out: a sampler of the whole dataset, in the same order, takes its place."""
    source, given = change.source, arguments(call)
    dataset = given.get("dataset", given.get("0"))
    if dataset is None or "drop_last" in given or source.aliases.get("torch") != "torch":
        change.leave(call, "the job shares out the data: a RandomSampler of the whole dataset in place of this")
        return
    kind = "Sequential" if code(given.get("shuffle", dataset)) == "False" else "Random"
    change.edits.replace(call, f"torch.utils.data.{kind}Sampler({code(dataset)})")
    change.claimed.add(call)
    for entry in source.calls(source.module, r"\.set_epoch$"):
        if isinstance(source.parents[entry], cst.Expr):
            change.edits.remove(entry)
