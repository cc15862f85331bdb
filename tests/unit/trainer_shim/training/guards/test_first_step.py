"""What would end a job when it first grows, or is first saved, ends it before its first step, alone, too."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from local_jobs import DATA, loss_of, refused
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, ReduceLROnPlateau, SequentialLR, StepLR

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.checkpoint import contents
from slurm_elastic.trainer_shim.parallel import fsdp
from slurm_elastic.trainer_shim.training import session
from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS, fully_shard

cuts = pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")


class Model(nn.Module):
    """With one more buffer, or none."""

    def __init__(self, buffer: torch.Tensor | None = None, persistent: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("more", buffer, persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(x)
        return output


class Frozen(Model):
    """With one more parameter, which is not trained."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.frozen = nn.Parameter(values, requires_grad=False)


class Row(Model):
    """Of matrices only, one of them a single row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1, bias=False)


class Unpaired(Model):
    def get_extra_state(self) -> Any:
        return {"seen": 1}


class Renamed(Model):
    """Gives another name, or twice the values, and takes them as they are."""

    def __init__(self, values: bool) -> None:
        super().__init__()
        self.values = values
        self._register_state_dict_hook(self._give)
        self._register_load_state_dict_pre_hook(lambda *_: None)

    @staticmethod
    def _give(self: Any, state: Any, prefix: str, _: Any) -> None:
        weight = state.pop(prefix + "layer.weight")
        state[prefix + ("layer.weight" if self.values else "kernel")] = weight * 2


class Words(Model):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.table(torch.zeros(len(x), dtype=torch.long)))


def train(made: list[elastic.Job], way: str, model: nn.Module, optimizer: Any = torch.optim.SGD, **options: Any) -> int:
    """Steps that were taken; of at most 3."""
    own = {name: options.pop(name) for name in ("micro_batch",) if name in options}
    job = elastic.join(batch=8, **own)
    made.append(job)
    made_of = optimizer(model.parameters(), lr=0.01)
    if way in ("ddp", "fsdp"):
        net = job.wrap(model, made_of, strategy=way, **options)
        for _ in job.epochs(1):
            for batch in job.loader(DATA):
                job.step(loss_of(net, batch))
    else:
        parts = options.pop("parts", 1)
        net = getattr(job, way)(model, **options)
        job.keep(optimizer=made_of)
        while job.next(3):
            for _ in job.share(parts):
                loss_of(net, DATA.tensors).backward()
            made_of.step()
            made_of.zero_grad()
    return job.global_step


EYE = torch.eye(3)
MUON, ADAFACTOR = (getattr(torch.optim, name, None) for name in ("Muon", "Adafactor"))  # of newer torch
"""From torch 2.9 on."""
TABLE = torch.quantize_per_tensor(EYE, 0.1, 0, torch.qint8)
UNKNOWN: dict[str, tuple[str, Callable[[], nn.Module], dict[str, Any], str]] = {
    "coo": ("replicate", lambda: Model(EYE.to_sparse()), {}, r"tensor of layout torch.sparse_coo at \['more'\]"),
    "csr": ("ddp", lambda: Model(EYE.to_sparse_csr()), {}, r"tensor of layout torch.sparse_csr at \['more'\]"),
    "coo that is not kept": ("ddp", lambda: Model(EYE.to_sparse(), False), {}, "'more' is of layout torch.sparse_coo"),
    "expanded": (
        "ddp",
        lambda: Model(torch.ones(1).expand(3)),
        {},
        r"tensor whose elements share memory at \['more'\]",
    ),
    "quantised": ("replicate", lambda: Model(TABLE), {}, "torch.qint8"),
    "8 bits of a parameter": ("ddp", lambda: Frozen(EYE.to(torch.float8_e5m2)), {}, "'frozen' is of type torch.float8"),
    "coo of a parameter": (
        "replicate",
        lambda: Frozen(EYE.to_sparse()),
        {},
        r"tensor of layout torch.sparse_coo at \['frozen'\]",
    ),
    "8 bits": ("ddp", lambda: Model(EYE.to(torch.float8_e5m2)), {}, "'more' is of type torch.float8_e5m2"),
    "16 bits": ("replicate", lambda: Model(EYE.to(torch.uint16)), {}, r"'more' is of type torch.uint16|at \['more'\]"),
    "half a pair": ("ddp", Unpaired, {}, "does not take what its state_dict.* in pairs"),
    "another name": ("replicate", lambda: Renamed(False), {}, "does not take .*Missing key.* in pairs"),
    "other values": ("ddp", lambda: Renamed(True), {}, "it gives other values then"),
    "fixed graph": ("ddp", Model, {"static_graph": True, "micro_batch": 2}, r"static_graph=True does not go with join"),
    "parts": ("replicate", Model, {"static_graph": True, "parts": 2}, "not go with more micro batches than one"),
}
CUT: dict[str, tuple[str, Callable[[], nn.Module], dict[str, Any], str]] = {
    "words": ("fsdp", Words, {}, "'table' has sparse gradients, which a sharded, or a deterministic, step"),
    "factors": ("fsdp", Model, {"optimizer": ADAFACTOR}, "a Adafactor cannot step parameters that are cut"),
    "rows": ("fsdp", Row, {"optimizer": MUON}, "a Muon cannot step parameters that are cut up"),
    "signs": ("shard", Model, {"optimizer": torch.optim.Rprop}, "a Rprop cannot step parameters that are cut up"),
    "cut wrongly": (
        "fsdp",
        Model,
        {"shard": lambda model, mesh: fully_shard(model.layer, mesh=7)},
        "does not shard over two ranks",
    ),
}


@pytest.mark.parametrize(
    "kind", [*UNKNOWN, *(pytest.param(kind, marks=cuts) for kind in CUT if CUT[kind][2].get("optimizer", True))]
)
def test_what_only_a_world_or_a_checkpoint_would_show_is_refused(
    made: list[elastic.Job], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Before the first step; without the look ahead one process trains."""
    way, model, options, said = {**UNKNOWN, **CUT}[kind]
    with refused(said):
        train(made, way, model(), **options)
    (job,) = made
    assert job.global_step == 0
    if kind != "parts":  # which is looked at in its share
        job.close()
        made.clear()
        monkeypatch.setattr(session, "look_ahead", lambda *_, **__: None)
        monkeypatch.setattr(contents, "check_tensors", lambda _: None)
        assert train(made, way, model(), **options) == 3


@pytest.mark.parametrize(
    ("way", "model", "options"),
    [
        ("ddp", lambda: Model(EYE.to(torch.float8_e5m2)), {"broadcast_buffers": False}),
        ("replicate", lambda: Model(EYE.to_sparse(), persistent=False), {"broadcast_buffers": False}),
        ("ddp", Words, {}),
        ("ddp", lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), {"static_graph": True}),
        pytest.param("fsdp", Model, {"optimizer": torch.optim.Rprop}, marks=cuts),
        pytest.param("shard", Model, {"optimizer": torch.optim.AdamW}, marks=cuts),
    ],
)
def test_what_a_world_can_do_is_not_refused(
    made: list[elastic.Job], way: str, model: Callable[[], nn.Module], options: dict[str, Any]
) -> None:
    assert train(made, way, model(), **options) == 3


def test_what_a_step_brings_about_is_looked_at_behind_the_first(made: list[elastic.Job]) -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            self.state[self.param_groups[0]["params"][0]]["seen"] = EYE.to_sparse()

    with refused(r"state of 'Optimizer0' has a tensor of layout torch.sparse_coo at \['state'\]\[0\]\['seen'\]"):
        train(made, "ddp", Model(), Odd)
    assert made[0].global_step == 1


@cuts
def test_a_tried_optimizer_is_left_as_it_is(made: list[elastic.Job]) -> None:
    """Its state, what a scheduler has put in its place, and its hooks."""
    model, called = Model(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.register_step_pre_hook(lambda *_: called.append(1))
    step, groups = optimizer.step, [dict(group) for group in optimizer.param_groups]
    job = elastic.join(batch=8)
    made.append(job)
    job.wrap(model, optimizer, strategy="fsdp")
    next(iter(job.epochs(1)))
    assert isinstance(job._session.strategy, fsdp.Sharded)
    assert not optimizer.state and not called and optimizer.step == step
    assert [group["params"] for group in groups] == [group["params"] for group in optimizer.param_groups]
    assert not torch.distributed.is_initialized()


class Trainer:
    """Of a script's own: what it keeps holds the rest."""

    def __init__(self, schedule: Any) -> None:
        self.schedules = {"one": schedule}

    def state_dict(self) -> dict[str, Any]:
        return self.schedules["one"].state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.schedules["one"].load_state_dict(state)


class Slots:
    """Of a script's own, without a dict."""

    __slots__ = ("schedule",)

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule

    def state_dict(self) -> dict[str, Any]:
        return self.schedule.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.schedule.load_state_dict(state)


def nested(optimizer: Any) -> Any:
    innermost = SequentialLR(optimizer, [StepLR(optimizer, 1), StepLR(optimizer, 2)], [2])
    return ChainedScheduler([SequentialLR(optimizer, [StepLR(optimizer, 1), innermost], [2])])


def replaced(optimizer: Any) -> Any:
    """Its first one is there until cycles are looked for."""
    schedule = StepLR(optimizer, 1)
    schedule.itself = schedule  # type: ignore[attr-defined]
    return StepLR(optimizer, 2)


def behind_accelerates(optimizer: Any) -> Any:
    schedule = StepLR(optimizer, 1)
    schedule.optimizer = SimpleNamespace(optimizer=optimizer)
    return schedule


class TimmScheduler:
    """As timm has them: of no kind of torch's, told the number of updates."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.best = optimizer, 0.0

    def step_update(self, updates: int) -> None:
        self.optimizer.param_groups[0]["lr"] = 0.1 / (1 + updates + self.best)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]


class LinearWarmup(TimmScheduler):
    """As pytorch_warmup has them."""

    def dampen(self) -> None:
        self.best += 1


@pytest.mark.parametrize("own", [False, True], ids=["wrap", "own loop"])
@pytest.mark.parametrize(
    ("make", "keep", "held"),
    [
        (TimmScheduler, lambda schedule: {}, False),
        (LinearWarmup, lambda schedule: {}, False),
        (TimmScheduler, lambda schedule: {"schedule": schedule}, True),
        (TimmScheduler, lambda schedule: {"trainer": Trainer(schedule)}, True),
        (lambda optimizer: StepLR(optimizer, 1), lambda schedule: {}, False),
        (behind_accelerates, lambda schedule: {}, False),
        (lambda optimizer: ReduceLROnPlateau(optimizer), lambda schedule: {}, False),
        (lambda optimizer: StepLR(optimizer, 1), lambda schedule: {"schedule": schedule}, True),
        (lambda optimizer: ChainedScheduler([StepLR(optimizer, 1)]), lambda schedule: {"schedule": schedule}, True),
        (lambda optimizer: StepLR(optimizer, 1), lambda schedule: {"trainer": Trainer(schedule)}, True),
        (lambda optimizer: StepLR(optimizer, 1), lambda schedule: {"slots": Slots(schedule)}, True),
        (nested, lambda schedule: {"schedule": schedule}, True),
        (nested, lambda schedule: {"trainer": Trainer(schedule)}, True),
        (replaced, lambda schedule: {"schedule": schedule}, True),
    ],
)
def test_a_schedule_that_does_not_survive_is_refused(
    request: pytest.FixtureRequest, made: list[elastic.Job], own: bool, make: Any, keep: Any, held: bool
) -> None:
    """It would begin anew with each restart: another training, of which no rank sees anything."""
    job = elastic.join(batch=8)
    made.append(job)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if make is replaced:
        gc.disable()
        request.addfinalizer(gc.enable)
    schedule = make(optimizer)
    net = job.replicate(model) if own else job.wrap(model, optimizer)
    job.keep(**keep(schedule), **({"optimizer": optimizer} if own else {}))
    with nullcontext() if held else refused(f"the schedule {type(schedule).__name__} of an optimizer that survives"):
        for _ in job.epochs(1):
            for batch in job.loader(DATA):
                optimizer.zero_grad()
                loss = loss_of(net, batch)
                if own:
                    loss.backward()
                    optimizer.step()
                else:
                    job.step(loss)
