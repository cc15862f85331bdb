"""What survives: the position, the model, optimizers, schedulers, scaler, and whatever the script asked to keep.

One State object is the only thing that is saved, restored, and handed to joining ranks. It copies; it does not write
files (checkpoint/), and does not know what a world is (world/state_transfer).
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any

import torch

from slurm_elastic.protocol.errors import TrainingError

from .packed_tensors import Slot, copied, match, pack, restructured, slots_of, unpack
from .progress import TrainingProgress

if TYPE_CHECKING:
    from torch.distributed.checkpoint.stateful import Stateful

FORMAT = 1
PINNED_SHARE = 0.25
"""Of the host's memory, the most that a process pins for snapshots. A GPU copies into it at four times the speed."""
PLAIN_LOADS = ("torch.nn.modules.module", "torch.nn.modules.batchnorm")
"""Where torch's functions are that load a module's tensors by copying them."""


class State:
    """Everything kept, by name."""

    def __init__(self) -> None:
        self.progress = TrainingProgress()
        self.parts: dict[str, Stateful] = {}
        self._spare: dict[tuple[torch.Size, torch.dtype], list[torch.Tensor]] = {}
        self._pinned = 0
        """Bytes of pinned memory that snapshots were given."""
        self._own: set[str] = set()
        """Parts whose tensors only a step changes: the model and what wrap() was given."""
        self._marked: dict[str, Any] | None = None
        self._versions: dict[str, Any] = {}
        """Of the modules among the parts, what else their state_dict() says: the versions of its form."""
        self.variables: dict[str, Any] = {}
        """What the script trained by that is no part, as of its last boundary (training/guards/carried.py)."""

    def keep(self, name: str, part: Any, own: bool = False) -> None:
        """Keep one more part. own: only a step changes its tensors. Raises TrainingError when it cannot be saved, or
        the name is taken."""
        if name in self.parts:
            raise TrainingError(f"'{name}' is kept already; give each part a name of its own")
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(part, method, None)):
                raise TrainingError(
                    f"keep({name}=...) was given a {type(part).__name__} without {method}(); "
                    "accepted: an object with state_dict() and load_state_dict()"
                )
        self.parts[name] = part
        if own:
            self._own.add(name)

    def is_own(self, name: str) -> bool:
        """Whether only steps change this part."""
        return name in self._own

    def only_steps_change(self, names: Iterable[str]) -> None:
        """Of parts that are kept already: as keep(own=True)."""
        self._own.update(names)

    def capture(self) -> dict[str, Any]:
        """References to everything, as of now; of the parts as of mark(), where there is one."""
        parts = self._marked or {name: self._state_of(name) for name in self.parts}
        progress = {**dataclasses.asdict(self.progress), "frozen": self.frozen()}
        return {
            "format": FORMAT,
            "progress": progress,
            "parts": parts,
            "versions": dict(self._versions),
            "variables": self.variables,
        }

    def frozen(self) -> tuple[str, ...]:
        """Parameters of the model that are not trained now."""
        model = self.parts.get("Model")
        parameters = model.named_parameters() if isinstance(model, torch.nn.Module) else ()
        return tuple(name for name, parameter in parameters if not parameter.requires_grad)

    def freeze(self, names: Container[str]) -> None:
        """Have these not be trained, and all others: what requires a gradient is part of the state, too."""
        model = self.parts.get("Model")
        for name, parameter in model.named_parameters() if isinstance(model, torch.nn.Module) else ():
            parameter.requires_grad_(name not in names)

    def _state_of(self, name: str) -> dict[str, Any]:
        state = self.parts[name].state_dict()
        if isinstance(self.parts[name], torch.nn.Module):
            self._versions[name] = dict(getattr(state, "_metadata", {}))
        return state

    def capture_values(self) -> dict[str, Any]:
        """As capture(), without what the model has on the meta device. Raises TrainingError for another part that has
        something there."""
        captured = self.capture()
        for name, part in captured["parts"].items():
            tensors: list[torch.Tensor] = []
            if name == "Model":
                captured["parts"] = {**captured["parts"], name: _without_meta(part)}
                continue
            pack(part, tensors)
            if any(tensor.is_meta for tensor in tensors):
                raise TrainingError(
                    f"job.keep({name}=...) was given tensors on the meta device; accepted: what has its values, or "
                    "elastic.Average(model) for averaged weights"
                )
        return captured

    def mark(self) -> None:
        """Until unmark() captures are of the parts as they are now. Tensors that only a step changes are not copied;
        those of what the script keeps are, into host memory."""
        self._marked = {
            name: restructured(self._state_of(name)) if name in self._own else copied(self._state_of(name))
            for name in self.parts
        }

    def unmark(self) -> None:
        self._marked = None

    def back_to_mark(self) -> None:
        """Undo what has been done to the parts since mark(): to the model nothing, to optimizers but their options."""
        for name, marked in (self._marked or {}).items():
            part: Any = self.parts[name]
            if name in self._own and isinstance(part, torch.optim.Optimizer):
                for group, saved in zip(part.param_groups, marked["param_groups"], strict=False):
                    group.update({key: value for key, value in saved.items() if key != "params"})
            elif name != "Model":
                part.load_state_dict(marked)
        self.mark()  # what has been loaded may share its lists with the mark

    def snapshot(self) -> dict[str, Any]:
        """A copy of everything in host memory, which later steps do not change."""
        return self.copy(self.capture())

    def copy(self, captured: dict[str, Any]) -> dict[str, Any]:
        """The copying half of snapshot(); may run beside anything that changes nothing of the capture's tensors."""
        tensors: list[torch.Tensor] = []
        skeleton = pack(captured, tensors)
        places = [self._place(tensor).copy_(tensor, non_blocking=True) for tensor in tensors]
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        filled: dict[str, Any] = unpack(skeleton, places)
        return filled

    def _place(self, like: torch.Tensor) -> torch.Tensor:
        spare = self._spare.get((like.shape, like.dtype))
        if spare:
            return spare.pop()
        size = like.numel() * like.element_size()
        rounded = 1 << max(0, size - 1).bit_length()  # as torch does for pinned memory
        if like.is_cuda and rounded <= size * 3 // 2 and self._pinned + rounded <= PINNED_SHARE * memory_bytes():
            try:
                place = torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)
                self._pinned += rounded
                return place
            except RuntimeError:  # the host allows for no more of it
                self._pinned = sys.maxsize
        return torch.empty(like.shape, dtype=like.dtype, device="cpu")

    def recycle(self, snapshot: dict[str, Any]) -> None:
        """Nobody needs this snapshot any more: the next one is written into its memory, which is mapped already."""
        tensors: list[torch.Tensor] = []
        pack(snapshot, tensors)
        spare: dict[tuple[torch.Size, torch.dtype], list[torch.Tensor]] = {}
        for tensor in tensors:
            spare.setdefault((tensor.shape, tensor.dtype), []).append(tensor)
        self._spare = spare

    def check(self, captured: dict[str, Any]) -> None:
        """Raise TrainingError when a capture is of another format or of other parts than this script keeps."""
        if captured.get("format") != FORMAT:
            raise TrainingError(f"state of format {captured.get('format')!r}; accepted: {FORMAT}")
        saved = captured["parts"]
        if set(saved) != set(self.parts):
            raise TrainingError(
                f"the state holds {', '.join(sorted(saved))}, this script keeps {', '.join(sorted(self.parts))}; "
                "every worker has to wrap and keep the same parts before job.epochs()"
            )

    def take_progress(self, captured: dict[str, Any]) -> None:
        """Take over the position only."""
        self.progress = TrainingProgress(**captured["progress"])
        self.variables = captured.get("variables", {})

    def restore(self, captured: dict[str, Any], only: set[str] | None = None, skip: Set[str] = frozenset()) -> None:
        """Take over a capture. Raises TrainingError naming the part that does not fit this script.

        only: parts to take over, and not the position; None: everything. skip: parts that are as captured already.
        """
        self.check(captured)
        saved = captured["parts"]
        for name, part in self.parts.items():
            if name in skip or (only is not None and name not in only):
                continue
            try:
                part.load_state_dict(_with_versions(saved[name], captured.get("versions", {}).get(name)))
            except (RuntimeError, ValueError, KeyError, TypeError) as error:
                raise TrainingError(f"the state of '{name}' does not fit this script: {error}") from error
            if isinstance(part, torch.optim.Optimizer):
                _lay_out(part)
        if only is None:
            self.take_progress(captured)

    def likes(self, skeleton: Any) -> Iterator[tuple[str, Slot, torch.Tensor]]:
        """Tensors of a packed capture that have one of ours of their shape, by whose layout they can be cut up: of a
        module the tensor itself, of an optimizer's state the parameter. With the part's name."""
        for name, saved in skeleton["parts"].items():
            part = self.parts.get(name)
            pairs: list[tuple[Any, Any]] = []
            if isinstance(part, torch.nn.Module):
                own = part.state_dict()
                pairs = [(slot, own.get(key)) for key, slot in saved.items()]
            elif isinstance(part, torch.optim.Optimizer):
                parameters = [parameter for group in part.param_groups for parameter in group["params"]]
                known = [(number, entries) for number, entries in saved["state"].items() if number < len(parameters)]
                pairs = [(slot, parameters[number]) for number, entries in known for slot in entries.values()]
            for slot, like in pairs:
                if isinstance(slot, Slot) and isinstance(like, torch.Tensor) and tuple(like.shape) == slot.shape:
                    yield name, slot, like

    def receive(self, skeleton: Any, device: torch.device) -> tuple[list[torch.Tensor], Callable[[], None]]:
        """Tensors for what a packed capture names, by slot, to be filled: the model's own where they fit. And what to
        call then, to take over the capture."""
        found: list[torch.Tensor] = []
        places: dict[int, torch.Tensor] = {}
        if "Model" in self.parts:
            own_model = pack(self.parts["Model"].state_dict(), found)
            own = self.own_places()
            match(skeleton["parts"].get("Model"), own_model, found, places, lambda tensor: place_of(tensor) in own)
        tensors = [
            places[slot.number]
            if slot.number in places
            else torch.empty(slot.shape, dtype=slot.dtype, device=device if slot.device != "cpu" else "cpu")
            for slot in slots_of(skeleton)
        ]
        skip = {"Model"} if self.has_arrived(skeleton, places) else set()
        return tensors, lambda: self.restore(unpack(skeleton, tensors), skip=skip)

    def own_places(self) -> set[Any]:
        """Where the model's parameters and buffers lie (place_of): what its state_dict() gives besides is a copy, or
        another view, which only its load_state_dict() can take over."""
        model = self.parts.get("Model")
        tensors = (*model.parameters(), *model.buffers()) if isinstance(model, torch.nn.Module) else ()
        return {place_of(tensor) for tensor in tensors}

    def has_arrived(self, skeleton: Any, places: Container[int]) -> bool:
        """Whether a model whose tensors of these numbers are filled needs no load_state_dict() any more."""
        saved, model = skeleton["parts"].get("Model", {}), self.parts.get("Model")
        filled = all(isinstance(entry, Slot) and entry.number in places for entry in saved.values())
        return filled and isinstance(model, torch.nn.Module) and all(map(_only_copies, model.modules()))


def place_of(tensor: torch.Tensor) -> Any:
    """What two tensors have in common that are the same memory, seen alike."""
    part = getattr(tensor, "_local_tensor", tensor)
    if part.layout != torch.strided or type(part) not in (torch.Tensor, torch.nn.Parameter):
        return id(tensor)
    return part.data_ptr(), part.shape, part.stride(), part.dtype


def _only_copies(module: torch.nn.Module) -> bool:
    """Whether load_state_dict() of this module, without its submodules, does nothing but copy tensors."""
    hooks = [*module._load_state_dict_pre_hooks.values(), *module._load_state_dict_post_hooks.values()]
    functions = [getattr(hook, "hook", hook) for hook in hooks]
    functions += [type(module)._load_from_state_dict, module.load_state_dict]
    return all(
        str(getattr(entry, "__module__", "")).startswith(("torch.distributed", *PLAIN_LOADS)) for entry in functions
    )


def _with_versions(state: Any, versions: Any) -> Any:
    """A module's state with what pack() leaves out of it; any other as it is."""
    if not versions:
        return state
    state = OrderedDict(state)
    state._metadata = OrderedDict(versions)
    return state


def _lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Have the state lie in memory as its parameters do (channels_last): fused optimizers go through both side by side,
    and what travelled, or was copied, lies in order."""
    for parameter, entries in optimizer.state.items():
        for name, value in entries.items():
            alike = (
                isinstance(value, torch.Tensor) and value.shape == parameter.shape and not hasattr(value, "device_mesh")
            )
            if alike and value.stride() != parameter.stride():
                entries[name] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def _without_meta(model: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in model.items() if not getattr(value, "is_meta", False)}


def memory_bytes() -> int:
    """The host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
