"""What a checkpoint may hold, so that reading one runs no code: tensors, numpy arrays and plain values.

Promise: a file that names anything else is refused, whoever wrote it, and so is a state that could not be read again,
before it is written. A script that keeps objects of a class of its own names the class as torch asks for it, with
`torch.serialization.add_safe_globals([Class])`. Limit: such a class is trusted with what a file gives it.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import io
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from slurm_elastic.protocol.errors import TrainingError

from ..state.packed_tensors import Slot

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, Slot, torch.dtype, torch.device, torch.Size))
_UNSUPPORTED = re.compile(r"GLOBAL ([\w.]+)")
_WHY = re.compile(r"(?s)WeightsUnpickler error: (.*?)(?:\n|$)")
_STORAGE = "torch.distributed.checkpoint"
_METADATA = {
    (f"{_STORAGE}.metadata", "Metadata"),
    (f"{_STORAGE}.metadata", "TensorStorageMetadata"),
    (f"{_STORAGE}.metadata", "TensorProperties"),
    (f"{_STORAGE}.metadata", "ChunkStorageMetadata"),
    (f"{_STORAGE}.metadata", "MetadataIndex"),
    (f"{_STORAGE}.metadata", "StorageMeta"),
    (f"{_STORAGE}.metadata", "_MEM_FORMAT_ENCODING"),
    (f"{_STORAGE}.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
}
"""What torch.distributed.checkpoint writes about tensors; about objects, which it would unpickle, there is nothing."""


class NotAccepted(TrainingError):
    """A value, or a file with one, that no checkpoint may hold."""


def load(path: Path) -> Any:
    """What torch.save wrote there, in host memory. Raises NotAccepted."""
    try:
        return _loaded(path)
    except pickle.UnpicklingError as error:
        raise NotAccepted(f"checkpoint {path} is not loaded: it {_holds(error)}") from None


def check(captured: Any) -> None:
    """Raise NotAccepted naming the first value of a capture that could not be loaded again. Tensors are not read."""
    for where, value in _leaves(captured, ""):
        file = io.BytesIO()
        try:
            torch.save(value, file)
            file.seek(0)
            _loaded(file)
        except pickle.UnpicklingError as error:
            raise NotAccepted(f"{where} can be in no checkpoint: it {_holds(error)}") from None
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise NotAccepted(f"{where} can be in no checkpoint: {error}") from None


def check_metadata(path: Path) -> None:
    """Raise NotAccepted where the file in which torch.distributed.checkpoint keeps the places of tensors, which it
    unpickles, names anything else than these."""
    with path.open("rb") as file:
        try:
            _MetadataReader(file).load()
        except pickle.UnpicklingError as error:
            raise NotAccepted(f"checkpoint {path} is not loaded: {error}") from None


class _MetadataReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _METADATA and not (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which has no place there")
        return super().find_class(module, name)


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Whatever is neither a tensor nor a plain value, with its place."""
    kind = type(value)
    if kind in (dict, collections.OrderedDict):
        for key, entry in value.items():
            if type(key) not in _PLAIN:
                yield f"the key {key!r} in {where or 'it'}", key
            yield from _leaves(entry, f"{where}[{key!r}]" if where else f"'{key}'")
    elif kind in (list, tuple, set):
        for number, entry in enumerate(value):
            yield from _leaves(entry, f"{where}[{number}]")
    elif kind not in _PLAIN and not isinstance(value, torch.Tensor):
        yield where or f"a {kind.__name__}", value


def _loaded(file: Path | io.BytesIO) -> Any:
    with _allowed():
        return torch.load(file, map_location="cpu", weights_only=True)


def _allowed() -> contextlib.AbstractContextManager[Any]:
    known = [Slot, set, frozenset, range, complex, codecs.encode, *_of_numpy()]  # torch 2.13 knows some of them
    if hasattr(torch.serialization, "safe_globals"):
        return torch.serialization.safe_globals(known)
    torch.serialization.add_safe_globals(known)  # torch 2.4 knows no other way
    return contextlib.nullcontext()


def _of_numpy() -> list[Any]:
    """What arrays and numbers of numpy's are made of, where torch has it: the shim does not ask for it."""
    np: Any = sys.modules.get("numpy")
    if np is None:
        return []
    rebuild = np.arange(1).__reduce__()[0]
    scalar = np.float64(1).__reduce__()[0]
    kinds = {type(np.dtype(kind)) for kind in (*np.typecodes["AllInteger"], *np.typecodes["AllFloat"], "?", "U", "S")}
    return [np.ndarray, np.dtype, rebuild, scalar, *kinds]


def _holds(error: pickle.UnpicklingError) -> str:
    text = str(error)
    if found := _UNSUPPORTED.search(text):
        what = f"holds a {found[1]}"
    else:
        why = _WHY.search(text)
        what = f"holds what is no plain value ({(why[1] if why else text.splitlines()[0]).strip()})"
    return (
        f"{what}; accepted: tensors, numpy arrays, plain values, and classes that the script names with "
        "torch.serialization.add_safe_globals"
    )
