"""What a checkpoint may hold: tensors, plain values, NumPy's arrays and numbers, and what join(safe_globals=) names.

Loading one runs nothing else, whatever its files say; and what could not be loaded is not written either. Limits: types
that the process itself has given to torch.serialization.add_safe_globals() are loaded too; what a named type does when
it is made is its own business.
"""

import codecs
import io
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import serialization
from torch.distributed.checkpoint import filesystem, metadata

from slurm_elastic.protocol.errors import TrainingError

from ..state.packed_tensors import Slot, pack

Globals = Sequence[Callable[..., Any]]
ACCEPTED = (
    "tensors, numbers, strings, bytes, None, NumPy's arrays and numbers, dicts, lists, tuples and sets of them, and "
    "types named in join(safe_globals=[...])"
)


class NotAccepted(TrainingError):
    """A checkpoint is whole, and holds what is not loaded unasked."""


ZIP = b"PK\x03\x04"
OF_INDEX = {
    "ChunkStorageMetadata",
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorProperties",
    "TensorStorageMetadata",
    "_MEM_FORMAT_ENCODING",
}
"""Not BytesStorageMetadata: what that stands for torch unpickles without a look."""
_one_at_a_time = threading.Lock()
"""torch has one list of safe globals for the whole process."""


def load(file: BinaryIO, name: Path, safe: Globals = ()) -> Any:
    """What torch.save wrote to this file, in host memory. Raises NotAccepted; OSError, TrainingError: it is damaged."""
    begins = file.read(len(ZIP))
    file.seek(0)
    if begins != ZIP:  # torch before 2.6 has a hole in how it reads its older formats (CVE-2025-32434)
        raise NotAccepted(f"{name} is not what torch.save writes; remove the checkpoint to begin with the one before")
    with _allowed(safe), _damage(name):
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            found = re.search(r"(?:GLOBAL|class|function) ([\w.]+)", str(error))
            what = f"a {found[1]}" if found else f"what cannot be loaded ({str(error).splitlines()[0]})"
            raise NotAccepted(
                f"{name} holds {what}; accepted: {ACCEPTED}; name it there if this job's script wrote it, or remove "
                "the checkpoint to begin with the one before"
            ) from None


def refusal(value: Any, safe: Globals = ()) -> str:
    """What of this value could not be loaded again: "a pathlib.PosixPath at ['best']"; "" if there is nothing."""
    skeleton = pack(value, [])
    with _allowed(safe):
        if _loads(skeleton):
            return ""
        place, leaf = next(((place, leaf) for place, leaf in _leaves("", skeleton) if not _loads(leaf)), ("", value))
    kind = leaf if isinstance(leaf, type) else type(leaf)
    return f"a {kind.__module__}.{kind.__qualname__}" + (f" at {place}" if place else "")


def check(captured: dict[str, Any], safe: Globals = ()) -> None:
    """Raise TrainingError, with the name of the part and the type, if a checkpoint of this could not be loaded."""
    if not refusal(captured, safe):
        return
    for name, part in captured["parts"].items():
        if what := refusal(part, safe):
            raise TrainingError(f"the state of '{name}' has {what}, which no checkpoint holds; accepted: {ACCEPTED}")
    what = refusal(captured, safe)
    raise TrainingError(f"the training's position has {what}, which no checkpoint holds; accepted: {ACCEPTED}")


def check_tensors(captured: dict[str, Any]) -> None:
    """Raise TrainingError, with the name of the part and the place, for a tensor that cannot be copied to another rank
    or into a checkpoint. Of each kind one element is written and read."""
    known: dict[Any, str] = {}
    for name, part in captured["parts"].items():
        for place, leaf in _leaves("", part):
            if not isinstance(leaf, torch.Tensor) or leaf.is_meta:
                continue
            own = getattr(leaf, "_local_tensor", leaf)
            kind = (type(own), own.dtype, own.layout, own.is_conj(), own.is_neg())
            if kind not in known:
                known[kind] = _refused(own)
            what = known[kind] or ("whose elements share memory" if torch._debug_has_internal_overlap(own) == 1 else "")
            if what:
                raise TrainingError(
                    f"the state of '{name}' has a tensor {what} at {place}, which no worker that joins and no "
                    "checkpoint could take over; accepted: plain ones, e.g. of a sparse one its indices and values, "
                    "of which forward() makes it, and of an expanded one its clone()"
                )


def _refused(tensor: torch.Tensor) -> str:
    """What is odd about a tensor that cannot be copied as bytes, or loaded; "" if there is nothing."""
    try:
        if tensor.layout != torch.strided:
            return f"of layout {tensor.layout}"
        one = tensor.detach()[(slice(0, 1),) * tensor.dim()].contiguous()
        torch.empty(one.shape, dtype=one.dtype).copy_(one).view(-1).view(torch.uint8)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return f"({type(tensor).__name__}, {tensor.dtype}: {str(error).splitlines()[0]})"
    return "" if _loads(one.to("cpu", copy=True)) else f"of type {type(tensor).__name__}"


def index_of_parts(file: BinaryIO, name: Path) -> metadata.Metadata:
    """The index that torch.distributed.checkpoint pickles, of tensors in parts. Raises NotAccepted; OSError,
    TrainingError: it is damaged."""
    with _damage(name):
        found = _IndexUnpickler(file, name).load()
    if not isinstance(found, metadata.Metadata):
        raise NotAccepted(f"{name} is no index of tensors in parts; remove the checkpoint to begin with the one before")
    return found


class _IndexUnpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, name: Path) -> None:
        super().__init__(file)
        self._name = name

    def find_class(self, module: str, name: str) -> Any:
        known = (
            (module == metadata.__name__ and name in OF_INDEX)
            or (module == filesystem.__name__ and name == "_StorageInfo")
            or (module == "torch" and (name in ("Size", "device") or isinstance(getattr(torch, name, 0), torch.dtype)))
            or (module, name) == ("torch.serialization", "_get_layout")
            or (module in ("pathlib", "pathlib._local") and name == "PosixPath")
        )
        if not known:
            raise NotAccepted(
                f"{self._name} holds a {module}.{name}, which no index of tensors in parts does; remove the checkpoint "
                "to begin with the one before"
            )
        return super().find_class(module, name)


@contextmanager
def _damage(name: Path) -> Iterator[None]:
    """What unpicklers raise at bytes that no pickler has written is nearly anything."""
    try:
        yield
    except (TrainingError, OSError, MemoryError):
        raise
    except Exception as error:
        raise TrainingError(f"{name} cannot be read: {type(error).__name__}: {error}") from error


@contextmanager
def _allowed(safe: Globals) -> Iterator[None]:
    """While this lasts torch takes these types for safe; what the process tells it, before or meanwhile, stays."""
    with _one_at_a_time:
        before = set(serialization.get_safe_globals())
        added = {kind for kind in (*_always(), *safe) if kind not in before}
        serialization.add_safe_globals([*added])
        try:
            yield
        finally:
            kept = [kind for kind in serialization.get_safe_globals() if kind not in added]
            serialization.clear_safe_globals()
            serialization.add_safe_globals(kept)


def _always() -> tuple[Any, ...]:
    return (Slot, codecs.encode, bytes, bytearray, set, frozenset, complex, *_of_numpy())


def _of_numpy() -> set[Any]:
    """The functions and classes that NumPy's own pickles name."""
    numpy: Any = sys.modules.get("numpy")  # torch has imported it, where there is one
    if numpy is None:
        return set()
    kinds = {type(numpy.dtype(code)) for code in numpy.typecodes["All"]}
    made_by = {numpy.array([0]).__reduce__()[0], numpy.float64(0).__reduce__()[0]}
    return {numpy.ndarray, numpy.dtype} | kinds | made_by


def _loads(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # a type may raise anything where it is pickled
        return False
    return True


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a structure is made of, with where it is: keys too, and tuples' own types."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield place, key
            yield from _leaves(f"{place}[{key!r}]", entry)
    elif type(value) in (list, tuple):
        for number, entry in enumerate(value):
            yield from _leaves(f"{place}[{number}]", entry)
    else:
        yield place, value
