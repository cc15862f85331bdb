"""The loop becomes the job's: epochs over a DataLoader by job.epochs() and job.loader(), iterations by job.next() and
job.share().

Promise: a DataLoader stays where it is, with all that decides which samples it gives; what the job's loader would not
do is named. Limit: that ranks draw different batches is sure of random numbers alone, drawn for each micro batch.
"""

from __future__ import annotations

import re

import libcst as cst

from .change import BAR, Change, Inner, range_of
from .source import Source, arguments, bindings, code, handed, names, parameters, walk

PLACES = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler")
"""DataLoader's first arguments."""
OPTIONS = r"dataset|batch_size|shuffle|generator|num_workers|collate_fn|pin_memory(_device)?|timeout|worker_init_fn"
OPTIONS += r"|multiprocessing_context|prefetch_factor|persistent_workers|batch_sampler|sampler|drop_last"
WORLD = re.compile(r"world_?size|n_?gpus|num_?gpus|num_replicas|device_count", re.IGNORECASE)
"""What a number of processes is called."""
SEVERAL = r"(^|\.)(DistributedDataParallel|DistributedSampler|init_process_group)$"
RANDOM = r"(^|\.)(randint|randperm|rand|randn|multinomial|choice|choices|sample|normal|uniform)$"
STATEFUL = r"(^|\.)(next|__next__|read|readline|pop|popleft)$"
SIZE = r"^(\w+\.)*(micro_?)?(batch_?size|bs)$"
PLUS_1 = r" *\+ *1$"


def epochs(change: Change) -> None:
    """The job counts the epochs, and shares out the data."""
    loop = change.loop
    if (count := _counted(change, "epoch")) and isinstance(loop, cst.For) and (number := range_of(change.source, loop)):
        if count[0] == "1":
            change.edits.top(loop, f"{code(loop.target)} += 1")
        change.edits.replace(number, f"job.epochs({count[1]})")
    for call in change.source.calls(change.source.module, r"(^|\.)DistributedSampler$"):
        if not change.for_torchrun(call):
            _distributed_sampler(change, call)
    for entry in change.inner:
        _pass(change, entry)


def iterations(change: Change) -> None:
    """The job counts the iterations, and shares out each."""
    edits, loop, source = change.edits, change.loop, change.source
    if isinstance(loop, cst.While):
        if code(loop.test) not in ("True", "1"):
            edits.top(loop, f"if not ({code(loop.test)}):\n    break")
            if not change.alike(source, loop.test):
                change.leave(loop, "every rank has to end the loop in the same iteration; job.stop() on each")
        edits.replace(loop.test, "job.next()")
    elif count := _counted(change, "step"):
        if any(names(loop.body, code(loop.target))):
            edits.top(loop, f"{code(loop.target)} = job.global_step")
        edits.whiles(loop, f"job.next({count[1]})")
    micro = change.inner[0].node if len(change.inner) == 1 and not change.inner[0].calls else None
    number = range_of(source, micro) if isinstance(micro, cst.For) else None
    if number is None or not isinstance(micro, cst.For) or len(number.args) != 1:
        change.leave(
            loop, "say how an iteration is shared out: job.share(micro_batches), or job.share(samples).positions"
        )
        change.batch = _batch(change) or "256"
    else:
        _share(change, micro, number.args[0].value)
        _draws(change, micro)


def _counted(change: Change, what: str) -> tuple[str, str] | None:
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
    if first == "1" and what == "epoch" and re.search(PLUS_1, last):
        return first, re.sub(PLUS_1, "", last)
    if first != "0":
        change.edits.before(loop, f"job.begin_at({what}={first})")
        change.note(loop, f"job.begin_at({what}={first}) counts until the job has a checkpoint of its own")
    return "0", last


# -- passes over data --------------------------------------------------------------------------------------------------


def _pass(change: Change, entry: Inner) -> None:
    """What a loop goes over becomes the job's loader."""
    source, loop = entry.source, entry.node
    found, counter = loop.iter if isinstance(loop, cst.For) else loop.test, None
    while isinstance(found, cst.Call) and found.args and re.search(rf"{BAR}|^enumerate$", source.called(found)):
        counter = found if source.called(found) == "enumerate" else counter
        found = found.args[0].value
    name = _outside(change, entry, found.value) if isinstance(found, cst.Name) else None
    made = _made(change, name) if name is not None and change.certain(name) else []
    if name is None or not made:
        sentence = (
            "the DataLoader that this trains on is not seen: job.loader(dataset, ...) before the loop over epochs"
        )
        change.leave(loop, sentence, source)
        change.batch = change.batch or "256"
        return
    change.edits.before(change.loop, f"{name} = job.loader({name})")
    if counter is not None:
        _count_on(change, entry, counter, code(found))
    passes = {node for e in change.inner if isinstance(e.node, cst.For) for node in walk(e.node.iter)}
    passes |= {node for e in change.inner for _, call in e.calls for node in walk(call)}
    for node in [entry for entry in names(change.scope, name) if not change.early(entry)]:
        parent = change.source.parents[node]
        read = isinstance(parent, cst.Attribute) and parent.attr.value in ("dataset", "sampler")
        if node not in passes and not read and change.source.called(change.source.parents[parent]) != "len":
            change.leave(node, f"{name} is the job's loader here, each pass of which trains: this needs one of its own")
    for where, call in made:
        _options(change, where, call, name)


def _outside(change: Change, entry: Inner, name: str) -> str | None:
    """The name in the job's function of what a loop in a called function calls `name`; None where it is no name."""
    for source, call in reversed(entry.calls):
        place = change.program.function(source, call)
        assert place is not None
        given = handed(place.node, call).get(name)
        if given is None:  # no parameter: of the module, perhaps
            return name if place.source is change.source and name not in parameters(place.node) else None
        if not isinstance(given, cst.Name):
            return None
        name = given.value
    return name


def _count_on(change: Change, entry: Inner, counter: cst.Call, name: str) -> None:
    """A worker that joins within a pass counts on where the others are."""
    words = arguments(counter)
    start = code(words.get("1", words.get("start", cst.Integer("0"))))
    done = f"{name}.done" if start == "0" else f"{name}.done + {start}"
    callers = change.program.callers(entry.source.scope(entry.node)) if entry.calls else []
    if entry.source is not change.source or any(call is not entry.calls[-1][1] for _, call in callers):
        change.leave(entry.node, f"write enumerate({name}, {done}) here, for what job.loader() has made", entry.source)
    else:
        change.edits.replace(counter, f"enumerate({code(counter.args[0].value)}, {done})")


def _made(change: Change, name: str) -> list[tuple[Source, cst.Call]]:
    """The calls of DataLoader that a name may come from, also those of a function that it is given by."""
    found: list[tuple[Source, cst.Call]] = []
    for value, node in change.given(name):
        call = value if value is not None else getattr(node, "value", None)
        place = change.program.function(change.source, call) if isinstance(call, cst.Call) else None
        if isinstance(call, cst.Call) and change.source.called(call).endswith("DataLoader"):
            found.append((change.source, call))
        elif place and (loaders := place.source.calls(place.node, r"DataLoader$")):
            found += [(place.source, loader) for loader in loaders]
        else:
            return []
    return found


def _options(change: Change, source: Source, call: cst.Call, name: str) -> None:
    """What the DataLoader was given: which samples, how many, in which order."""
    change.claimed.add(call)
    change.made.append(call)
    given = {PLACES[int(key)] if key in "01234" else key: value for key, value in arguments(call).items()}
    for key, value in given.items():
        if key == "batch_sampler" or (key == "sampler" and not _plain(change, source, value)):
            choice = f"{code(value)} decides which samples are trained on, and job.loader() takes a plain order only"
            change.leave(call, f"{choice}: a Subset of what it chooses, in each epoch (script-parts.md)", source)
        elif key == "drop_last" and code(value) != "False":
            change.leave(call, "what drop_last leaves out, job.loader() trains on, in a short last step", source)
        elif not re.fullmatch(OPTIONS, key):
            change.leave(call, f"{key} may decide what is trained on, and job.loader() does not know it", source)
    dataset = given.get("dataset")
    dataset = (change.value(code(dataset)) if dataset is not None and source is change.source else None) or dataset
    kind = change.program.definition(source, source.called(dataset))
    if kind is not None and any("Iterable" in code(base.value) for base in kind.bases):
        change.leave(call, f"{kind.name.value} is a stream: docs/how-to/data-that-is-no-dataset.md", source)
    batch, known = given.get("batch_size"), change.batch
    change.batch = code(batch) if batch is not None and source is change.source else f"{name}.batch_size"
    if change.batch.startswith(f"{name}."):
        change.behind += [node for _, node in change.given(name)]
    if batch is None and "**" not in given:
        change.leave(call, f"join(batch={name}.batch_size): say the global batch", source)
    elif batch is not None and (divided := divide(change, batch)) is not None and source is change.source:
        change.batch = code(divided)
        change.edits.replace(batch, change.batch)
    elif batch is not None and _of_one_gpu(change, source, code(batch)):
        sentence = f"join(batch=...) is the global batch, here too: {code(batch)} times the GPUs, where it is one GPU's"
        change.leave(call, sentence, source)
    if known not in ("", change.batch):
        change.leave(call, f"another batch than {known}: join(batch=...) is the global batch of every pass", source)


def _of_one_gpu(change: Change, source: Source, batch: str) -> bool:
    """Whether a batch, or a number of micro batches, may be that of one GPU: no line divides it."""
    last = batch.split(".")[-1]
    kinds = (cst.BinaryOperation, cst.AugAssign)
    divides = [code(n) for n in source.nodes if isinstance(n, kinds) and re.search(rf"\b{last}\b.*/", code(n))]
    several = any(where.calls(where.module, SEVERAL) for where in change.program.sources)
    return several and not any(WORLD.search(line) for line in divides)


def divide(change: Change, node: cst.CSTNode) -> cst.BaseExpression | None:
    """What is divided by the number of processes; None where nothing is."""
    if isinstance(node, cst.Call) and change.source.called(node) == "int" and len(node.args) == 1:
        return divide(change, node.args[0].value)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Divide, cst.FloorDivide)):
        value = change.value(code(node.right))
        return node.left if WORLD.search(code(node.right) + (code(value) if value is not None else "")) else None
    return None


def _plain(change: Change, source: Source, sampler: cst.BaseExpression) -> bool:
    """Whether a sampler is None in a worker of `selastic run`, or gives each sample once."""
    values = [value for value, _ in change.given(code(sampler)) if source is change.source] or [sampler]
    for value in [e for v in values for e in ([v.body, v.orelse] if isinstance(v, cst.IfExp) else [v])]:
        kind = re.search(r"(^|\.)(Distributed|Random|Sequential)Sampler$", source.called(value))
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


# -- micro batches -----------------------------------------------------------------------------------------------------


def _share(change: Change, micro: cst.For, total: cst.BaseExpression) -> None:
    """A global batch is so many micro batches, of which each rank has its share."""
    edits, source, steps = change.edits, change.source, code(total)
    edits.replace(micro.iter, "micros")
    edits.before(micro, f"micros = job.share({steps})")
    divided = False
    for node in walk(change.loop.body):
        if isinstance(node, cst.BaseExpression) and code(node) == steps and node is not total:
            operator = getattr(source.parents[node], "operator", None)
            divides = isinstance(operator, (cst.Divide, cst.DivideAssign)) and source.inside(node, micro.body)
            divided |= divides
            if divides or not isinstance(node, cst.Integer):
                edits.replace(node, "len(micros)")
    if not divided:
        change.leave(micro, f"divide the loss by len(micros), this rank's part of the {steps}")
    change.micro_batch = _batch(change)
    change.batch = f"{steps} * {change.micro_batch}" if change.micro_batch else steps
    if not change.micro_batch:
        change.leave(micro, "join(batch=...) is given micro batches; multiply by the samples of one")
    if _of_one_gpu(change, source, steps):
        change.leave(
            micro, f"join() and job.share() take the micro batches of all GPUs: {steps} times those, if of one"
        )


def _batch(change: Change) -> str:
    """The samples of what is drawn: a name that says so."""
    found = (code(node) for place in change.reach for node in walk(place.node) if isinstance(node, cst.BaseExpression))
    return next((name for name in found if re.search(SIZE, name) and change.given(name.split(".")[0])), "")


def _draws(change: Change, micro: cst.For) -> None:
    """Where each micro batch comes from. One that is drawn for the next is drawn where it is used."""
    source, edits, random = change.source, change.edits, False
    early = {code(node): node for node in source.nodes if isinstance(node, cst.Assign) and change.early(node)}
    for again in [n for statement in micro.body.body[1:] for n in walk(statement) if isinstance(n, cst.Assign)]:
        if code(again) in early and source.statement(again) in micro.body.body:
            edits.remove(again)
            edits.remove(early[code(again)])
            edits.top(micro, code(again))
    for place in change.program.reached(source, micro.body):
        for call in place.source.calls(place.node, f"{RANDOM}|{STATEFUL}"):
            random = True
            if re.search(STATEFUL, place.source.called(call)) or "generator=" in code(call):
                sentence = "each rank would draw the same here: its own part (docs/how-to/data-that-is-no-dataset.md)"
                change.leave(call, sentence, place.source)
        for node in walk(place.node):
            if isinstance(node, (cst.Global, cst.Nonlocal)) or (code(node).startswith("self.") and any(bindings(node))):
                change.leave(
                    node, "what this keeps from call to call is one rank's own, and lost to joiners", place.source
                )
    if not random:
        change.leave(micro, "where its batch comes from is not seen: each rank takes its own part of the iteration")
