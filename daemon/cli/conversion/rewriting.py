"""What is changed in a script so that its own loop becomes elastic, and what is left to its author.

Every change follows one rule of docs/how-to/convert-a-script.md. Where a rule does not fit, nothing is changed, and one
sentence says what is to be done in that line. What stands behind a condition that holds under torchrun only is left:
`selastic run` does not come to it.
"""

from __future__ import annotations

import ast
import re

from slurm_elastic.protocol.errors import ElasticError

from .edits import Edits
from .script import Loop, Script

Left = list[tuple[int, str]]
"""Lines of the script as it was, and what is to be done there."""
DISTRIBUTED = "torch.distributed."
OWN_LIBRARIES = ("lightning", "pytorch_lightning", "transformers.Trainer", "accelerate.Accelerator")
OF_LOADER = ("batch_size", "sampler", "shuffle", "drop_last", "batch_sampler", "generator", "persistent_workers")
"""DataLoader's options that job.loader() does without."""


def converted(text: str, name: str) -> tuple[str, Left]:
    """The script's text after the change, and what is left to its author. Raises ElasticError where nothing fits."""
    try:
        script = Script(text, name)
    except (SyntaxError, ValueError) as error:
        raise ElasticError(f"{name} is no Python program: {error}") from None
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
    rewriting = _Rewriting(script, Edits(text), loops[0])
    for other in loops[1:]:
        rewriting.leave(other, "this is another loop that trains; only one can be the job's, and it is left as it is")
    rewriting.all()
    after = rewriting.edits.result()
    try:
        ast.parse(after)
    except SyntaxError as error:
        raise ElasticError(f"{name} is written in a way that this cannot change: line {error.lineno}") from None
    return after, sorted(set(rewriting.left))


class _Rewriting:
    """One script's."""

    def __init__(self, script: Script, edits: Edits, loop: Loop) -> None:
        self.script, self.edits, self.loop = script, edits, loop
        self.scope = script.scope(loop)
        self.left: Left = []
        self._needed: list[ast.AST] = [loop]
        """What needs the job, in the loop's own function."""
        self._elsewhere = False
        """The job is needed in other functions."""
        self._top: list[str] = []
        """Lines for the top of the loop's body."""
        self._before: list[str] = []
        """Lines for in front of the loop."""
        self._join = ""
        self._whole = False
        """That it is the global batch is known."""
        self._removed: list[ast.stmt] = []
        self._replaced: set[ast.AST] = set()
        """What nobody reads any more."""
        self._shares: list[tuple[ast.stmt, str]] = []
        """Lines in front of statements of the loop."""
        self._settings: list[str] = []
        """Lines for in front of join()."""
        sharded = script.calls(script.tree, "fully_shard")
        self._sharded = min(sharded, key=lambda call: call.lineno, default=None)

    def leave(self, node: ast.AST, sentence: str) -> None:
        self.left.append((getattr(node, "lineno", 1), sentence))

    def _remove(self, statement: ast.stmt) -> None:
        self._removed.append(statement)
        self._replaced |= set(ast.walk(statement))

    def needs_job(self, node: ast.AST) -> None:
        if self.script.scope(node) is self.scope:
            self._needed.append(node)
        else:
            self._elsewhere = True

    def all(self) -> None:
        self._groups()
        models = self._models()
        if self.script.over_data(self.loop):
            self._epochs()
        else:
            self._iterations()
        self._kept(models)
        self._ranks()
        self._rest()
        self._import()
        self._write()

    # -- what torchrun's processes do ----------------------------------------------------------------------------

    def _groups(self) -> None:
        """The process group and the device are the job's."""
        script = self.script
        ends = ("init_process_group", "destroy_process_group", "cuda.set_device", "accelerator.set_device_index")
        for call in script.calls(script.tree, *ends):
            if "device" in ast.unparse(call.func) and "rank" not in ast.unparse(call).lower():
                continue  # not one of several; each worker sees its own alone
            if behind := script.for_torchrun(call):
                self.leave(behind, "this is for torchrun; `selastic run` does not set RANK, so it is not taken there")
            elif isinstance(script.parents[call], ast.Expr):
                statement = script.statement(call)
                self._remove(statement)
        for call in script.calls(script.tree, "multiprocessing.spawn", "start_processes"):
            self.leave(
                call, "this starts processes by itself; `selastic run` starts one for each GPU: call the function"
            )

    def _ranks(self) -> None:
        """Rank and world size are asked of the job, in the loop, where they may change."""
        script = self.script
        names: list[tuple[str, str]] = []
        for node in ast.walk(self.loop):
            if isinstance(node, ast.If):
                test = ast.unparse(node.test)
                if re.search(r"rank\b", test) and re.search(r"distributed|world_size", test):
                    self.edits.replace(node.test, "job.rank == 0")
                    self._replaced |= set(ast.walk(node.test))
        self._world_sizes()
        for node in list(ast.walk(script.tree)):
            kind = self._asks(node)
            if kind and isinstance(node, ast.expr) and node not in self._replaced and not script.for_torchrun(node):
                self.edits.replace(node, kind)
                self.needs_job(node)
        ranks = {name: kind for name, value, _ in script.assigned(self.scope) if (kind := self._asks_in(value))}
        for name, value, statement in script.assigned(self.scope):
            if statement.lineno >= self.loop.lineno or name in dict(names):
                continue
            if kind := self._asks_in(value):
                names.append((name, kind))
            elif (asked := _is_0(value)) is not None and (
                self._asks_in(asked) == "job.rank" or ranks.get(ast.unparse(asked)) == "job.rank"
            ):
                names.append((name, "job.rank == 0"))
        names += [(n, "job.rank") for n in ("args.rank",) if n not in dict(names) and self._reads(n) and n in ranks]
        self._top += [f"{name} = {kind}" for name, kind in names if self._reads(name) and not kind.startswith("(")]

    def _world_sizes(self) -> None:
        """A number divided by the world's size is this rank's part of one that is the job's now, and shared out by it.
        Before the loop nobody knows that size."""
        script, edits = self.script, self.edits
        for node in ast.walk(script.tree):
            if node in self._replaced or script.for_torchrun(node):
                continue
            if isinstance(node, ast.BinOp) and self._undivided(node) is not node:
                edits.replace(node, edits.source(self._undivided(node)))
                self._replaced |= set(ast.walk(node)) - set(ast.walk(node.left))
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.FloorDiv) and self._is_size(node.value):
                self._remove(node)
            elif (
                isinstance(node, ast.BinOp)
                and (self._is_size(node.left) or self._is_size(node.right))
                and script.scope(node) is self.scope
                and node.lineno < self.loop.lineno
            ):
                self.leave(node, "job.world_size is 0 before the loop: write the number that is meant")

    def _undivided(self, node: ast.expr) -> ast.expr:
        """What of an expression is the job's, where it is divided by the world's size."""
        if isinstance(node, ast.Call) and self.script.full_name(node.func) == "int" and len(node.args) == 1:
            inside = self._undivided(node.args[0])
            return node if inside is node.args[0] else inside
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.FloorDiv, ast.Div)) and self._is_size(node.right):
            return node.left
        return node

    def _is_size(self, node: ast.expr) -> bool:
        if self._asks(node) == "job.world_size":
            return True
        given = [value for name, value, _ in self.script.assigned(self.scope) if name == ast.unparse(node)]
        return any(self._asks_in(value) == "job.world_size" for value in given)

    def _reads(self, name: str) -> bool:
        """Whether the loop, or what it may call, reads a name."""
        within = self.script.tree if isinstance(self.scope, ast.Module) else self.loop
        start = self.loop.lineno
        return any(
            isinstance(node, (ast.Name, ast.Attribute))
            and isinstance(node.ctx, ast.Load)
            and node not in self._replaced
            and ast.unparse(node) == name
            and (node.lineno >= start or self.script.scope(node) is not self.scope)
            for node in ast.walk(within)
        )

    def _asks(self, node: ast.AST) -> str:
        """What of the job this expression asks torch.distributed or torchrun's environment for."""
        if isinstance(node, ast.Call):
            name = self.script.full_name(node.func)
            if name.endswith(("distributed.get_rank", "distributed.get_world_size")):
                return "job.rank" if name.endswith("rank") else "job.world_size"
            if name == "int" and len(node.args) == 1 and (found := _variable(node.args[0])):
                asked = {"RANK": "job.rank", "WORLD_SIZE": "job.world_size", "LOCAL_RANK": "(job.device.index or 0)"}
                return asked.get(found, "")
        return ""

    def _asks_in(self, value: ast.expr | None) -> str:
        if value is None:
            return ""
        return self._asks(value) or next((kind for node in ast.walk(value) if (kind := self._asks(node))), "") * (
            isinstance(value, ast.IfExp)
        )

    # -- models and what is kept ---------------------------------------------------------------------------------

    def _models(self) -> set[str]:
        """Replicate what was wrapped; the names of models."""
        script, edits, models = self.script, self.edits, set()
        for call in script.calls(script.tree, "DataParallel"):
            statement = script.statement(call)
            if isinstance(statement, ast.Assign) and statement.value is call:
                self._remove(statement)
            elif call.args:
                edits.replace(call, edits.source(call.args[0]))
        wraps = list(script.calls(script.tree, "DistributedDataParallel"))
        for call in wraps:
            if not call.args:
                continue
            model, statement = edits.source(call.args[0]), script.statement(call)
            kept = [edits.source(entry) for entry in call.keywords if entry.arg == "find_unused_parameters"]
            replicated = f"job.replicate({', '.join([model, *kept])})"
            target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
            models.add(target)
            behind = script.for_torchrun(call)
            self._replaced |= {node for entry in call.keywords for node in ast.walk(entry)}
            if behind is None:
                edits.replace(call, replicated)
                self.needs_job(call)
            elif behind.body == [statement] and not behind.orelse and target and script.for_torchrun(behind) is None:
                edits.replace(behind, f"{target} = {replicated}")
                self.needs_job(behind)
            else:
                if target == model:
                    self._remove(statement)
                else:
                    edits.replace(call, model)
                if (line := f"{target} = job.replicate({target})") not in self._before:
                    self._before.append(line)
        if not wraps:
            self._shards()
            for name in self._parameters_of():
                models.add(name)
                way = "replicate" if self._sharded is None else "shard"
                self._before.append(f"{name} = job.{way}({name})")
        if not models:
            self.leave(self.loop, "no model is found; give each to job.replicate(model) before the loop")
        for node in ast.walk(script.tree):
            if isinstance(node, ast.Attribute) and node.attr == "no_sync" and not script.for_torchrun(node):
                self.leave(node, "gradients travel with the last micro batch of job.share() by themselves")
        return models

    def _shards(self) -> None:
        """What is cut up before there is a world is remembered, and done in each one."""
        for call in self.script.calls(self.script.tree, "fully_shard"):
            self.edits.replace(call.func, "elastic.fully_shard")
            for entry in call.keywords:
                if entry.arg == "mesh":
                    self.leave(call, "leave mesh= out: each world has a mesh of its own, job.mesh")
        if self._sharded is not None:
            self.leave(
                self._sharded,
                "the model is cut up in the loop, where there is a world: what looks at its parts, or loads them, "
                "before it has to go; job.save(path) writes the whole model",
            )

    def _parameters_of(self) -> list[str]:
        """Names whose parameters optimizers are made of."""
        found: dict[str, None] = {}
        for _, value, _ in self._assigned_like(r"optim(?!.*lr_scheduler)"):
            for node in ast.walk(value):
                if isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters"):
                    found[ast.unparse(node.value)] = None
        return list(found)

    def _assigned_like(self, pattern: str) -> list[tuple[str, ast.expr, ast.stmt]]:
        found = []
        for name, value, statement in self.script.assigned(self.scope):
            call = value
            if isinstance(call, ast.Call) and statement.lineno < self.loop.lineno:
                full = self.script.full_name(call.func) or ast.unparse(call.func)
                if re.search(pattern, full):
                    found.append((name, value, statement))
        return found

    def _kept(self, models: set[str]) -> None:
        """Optimizers, schedulers, scaler, and numbers that the loop goes on with."""
        words = []
        if numbers := self._numbers():
            declared = {n for node in ast.walk(self.scope) if isinstance(node, ast.Global) for n in node.names}
            if isinstance(self.scope, ast.Module) or set(numbers) <= declared:
                words.append("globals()")
                words += [f'"{name}"' for name in numbers]
            else:
                self.leave(
                    self.loop,
                    f"{', '.join(numbers)} of {self.scope.name}() would not survive: keep them in an object, "
                    'e.g. types.SimpleNamespace, and job.keep(vars(object), "name")',
                )
        parts = {}
        for name, _, statement in self._assigned_like(r"(?i)optim|lr_scheduler|LR$|_scheduler$|GradScaler$"):
            self._needed.append(statement)
            parts[name.split(".")[-1]] = name
        optimizers = self._assigned_like(r"optim(?!.*lr_scheduler)|(?i:create_optimizer)")
        if not optimizers:
            self.leave(
                self.loop, "no optimizer is found in this function; job.keep(optimizer=optimizer) before the loop"
            )
        words += [f"{key}={name}" for key, name in parts.items() if name not in models]
        if words:
            self._before.append(f"job.keep({', '.join(words)})")

    def _numbers(self) -> list[str]:
        """Variables with a number before the loop that the loop assigns."""
        of_loop = {
            node.id for node in ast.walk(self.loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        target = self.loop.target if isinstance(self.loop, ast.For) else None
        if isinstance(target, ast.Name):
            of_loop.discard(target.id)
        where = [self.scope] if isinstance(self.scope, ast.Module) else [self.scope, self.script.tree]
        found = []
        for scope in where:
            for name, value, statement in self.script.assigned(scope):
                number = value.operand if isinstance(value, ast.UnaryOp) else value
                if name in of_loop and isinstance(number, ast.Constant) and isinstance(number.value, (int, float)):
                    outside = not any(entry is self.loop for entry in self.script.above(statement))
                    if outside and name not in found and not isinstance(number.value, bool):
                        found.append(name)
        return found

    # -- epochs --------------------------------------------------------------------------------------------------

    def _epochs(self) -> None:
        script, edits, loop = self.script, self.edits, self.loop
        if not isinstance(loop, ast.For):
            raise ElasticError(
                f"line {loop.lineno} goes over epochs with while; accepted: `for epoch in range(n)`, which becomes "
                "job.epochs(n)"
            )
        counted = script.range_of(loop)
        assert counted is not None
        first, last = (counted.args[0], counted.args[1]) if len(counted.args) > 1 else (None, counted.args[0])
        count, start = edits.source(last), edits.source(first) if first is not None else "0"
        if start == "1" and isinstance(last, ast.BinOp) and ast.unparse(last).endswith(" + 1"):
            count = edits.source(last.left)
            self._top.append(f"{ast.unparse(loop.target)} += 1")
        elif start != "0":
            self._before.append(f"job.begin_at(epoch={start})")
            self.leave(loop, f"job.begin_at(epoch={start}) counts until the job has a checkpoint of its own")
        edits.replace(counted, f"job.epochs({count})")
        self._loader()

    def _loader(self) -> None:
        script, edits = self.script, self.edits
        samplers = [call for call in script.calls(script.tree, "DistributedSampler") if not script.for_torchrun(call)]
        for call in samplers:
            edits.replace(call, "None")
        for call in script.calls(script.tree, "set_epoch") if samplers else ():
            statement = script.statement(call)
            if script.for_torchrun(call) is None and isinstance(statement, ast.Expr):
                self._remove(statement)
        loaders = {
            name: (value, statement)
            for name, value, statement in script.assigned(self.scope)
            if isinstance(value, ast.Call) and script.full_name(value.func).endswith("DataLoader")
        }
        trained = [name for name in loaders if self._trained_on(name)]
        if len(trained) != 1:
            self.leave(
                self.loop,
                "the DataLoader that is trained on is not found in this function; write job.loader(dataset, ...) in "
                "its place, inside the loop, and join(batch=...) with its batch",
            )
            return
        (name,) = trained
        call, statement = loaders[name]
        written = {entry.arg: entry.value for entry in call.keywords if entry.arg}
        written |= dict(zip(("batch_size", "shuffle"), call.args[1:3], strict=False))
        options = {key: edits.source(self._undivided(value)) for key, value in written.items()}
        if any(entry.arg is None for entry in call.keywords):
            self.leave(
                statement,
                "what ** gives to the DataLoader is not seen: batch_size goes to join(batch=...), and "
                "others, without shuffle, to job.loader(...)",
            )
        if options.get("drop_last") == "True":
            self.leave(
                statement, "job.loader() has a short last step in place of drop_last; join(slice=...) keeps sizes even"
            )
        self._join = options.get("batch_size", "")
        self._whole = "batch_size" in written and self._undivided(written["batch_size"]) is not written["batch_size"]
        dataset = call.args[0] if call.args else next((e.value for e in call.keywords if e.arg == "dataset"), None)
        data = edits.source(dataset) if isinstance(dataset, (ast.Name, ast.Attribute)) else f"{name}_dataset"
        if not isinstance(dataset, (ast.Name, ast.Attribute)):
            edits.after(statement, [f"{data} = {name}.dataset"])
        shuffled = options.get("shuffle") not in (None, "False") or "sampler" in options
        given = {key: value for key, value in options.items() if key not in (*OF_LOADER, "dataset")}
        words = [data, *([] if shuffled or any(e.arg is None for e in call.keywords) else ["shuffle=False"])]
        words += [f"{key}={value}" for key, value in given.items()]
        line = f"{name} = job.loader({', '.join(words)})"
        self._top.append(line)
        self._needed.append(statement)
        whole = isinstance(dataset, (ast.Name, ast.Attribute)) and script.parents[statement] is self.scope
        if whole and not script.used(name, self.scope, but=self.loop):
            self._remove(statement)

    def _trained_on(self, name: str) -> bool:
        """Whether the loop goes over this loader and trains, or hands it to a function that does."""
        for node in ast.walk(self.loop):
            over = isinstance(node, ast.For) and node is not self.loop and self.script.used(name, node.iter)
            if over and self.script.trains(node):
                return True
            if isinstance(node, ast.Call) and self.script.trains(node):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                words = [*node.args, *(entry.value for entry in node.keywords)]
                if called in self.script.functions and any(isinstance(w, ast.Name) and w.id == name for w in words):
                    return True
        return False

    # -- iterations ----------------------------------------------------------------------------------------------

    def _iterations(self) -> None:
        script, edits, loop = self.script, self.edits, self.loop
        if isinstance(loop, ast.For):
            counted = script.range_of(loop)
            assert counted is not None
            first, last = (counted.args[0], counted.args[1]) if len(counted.args) > 1 else (None, counted.args[0])
            if first is not None and edits.source(first) != "0":
                self._before.append(f"job.begin_at(step={edits.source(first)})")
            if (number := ast.unparse(loop.target)) != "_":
                self._top.append(f"{number} = job.global_step")
            edits.replace_from_to(_Start(loop), loop.iter, f"while job.next({edits.source(last)})")
        else:
            forever = isinstance(loop.test, ast.Constant)
            if not forever:
                self._top += [f"if not ({edits.source(loop.test)}):", "    break"]
            edits.replace(loop.test, "job.next()")
        inner = [n for n in ast.walk(loop) if n is not loop and script.counts(n) and script.trains(n)]
        if not inner:
            self.leave(
                loop,
                "say how an iteration is shared out: go over job.share(micro_batches), or take "
                "job.share(samples).positions of what all ranks draw",
            )
            return
        self._accumulation(inner[0])

    def _accumulation(self, inner: ast.AST) -> None:
        script, edits = self.script, self.edits
        assert isinstance(inner, ast.For)
        counted = script.range_of(inner)
        assert counted is not None
        steps = edits.source(counted.args[-1])
        edits.replace(inner.iter, "micros")
        if isinstance(counted.args[-1], ast.Name):
            self._settings.append(f"micro_batches = {steps}")
            self._shares.append((inner, f"{steps} = len(micros := job.share(micro_batches))"))
            self._join = "micro_batches"
        else:
            self._shares.append((inner, f"micros = job.share({steps})"))
            self._join = steps
            self.leave(inner, f"divide the loss by len(micros), this rank's part, where it is divided by {steps}")
        sizes = {name for name, _, _ in script.assigned(self.scope)}
        if "batch_size" in sizes:
            self._join = f"{self._join} * batch_size, micro_batch=batch_size"
        else:
            self.leave(self.loop, "join(batch=...) is given micro batches; multiply by the samples of one")
        self._draw_inside(inner)

    def _draw_inside(self, inner: ast.For) -> None:
        """A batch that is drawn for the next micro batch would be lost at a resize: it is drawn where it is used."""
        script, edits = self.script, self.edits
        texts = {ast.unparse(node): node for node in script.scope(self.loop).body if node.lineno < self.loop.lineno}
        for node in inner.body[1:]:
            before = texts.get(ast.unparse(node))
            if isinstance(node, ast.Assign) and before is not None:
                self._remove(node)
                self._remove(before)
                edits.before(inner.body[0], [edits.source(node)])

    # -- the rest ------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        script = self.script
        for node in ast.walk(script.tree):
            if not isinstance(node, ast.Call) or script.for_torchrun(node):
                continue
            name = script.full_name(node.func)
            if name.startswith(DISTRIBUTED) and not self._asks(node) and not name.endswith("_process_group"):
                if name.endswith("barrier"):
                    self.leave(node, "no barrier is needed: job.once(function) has the others wait")
                elif re.fullmatch(r"(?!get_|is_)[a-z_]+", name[len(DISTRIBUTED) :]):
                    self.leave(node, f"{name} needs all ranks of the world: in the loop only, and not in job.once()")
            elif name.endswith(("wandb.init", "SummaryWriter", "mlflow.start_run")):
                self.leave(node, "give it to job.tracker(...), so that it is rank 0's (docs/how-to/log-a-run.md)")
            elif name.endswith(("torch.save", "save_image", "savefig")) and not self._on_rank_0(node):
                self.leave(node, "every rank writes this file; put it behind `if job.rank == 0:`")
            elif name == "torch.load" and script.scope(node) is self.scope and node.lineno < self.loop.lineno:
                self.leave(node, "the job's own checkpoints win over what is loaded here, once there is one")

    def _on_rank_0(self, node: ast.AST) -> bool:
        chain = [entry for entry in self.script.above(node) if isinstance(entry, ast.If)]
        if any(re.search(r"rank|master|main_process|is_main", ast.unparse(entry.test)) for entry in chain):
            return True
        scope = self.script.scope(node)
        if isinstance(scope, ast.Module):
            return False
        called = [c for c in self.script.calls(self.script.tree, scope.name) if self.script.scope(c) is not scope]
        return bool(called) and all(self._on_rank_0(call) for call in called)

    def _write(self) -> None:
        script, edits = self.script, self.edits
        for statement in self._removed:
            block = script.block(statement)
            edits.remove(statement, alone=statement is block[0] and all(entry in self._removed for entry in block))
        places = [script.at_top(node, self.scope) for node in self._needed]
        place = min(places, key=lambda statement: statement.lineno)
        batch = self._join
        if not batch:
            batch = "256"
            self.leave(place, "join(batch=256) is a guess: say the global batch that the learning rate was tuned for")
        elif (
            not self._whole
            and "micro" not in batch
            and next(script.calls(script.tree, "DistributedDataParallel"), None)
        ):
            self.leave(
                place, f"join(batch=...) is the global batch: {batch}, if it was one GPU's, times the number of GPUs"
            )
        declared = ["global job"] if self._elsewhere and not isinstance(self.scope, ast.Module) else []
        edits.before(place, [*declared, *self._settings, f"job = elastic.join(batch={batch})"])
        edits.before(script.at_top(self.loop, self.scope) if self._before else self.loop, self._before)
        inside = next((entry for entry in self.loop.body if not _is_text(entry)), self.loop.body[0])
        edits.before(inside, self._top)
        for statement, line in self._shares:
            edits.before(statement, [line])

    def _import(self) -> None:
        script, edits = self.script, self.edits
        first = next(
            (
                node
                for node in script.tree.body
                if isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "module", "") != "__future__"
            ),
            script.tree.body[0],
        )
        edits.before(first, ["import slurm_elastic.trainer_shim as elastic"])


class _Start(ast.stmt):
    """The beginning of a statement."""

    def __init__(self, node: ast.stmt) -> None:
        super().__init__()
        self.lineno, self.col_offset = node.lineno, node.col_offset
        self.end_lineno, self.end_col_offset = node.lineno, node.col_offset


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


def _is_0(value: ast.expr) -> ast.expr | None:
    """What is compared with 0, or in a list with 0 and -1."""
    if isinstance(value, ast.Compare) and len(value.ops) == 1 and isinstance(value.ops[0], (ast.Eq, ast.In)):
        return value.left if re.search(r"\b0\b", ast.unparse(value.comparators[0])) else None
    return None


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
