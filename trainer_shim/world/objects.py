"""Values that ranks of a world agree on, or hand over to each other. Nothing that a stranger sends runs code.

What travels is sealed with the job's key, for its sender and its place in the sequence of what is said in one group of
one world; only what was sealed so is looked at, and said again somewhere else it counts for nothing. Every rank of a
group makes the same calls in the same order. Plain values and the places of tensors are JSON; what a script itself
hands out beside them (what job.once() returned, what it keeps) and torch's plans of checkpoints are pickled.
Limit: a job without a supervisor, under torchrun say, has no key.
"""

import base64
import datetime
import hashlib
import hmac
import itertools
import json
import pickle
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._C._distributed_c10d import BroadcastOptions, ProcessGroup

from ..control import job_key
from ..state.packed_tensors import Slot
from .stores import Forged

TAG = 1 << 20
"""Tags from here on are those of objects."""
SEAL = hashlib.sha256().digest_size
LARGEST = 1 << 62
LIST, TUPLE, DICT, SLOT, DTYPE, OTHER = range(6)


_calls: weakref.WeakKeyDictionary[Any, Iterator[str]] = weakref.WeakKeyDictionary()
"""What sets the next call in a group apart from all others of the job; the same on all ranks of the group."""


def begin(group: ProcessGroup, name: str) -> None:
    """A group is new; no other one of this job has this name."""
    _calls[group] = (f"{name} {number}" for number in itertools.count(1))


def encode(value: Any, call: str, sender: int) -> bytes:
    """Sealed bytes of what a rank says in a call. Raises what pickle raises where a leaf is not plain nor pickles."""
    data = json.dumps(_plain(value), separators=(",", ":")).encode()
    return _seal(data, call, sender) + data


def decode(data: bytes, call: str, sender: int) -> Any:
    """The value, each part of the type that it had. Raises Forged for what this rank has not said in this call."""
    if not hmac.compare_digest(data[:SEAL], _seal(data[SEAL:], call, sender)):
        raise Forged("a rank was sent what is none of this job's: somebody else, or another build, sends to it")
    return _value(json.loads(data[SEAL:]))


def send(value: Any, source: int, targets: Sequence[int], group: ProcessGroup, seconds: float) -> Any:
    """The source's value, on the targets too. Every rank of the group calls this. `seconds`: for all of it."""
    deadline, call, rank = time.monotonic() + seconds, next(_calls[group]), group.rank()
    if rank == source and targets:
        data = _tensor(encode(value, call, source))
        length = torch.tensor([data.numel()])
        pending = [group.send([length], target, TAG) for target in targets]
        pending += [group.send([data], target, TAG + 1) for target in targets]
        wait(pending, deadline)
    elif rank in targets:
        length = torch.zeros(1, dtype=torch.int64)
        wait([group.recv([length], source, TAG)], deadline)
        data = torch.empty(int(length), dtype=torch.uint8)
        wait([group.recv([data], source, TAG + 1)], deadline)
        value = decode(_taken(data), call, source)
    return value


def gather(value: Any, group: ProcessGroup) -> list[Any]:
    """Every rank's value, by rank in the group."""
    call, ranks = next(_calls[group]), range(group.size())
    data = _tensor(encode(value, call, group.rank()))
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in ranks]
    group.allgather([lengths], [torch.tensor([data.numel()])]).wait()
    longest = max(int(length) for length in lengths)
    filled = torch.zeros(longest, dtype=torch.uint8)
    filled[: data.numel()] = data
    everything = [torch.empty(longest, dtype=torch.uint8) for _ in ranks]
    group.allgather([everything], [filled]).wait()
    said = zip(ranks, everything, lengths, strict=True)
    return [decode(_taken(one[: int(length)]), call, rank) for rank, one, length in said]


def share(value: Any, group: ProcessGroup, source: int = 0) -> Any:
    """The source's value, on every rank of the group."""
    sends, call, options = group.rank() == source, next(_calls[group]), BroadcastOptions()
    options.rootRank = source
    data = _tensor(encode(value, call, source)) if sends else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([data.numel()])
    group.broadcast([length], options).wait()
    if not sends:
        data = torch.empty(int(length), dtype=torch.uint8)
    group.broadcast([data], options).wait()
    return value if sends else decode(_taken(data), call, source)


def wait(pending: Sequence[Any], deadline: float) -> None:
    """Until all of these are done. Raises RuntimeError when they are not in time."""
    for work in pending:
        work.wait(datetime.timedelta(seconds=max(0.01, deadline - time.monotonic())))


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, float, str) or (kind is int and abs(value) < LARGEST):
        return value
    if kind in (list, tuple):
        return [LIST if kind is list else TUPLE, *map(_plain, value)]
    if kind is dict:
        return [DICT, *(_plain(one) for entry in value.items() for one in entry)]
    if kind is Slot:
        return [SLOT, value.number, list(value.shape), str(value.dtype).removeprefix("torch."), value.device]
    if kind is torch.dtype:
        return [DTYPE, str(value).removeprefix("torch.")]
    return [OTHER, base64.b64encode(pickle.dumps(value)).decode()]


def _value(plain: Any) -> Any:
    if not isinstance(plain, list):
        return plain
    kind, *parts = plain
    if kind == SLOT:
        number, shape, dtype, device = parts
        return Slot(number, tuple(shape), getattr(torch, dtype), device)
    if kind == DTYPE:
        return getattr(torch, parts[0])
    if kind == OTHER:
        return pickle.loads(base64.b64decode(parts[0]))
    values = [_value(part) for part in parts]
    if kind == DICT:
        return dict(zip(values[::2], values[1::2], strict=True))
    return tuple(values) if kind == TUPLE else values


def _seal(data: bytes, call: str, sender: int) -> bytes:
    return hmac.digest(job_key.held().encode(), f"object\0{call}\0{sender}\0".encode() + data, "sha256")


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _taken(data: torch.Tensor) -> bytes:
    taken = bytearray(data.numel())
    torch.frombuffer(taken, dtype=torch.uint8).copy_(data)  # Tensor.numpy() needs NumPy
    return bytes(taken)
