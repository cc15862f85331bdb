"""What survives: the position, the model, optimizers, schedulers, scaler, and whatever the script asked to keep.

One State object is the only thing that is saved, restored, and handed to joining ranks. It copies; it does not write
files (checkpoint.py), and does not know what a world is (handover.py).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Set
from typing import Any, Protocol

import torch

from slurm_elastic.protocol.errors import TrainingError

FORMAT = 1


@dataclasses.dataclass
class Progress:
    """The position of the training. Counts are over the whole job, never per rank."""

    epoch: int = 0
    loader: int = 0
    """Passes over a dataset already finished in this epoch."""
    cursor: int = 0
    """Samples done in the pass under way."""
    pass_samples: int = 0
    """Length of the pass under way; 0: none has begun in this epoch."""
    unread: tuple[int, int, tuple[tuple[int, int, int], ...]] = (0, 0, ())
    """Of the pass under way, where its dataset is made of shards: see streams.Unread."""
    step: int = 0
    samples: int = 0
    schedule: int = 0
    """Steps that the schedulers have been advanced by: base batches."""
    base: int = 0
    """The batch the rate was tuned for."""
    batch: int = 0
    ramp: tuple[float, float, int, int] = (0.0, 0.0, 0, 0)
    noise: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Averages that the noise scale is computed from."""
    noise_at_change: float = 0.0
    """The noise scale when the batch last changed: the rate that was chosen then is kept."""
    frozen: tuple[str, ...] | None = None
    """Parameters that the pass under way, or the last one, does not train; None: no pass has begun."""
    once: dict[int, Any] = dataclasses.field(default_factory=dict)
    """Results of this epoch's job.once() calls, by their order."""
    finished: bool = False

    def next_epoch(self) -> None:
        self.epoch += 1
        self.next_pass(0)
        self.once = {}

    def next_pass(self, number: int) -> None:
        self.loader, self.cursor, self.pass_samples, self.unread = number, 0, 0, (0, 0, ())


class Stateful(Protocol):
    """Anything with state_dict and load_state_dict."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """A tensor's place in a structure whose tensors travel separately."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


class State:
    """Everything kept, by name."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.parts: dict[str, Stateful] = {}
        self._spare: dict[tuple[torch.Size, torch.dtype], list[torch.Tensor]] = {}
        self._own: set[str] = set()
        """Parts whose tensors only a step changes: the model and what wrap() was given."""
        self._marked: dict[str, Any] | None = None

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

    def capture(self) -> dict[str, Any]:
        """References to everything, as of now; of the parts as of mark(), where there is one."""
        parts = self._marked or {name: part.state_dict() for name, part in self.parts.items()}
        return {"format": FORMAT, "progress": dataclasses.asdict(self.progress), "parts": parts}

    def mark(self) -> None:
        """Until unmark() captures are of the parts as they are now. Tensors that only a step changes are not copied;
        those of what the script keeps are, into host memory."""
        self._marked = {
            name: _structure(part.state_dict()) if name in self._own else _copied(part.state_dict())
            for name, part in self.parts.items()
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
        copied: dict[str, Any] = unpack(skeleton, [self._place(tensor).copy_(tensor) for tensor in tensors])
        return copied

    def _place(self, like: torch.Tensor) -> torch.Tensor:
        spare = self._spare.get((like.shape, like.dtype))
        return spare.pop() if spare else torch.empty(like.shape, dtype=like.dtype, device="cpu")

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
        self.progress = Progress(**captured["progress"])

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
                part.load_state_dict(saved[name])
            except (RuntimeError, ValueError, KeyError, TypeError) as error:
                raise TrainingError(f"the state of '{name}' does not fit this script: {error}") from error
        if only is None:
            self.take_progress(captured)

    def receive(self, skeleton: Any, device: torch.device) -> tuple[list[torch.Tensor], Callable[[], None]]:
        """Tensors for what a packed capture names, by slot, to be filled: the model's own where they fit. And what to
        call then, to take over the capture."""
        found: list[torch.Tensor] = []
        own_model = pack(self.parts["Model"].state_dict(), found) if "Model" in self.parts else None
        places: dict[int, torch.Tensor] = {}
        _match(skeleton["parts"].get("Model"), own_model, found, places)
        slots = sorted(slots_of(skeleton), key=lambda slot: slot.number)
        tensors = [
            places[slot.number]
            if slot.number in places
            else torch.empty(slot.shape, dtype=slot.dtype, device=device if slot.device != "cpu" else "cpu")
            for slot in slots
        ]
        skip = {"Model"} if len(places) == len(found) else set()
        return tensors, lambda: self.restore(unpack(skeleton, tensors), skip=skip)


def _structure(value: Any) -> Any:
    """The same tensors, in lists and dicts that nobody else changes."""
    tensors: list[torch.Tensor] = []
    return unpack(pack(value, tensors), tensors)


def _copied(value: Any) -> Any:
    tensors: list[torch.Tensor] = []
    skeleton = copy.deepcopy(pack(value, tensors))
    return unpack(skeleton, [tensor.to("cpu", copy=True) for tensor in tensors])


def pack(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The structure with its tensors taken out into `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        return Slot(len(tensors) - 1, tuple(value.shape), value.dtype, value.device.type)
    if isinstance(value, dict):
        # Subclasses (OrderedDict with attributes, defaultdict) become plain: load_state_dict asks for no more.
        return {key: pack(entry, tensors) for key, entry in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(pack(entry, tensors) for entry in value))
    if isinstance(value, (list, tuple)):
        return type(value)(pack(entry, tensors) for entry in value)
    return value


def unpack(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse of pack."""
    if isinstance(value, Slot):
        return tensors[value.number]
    if isinstance(value, dict):
        return {key: unpack(entry, tensors) for key, entry in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(unpack(entry, tensors) for entry in value))
    if isinstance(value, (list, tuple)):
        return type(value)(unpack(entry, tensors) for entry in value)
    return value


def slots_of(value: Any) -> Iterator[Slot]:
    """The places of tensors in a packed structure."""
    if isinstance(value, Slot):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from slots_of(entry)


def _match(theirs: Any, own: Any, own_tensors: list[torch.Tensor], places: dict[int, torch.Tensor]) -> None:
    """Where their model tensor and ours have one name, kind and shape, receive into ours without a copy."""
    if not isinstance(theirs, dict) or not isinstance(own, dict):
        return
    for key, slot in theirs.items():
        mine = own.get(key)
        if isinstance(slot, Slot) and isinstance(mine, Slot):
            same = (slot.shape, slot.dtype, slot.device) == (mine.shape, mine.dtype, mine.device)
            place = own_tensors[mine.number]
            if same and place.is_contiguous():
                places[slot.number] = place
        elif isinstance(slot, dict):
            _match(slot, mine, own_tensors, places)
