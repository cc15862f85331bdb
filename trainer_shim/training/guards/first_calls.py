"""What a model, and a loss, does in the first step that ranks with a part of the batch each would do otherwise.

A model that has changed attributes of its own in its first call is called once more: where they change what it gives,
they are state that goes from step to step, and that no state_dict has. One that has changed buffers is called with half
of the rows: where that changes them otherwise, they follow each rank's own rows (in a world of several ranks
replica_check compares them in its place). Of the loss the second derivatives by the model's outputs are asked whether
rows act on each other. Limits: not of sharded models; a loss by outputs of many elements, or that cannot be derived
twice, or that is linear in other rows.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from types import NoneType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves, tree_map

from slurm_elastic.protocol.errors import TrainingError

from ...data.sampling import seed_all
from ...world.one_rank import COLLECTIVES
from .first_step import OVER_GLOO
from .unkept import states_of, survive

ELEMENTS = 1 << 22
"""Of outputs, up to which a loss is derived twice."""
TURNS = ("TBackward0", "TransposeBackward0", "PermuteBackward0")
APART = 1e-3
"""Relative difference of outputs that is no rounding."""
TINY = 1e-6
OWN = set(vars(nn.Module()))
"""Attributes of any module."""
ATTRIBUTES = (
    "calls of the model change its attribute '{0}', and the next one gives something else by it: it begins anew on a "
    "worker that joins or starts again, and each rank has it for its own samples; accepted: to begin it in each step, "
    "a buffer of what is the same on all ranks, or join(meant=['{0}']) where that is meant"
)
BUFFERS = (
    "the model's forward() changes its buffer '{0}' by the rows that a rank is given, which differ from rank to rank; "
    "accepted: to change it by what torch.distributed.all_reduce() makes of it where there are several ranks, or "
    "join(meant=['{0}']) where rank 0's may count"
)
LOSS = (
    "the loss is no mean over samples: rows of the batch act on each other in it (pairs, a normalisation over the "
    "batch, the root of a mean), so that ranks with a part of the batch each train otherwise than one with all of it; "
    "accepted: the mean of a loss of each sample, or join(meant=['loss']) where each rank's part is meant to be a "
    "batch of its own"
)


class FirstCalls:
    """One per training, until its first step is done. meant: names of which the script says that it is meant so."""

    def __init__(self, meant: Collection[str], parts: Mapping[str, Any]) -> None:
        """parts: what survives."""
        self._meant, self._parts = meant, parts
        self._called: set[int] = set()
        self._outputs: list[tuple[torch.Tensor, int]] = []
        """Those of models, each with its samples; 0: not known how many."""
        self._backward: Any = None

    def call(self, model: Any, args: Any, kwargs: Any, samples: int, alone: bool) -> Any:
        """Call a model of which gradients are wanted. samples: that it is given; 0: not known. alone: on one rank.
        Raises TrainingError."""
        module: nn.Module = model.module
        if not module.training or getattr(model, "sharded", False):
            return model(*args, **kwargs)
        if self._backward is None:
            tensor: Any = torch.Tensor
            self._backward = backward = tensor.backward

            def checked(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
                self.check_loss(loss)
                backward(loss, *args, **kwargs)

            tensor.backward = functools.wraps(backward)(checked)
        if id(module) in self._called:
            result = model(*args, **kwargs)
        else:
            self._called.add(id(module))
            result = self._first(model, args, kwargs, alone)
        found = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.dim()]
        self._outputs += [(leaf, samples) for leaf in found if leaf.grad_fn is not None]
        return result

    def end(self) -> None:
        self._outputs.clear()
        if self._backward is not None:
            torch.Tensor.backward = self._backward  # type: ignore[method-assign]

    def _first(self, model: Any, args: Any, kwargs: Any, alone: bool) -> Any:
        module, before = model.module, _Held(model.module)
        result = model(*args, **kwargs)
        now = _Held(module)
        accepted = {*self._meant, *survive(self._parts.values())[1]}
        changed = [name for name in before.changed(now) if accepted.isdisjoint((name, name.rpartition(".")[2]))]
        attributes = [name for name in changed if name in now.attributes]
        buffers = [name for name in changed if name not in now.attributes]
        half = _half(args, kwargs) if buffers and alone and not _communicates(module) else None
        if attributes or half is not None:
            whole = before.called(args, kwargs)
        if attributes and _apart(whole[0], now.called(args, kwargs, buffers=before)[0]):
            raise TrainingError(ATTRIBUTES.format(attributes[0]))
        if half is not None:
            other = before.called(*half)[1]
            for name in buffers:
                if name in other and name in whole[1] and _apart(whole[1][name], other[name]):
                    raise TrainingError(BUFFERS.format(name))
        return result

    def check_loss(self, loss: torch.Tensor) -> None:
        """Before its backward pass."""
        outputs, self._outputs = self._outputs, []
        if "loss" in self._meant or loss.numel() != 1 or loss.grad_fn is None:
            return
        nodes: list[Any] = [output.grad_fn for output, _ in outputs]
        inside = _behind([other for node in nodes for other, _ in node.next_functions])
        outputs = [(output, samples) for output, samples in outputs if output.grad_fn not in inside]
        rows = {len(output) for output, _ in outputs}
        if any(_is_of_pairs(node, rows) for node in _behind([loss.grad_fn], nodes)):
            raise TrainingError(LOSS)
        if not outputs or sum(output.numel() for output, _ in outputs) > ELEMENTS:
            return
        wanted = [output for output, _ in outputs]
        try:
            grads = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
            used = [(*entry, grad) for entry, grad in zip(outputs, grads, strict=True) if grad is not None]
            if any(not self._acts_across(used, views) for views in (1, 2)):
                return
        except RuntimeError:  # of a function that cannot be derived twice
            return
        raise TrainingError(LOSS)

    def _acts_across(self, used: list[tuple[torch.Tensor, int, torch.Tensor]], views: int) -> bool:
        """Whether the gradient by the first half of the samples depends on the others, where a sample has so many rows,
        one after the other or apart."""
        for apart in (False, True)[:views]:
            generator, total, masks = torch.Generator().manual_seed(1), torch.zeros(()), []
            for output, samples, grad in used:
                rows = len(output)
                if rows % (samples or rows) or rows < 2 * max(views, 1):
                    return False
                each = rows // samples if samples else views
                number = torch.arange(rows)
                number = number // each if apart else number % (rows // each)
                masks.append((number < rows // each // 2).to(output.device))
                direction = torch.randn(grad.shape, generator=generator).to(grad)
                if grad.grad_fn is not None:
                    total = total.to(grad) + (grad * direction)[masks[-1]].sum()
            if total.grad_fn is None:
                return False
            second = torch.autograd.grad(total, [entry[0] for entry in used], retain_graph=True, allow_unused=True)
            across = [
                bool(entry[~mask].abs().max() > TINY * entry.abs().max())
                for entry, mask in zip(second, masks, strict=True)
                if entry is not None
            ]
            if not any(across):
                return False
        return True


def kept_buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Those that checkpoints have, but for torch's own modules: running statistics follow each rank's rows."""
    for place, part in module.named_modules():
        if _is_own(part):
            for name, buffer in part._buffers.items():
                plain = type(buffer) is torch.Tensor and buffer.layout == torch.strided and buffer.dtype in OVER_GLOO
                if plain and not buffer.is_meta and name not in part._non_persistent_buffers_set:
                    yield f"{place}.{name}".removeprefix("."), buffer


class _Held:
    """What calls of a model may change: attributes of its modules that no state_dict has, and buffers."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.buffers = {name: buffer.clone() for name, buffer in kept_buffers(module)}
        self.attributes: dict[str, Any] = {}
        self._versions: dict[str, Any] = {}
        self._known = {id(part): set(vars(part)) for part in module.modules()}
        self._buffers = {name: buffer.clone() for name, buffer in module.named_buffers(remove_duplicate=False)}
        for place, part in module.named_modules():
            if not _is_own(part) or type(part).get_extra_state is not nn.Module.get_extra_state:
                continue
            unsaved = {name: part._buffers[name] for name in part._non_persistent_buffers_set}
            for key, value in {**{key: vars(part)[key] for key in vars(part).keys() - OWN}, **unsaved}.items():
                name = f"{place}.{key}".removeprefix(".")
                if states := states_of(value):
                    self._versions[name] = [(one, one._version) for one in states if isinstance(one, torch.Tensor)]
                elif type(value) in (int, float, NoneType):
                    self._versions[name] = value
                if name in self._versions:
                    self.attributes[name] = tree_map(_copy, value)

    def changed(self, now: _Held) -> list[str]:
        """Names of what is otherwise now."""
        before = self._versions
        found = [name for name, value in now._versions.items() if not _same(before.get(name), value)]
        buffers = self.buffers
        return found + [
            name for name, value in now.buffers.items() if name not in buffers or not torch.equal(buffers[name], value)
        ]

    def called(self, args: Any, kwargs: Any, buffers: _Held | None = None) -> tuple[Any, dict[str, Any]]:
        """What the model gives, and its buffers then, where it is called with all this, or with buffers from elsewhere;
        it has what it has now afterwards. Nothing, where it cannot be called so."""
        held = [(part, dict(vars(part)), dict(part._buffers)) for part in self._module.modules()]
        found = {**(buffers or self)._buffers, **self.attributes}
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        try:
            for place, part in self._module.named_modules():
                for key in vars(part).keys() - self._known[id(part)]:
                    del vars(part)[key]
                for owned in (part._buffers, vars(part)):
                    names = {key: f"{place}.{key}".removeprefix(".") for key in owned.keys() - OWN}
                    owned.update({key: tree_map(_copy, found[name]) for key, name in names.items() if name in found})
            with torch.random.fork_rng(devices), torch.no_grad():
                seed_all(1)
                return self._module(*args, **kwargs), dict(kept_buffers(self._module))
        except Exception:
            return None, {}
        finally:
            for part, values, own in held:
                vars(part).clear()
                vars(part).update(values)
                part._buffers.clear()
                part._buffers.update(own)


def _is_own(part: nn.Module) -> bool:
    return not type(part).__module__.startswith("torch.") and not isinstance(part, _NormBase)


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, list) and isinstance(now, list):
        return [(id(one), version) for one, version in before] == [(id(one), version) for one, version in now]
    return type(before) is type(now) and before == now


def _half(args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    """The first half of the rows of all tensors; None where that is not known."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    rows = len(tensors[0]) if tensors and tensors[0].dim() else 0
    if rows < 2 or any(not leaf.dim() or len(leaf) != rows for leaf in tensors):
        return None
    half: tuple[Any, Any] = tree_map(
        lambda leaf: leaf[: rows // 2] if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)
    )
    return half


def _communicates(module: nn.Module) -> bool:
    """Whether code of the model names a collective: it is right in a world of several ranks, and not asked for here."""
    kinds = {kind for part in module.modules() if _is_own(part) for kind in type(part).__mro__}
    own = [value for kind in kinds if not kind.__module__.startswith("torch.") for value in vars(kind).values()]
    functions = [value for value in own if hasattr(value, "__code__")]
    functions += [
        value.__globals__[name] for value in functions for name in value.__code__.co_names if name in value.__globals__
    ]
    names = {name for value in functions if hasattr(value, "__code__") for name in value.__code__.co_names}
    return not names.isdisjoint(COLLECTIVES)


def _apart(one: Any, other: Any) -> bool:
    """Whether tensors in them differ by more than rounding."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=False)
    for left, right in pairs:
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            if left.shape != right.shape:
                return True
            if left.numel() and bool((left.detach() - right).abs().max() > APART * left.detach().abs().max()):
                return True
    return False


def _behind(left: list[Any], ends: Collection[Any] = ()) -> set[Any]:
    """These nodes of a graph, and all that lead to them, up to these ends."""
    found: set[Any] = set()
    while left:
        node = left.pop()
        if node is not None and node not in found and node not in ends:
            found.add(node)
            left += [entry for entry, _ in node.next_functions]
    return found


def _is_of_pairs(node: Any, rows: set[int]) -> bool:
    """Whether a node is a product of each row of the batch with each, and of no parameter."""
    if node.name() not in ("MmBackward0", "CdistBackward0"):
        return False
    shape, operands = _shape_of(node), [entry for entry, _ in node.next_functions]
    turned = [other for other in operands if other is not None and other.name() in TURNS]
    operands += [entry for other in turned for entry, _ in other.next_functions]
    parameters = any(entry is not None and entry.name() == "torch::autograd::AccumulateGrad" for entry in operands)
    return shape[0] == shape[1] and shape[0] in rows and shape[0] > 1 and not parameters


def _shape_of(node: Any) -> tuple[int, ...]:
    """Of what such a node gives."""
    if hasattr(node, "_input_metadata"):  # from torch 2.5 on
        return tuple(node._input_metadata[0].shape)
    if node.name() == "MmBackward0":
        return node._saved_self_sym_sizes[0], node._saved_mat2_sym_sizes[1]
    return tuple(node._saved_result.shape)
