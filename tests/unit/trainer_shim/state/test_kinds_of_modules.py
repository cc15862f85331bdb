"""Modules whose state is more than tensors that are copied, or whose tensors lie oddly: a worker that joins, and one
that starts again from a checkpoint, has the state and the outputs of those that trained, to the bit."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from slurm_elastic.trainer_shim.checkpoint import contents
from slurm_elastic.trainer_shim.state import kept_parts
from slurm_elastic.trainer_shim.state.kept_parts import State
from slurm_elastic.trainer_shim.state.packed_tensors import pack

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.ao.quantization import FakeQuantize, HistogramObserver


class Scaled(nn.Linear):
    """Keeps the last factors that it has scaled by, as layers of 8 bits do, and gives them in one form or another."""

    def __init__(self, form: str) -> None:
        super().__init__(4, 4)
        self.form, self.factors = form, [1.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.factors = [*self.factors, float(self.weight.detach().abs().max())][-3:]
        return super().forward(x) / max(self.factors)

    def get_extra_state(self) -> Any:
        if self.form == "tensor":
            return torch.tensor(self.factors, dtype=torch.float64)
        if self.form == "bytes":
            return torch.frombuffer(bytearray(pickle.dumps(self.factors)), dtype=torch.uint8)
        return {"factors": list(self.factors), "nested": (1, None)}

    def set_extra_state(self, state: Any) -> None:
        if self.form == "bytes":
            self.factors = pickle.loads(bytes(state.numpy()))
        else:
            self.factors = state.tolist() if self.form == "tensor" else list(state["factors"])


class Transposed(nn.Linear):
    """Gives its weight in another layout, as a copy, or under another name."""

    def __init__(self, way: str) -> None:
        super().__init__(4, 4)
        self.way = way
        self._register_state_dict_hook(self._give)
        self._register_load_state_dict_pre_hook(self._take)

    @staticmethod
    def _give(self: Any, state: Any, prefix: str, _: Any) -> None:
        weight = state.pop(prefix + "weight")
        given = {"copy": weight.clone() * 2, "view": weight.t(), "name": weight, "cut": weight[:2].clone()}[self.way]
        state[prefix + "kernel"] = given
        if self.way == "cut":
            state[prefix + "rest"] = weight[2:].clone()

    def _take(self, state: Any, prefix: str, *_: Any) -> None:
        kernel = state.pop(prefix + "kernel")
        if self.way == "cut":
            kernel = torch.cat([kernel, state.pop(prefix + "rest")])
        state[prefix + "weight"] = {"copy": kernel / 2, "view": kernel.t()}.get(self.way, kernel)


class Derived(nn.Linear):
    """Computes something of its weight where that is made, and where it is loaded."""

    def __init__(self, hook: bool) -> None:
        super().__init__(4, 4)
        self.kept = self.weight.detach().clone()
        if hook:
            self.register_load_state_dict_post_hook(lambda module, _: module.take())

    def take(self) -> None:
        self.kept = self.weight.detach().clone()


class Overridden(Derived):
    def __init__(self) -> None:
        super().__init__(hook=False)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.take()


class Versioned(nn.Linear):
    """Its form before version 3 was another one, and is converted."""

    _version = 3

    def __init__(self) -> None:
        super().__init__(4, 4)
        self._register_load_state_dict_pre_hook(self._convert)

    def _convert(self, state: Any, prefix: str, metadata: Any, *_: Any) -> None:
        if metadata.get("version") is None or metadata["version"] < 3:
            state[prefix + "weight"] = state[prefix + "weight"] * 10


class Odd(nn.Module):
    """Tensors of all forms that are plain memory."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4).t())
        self.twist = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.tied = self.weight
        self.absent = nn.Parameter(torch.zeros(0, 3))
        self.listed = nn.ParameterList([torch.randn(4), torch.randn(())])
        for name, dtype in (("mask", torch.bool), ("byte", torch.uint8), ("narrow", torch.bfloat16)):
            self.register_buffer(name, torch.ones(4).to(dtype))
        self.register_buffer("eighth", torch.ones(4).to(torch.float8_e4m3fn))
        self.register_buffer("last", torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))
        self.register_buffer("none", None)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.byte += 1
        self.narrow *= 1.5
        self.last += torch.arange(4)
        self.eighth.copy_(torch.full((4,), float(self.count)).to(torch.float8_e4m3fn))
        self.mask[int(self.count) % 4] ^= True
        y = (x @ self.weight * self.mask * self.narrow.float() * self.listed[0] + self.eighth.float()) * self.listed[1]
        return (y * self.twist).abs() + self.last.sum() / (1 + self.byte.float())


def observed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), FakeQuantize(), HistogramObserver(bins=8), nn.Linear(4, 4))


KINDS: dict[str, Callable[[], nn.Module]] = {
    **{f"extra state: {form}": lambda form=form: Scaled(form) for form in ("dict", "tensor", "bytes")},  # type: ignore[misc]
    **{f"state as {way}": lambda way=way: Transposed(way) for way in ("copy", "view", "name", "cut")},  # type: ignore[misc]
    "a hook when loaded": lambda: Derived(hook=True),
    "overridden": Overridden,
    "versioned": Versioned,
    "odd tensors": Odd,
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "old weight norm": lambda: weight_norm(nn.Linear(4, 4)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
    "old spectral norm": lambda: spectral_norm(nn.Linear(4, 4)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    "observers": observed,
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
}


def trained(kind: str, seed: int, steps: int) -> tuple[State, nn.Module]:
    torch.manual_seed(seed)
    model = KINDS[kind]()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.numel()], lr=0.05)
    for _ in range(steps):
        output = model(torch.randn(3, 4) if kind != "attention" else torch.randn(1, 3, 4))
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = State()
    state.keep("Model", model, own=True)
    state.keep("Optimizer0", optimizer, own=True)
    return state, model


def parts_of(value: Any) -> tuple[str, list[torch.Tensor]]:
    tensors: list[torch.Tensor] = []
    return repr(pack(value, tensors)), tensors


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """To compare: the oldest torch cannot compare numbers of 8 bits."""
    return tensor.view(torch.uint8) if "float8" in str(tensor.dtype) else tensor


def assert_alike(one: tuple[State, nn.Module], other: tuple[State, nn.Module], kind: str) -> None:
    (form, tensors), (form2, tensors2) = parts_of(one[0].capture()), parts_of(other[0].capture())
    assert form == form2
    for mine, theirs in zip(tensors, tensors2, strict=True):
        assert bits(mine).equal(bits(theirs))
    if isinstance(other[1], Derived):
        assert other[1].kept.equal(other[1].weight)
    outputs = []
    for _, model in (one, other):
        torch.manual_seed(3)
        outputs.append(model(torch.randn(1, 3, 4) if kind == "attention" else torch.randn(3, 4)))
    assert outputs[0].equal(outputs[1])


def join(holder: State, joiner: State) -> None:
    """As state_transfer.copy_to_joiners() does: what is no tensor travels by pickle."""
    tensors: list[torch.Tensor] = []
    skeleton = pickle.loads(pickle.dumps(pack(holder.capture(), tensors)))
    places, load = joiner.receive(skeleton, torch.device("cpu"))
    for place, tensor in zip(places, tensors, strict=True):
        place.copy_(tensor)
    load()


@pytest.mark.parametrize("kind", KINDS)
def test_a_joiner_and_a_restart_have_all_of_it(kind: str) -> None:
    ours = trained(kind, seed=1, steps=4)
    joiner = trained(kind, seed=2, steps=1)
    join(ours[0], joiner[0])
    file = io.BytesIO()
    torch.save(ours[0].snapshot(), file)
    file.seek(0)
    again = trained(kind, seed=4, steps=0)
    again[0].restore(contents.load(file, "here"))  # type: ignore[arg-type]
    for other in (joiner, again):
        model = trained(kind, seed=1, steps=4)  # outputs change buffers
        assert_alike(model, other, kind)


def test_plain_models_are_filled_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a second copy of them, and without load_state_dict()."""
    ours, (joiner, model) = trained("batch norm", 1, 2), trained("batch norm", 2, 0)
    places = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    skeleton = pack(ours[0].capture(), [])
    tensors, load = joiner.receive(skeleton, torch.device("cpu"))
    assert places <= {tensor.data_ptr() for tensor in tensors}
    monkeypatch.setattr(model, "load_state_dict", None)
    monkeypatch.setattr(kept_parts, "PLAIN_LOADS", ("",))
    load()
