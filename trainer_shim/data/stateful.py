"""Datasets whose samples depend on what has been asked of them before: each loader worker has asked for others, and one
that starts again for none.

Attributes of the dataset, and of what it is made of, that the first fetch changes are tried: the sample is fetched
again with them as they were, as they are, and, where they count, further on. Limit: what only a later fetch changes.
"""

import copy
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

DEPTH, ENTRIES = 3, 1000
FURTHER = (1, 50, 7_777, 1_000_003)
"""By how much more than now a count is tried: what goes by it may change late."""
DEPENDS = (
    "samples of the {0} depend on its attribute '{1}', which fetching them changes: each worker has fetched others, "
    "and one that joins or starts again none; accepted: what follows from the sample's number and from the random "
    "numbers of torch, NumPy and Python, which are seeded for each sample, or join(meant=['{1}']) where that is meant"
)


class Told(str):
    """A sentence in place of samples."""


def attributes(of: Any, depth: int = DEPTH) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Of a dataset and what it is made of: whose, the name, and what is another one when it has changed."""
    own = vars(of) if hasattr(of, "__dict__") else {}
    for key, value in list(own.items()):
        yield own, key, _token(value)
        entries = value if type(value) in (list, tuple) and len(value) <= ENTRIES else [value]
        for entry in entries if depth else ():
            if not isinstance(entry, (type, ModuleType, FunctionType, torch.Tensor, torch.nn.Module)):
                yield from attributes(entry, depth - 1)


def first_fetch(dataset: Any, fetch: Callable[[], Any], again: Callable[[], Any], meant: Collection[str]) -> Any:
    """What fetch() gives; or, where samples depend on fetches before, a sentence. again: fetches one sample, with
    other random numbers, alike each time."""
    before = [(own, key, token, _copied(own[key])) for own, key, token in attributes(dataset)]
    result = fetch()
    names = {(id(own), key) for own, key, *_ in before}
    changed = [entry for entry in before if entry[1] in entry[0] and _token(entry[0][entry[1]]) != entry[2]]
    changed += [(own, key, None, None) for own, key, _ in attributes(dataset) if (id(own), key) not in names]
    for own, key, _, was in changed:
        if key in meant:
            continue
        now, others = own[key], [was]
        if isinstance(now, (int, float)) and not isinstance(now, bool):
            others += [now + more for more in FURTHER]
        for other in others:
            try:
                own[key] = _copied(now)
                one = again()
                own[key] = _copied(other)
                if not _alike(one, again()):
                    return Told(DEPENDS.format(type(dataset).__name__, key))
            except Exception:  # of a value that it never has
                continue
            finally:
                own[key] = now
    return result


def _token(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    if isinstance(value, random.Random):
        return hash(value.getstate())
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().tolist())
    if type(value).__module__.startswith("numpy.random"):
        return repr(value.bit_generator.state if hasattr(value, "bit_generator") else value.get_state())
    if isinstance(value, (list, dict, set, deque)):
        entries = value.values() if isinstance(value, dict) else value
        return id(value), len(value), [id(entry) for entry in entries] if len(value) <= ENTRIES else 0
    return id(value)


def _copied(value: Any) -> Any:
    """What a fetch may change, as it is now."""
    if isinstance(value, (list, dict, set, deque)):
        return copy.copy(value)
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device).set_state(value.get_state())
    return copy.deepcopy(value) if type(value).__module__ in ("random", "numpy.random._generator") else value


def _alike(one: Any, other: Any) -> bool:
    """Whether tensors, arrays, images and plain values in them are the same."""
    for left, right in zip(tree_leaves(one), tree_leaves(other), strict=False):
        if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
            left, right = left.detach().cpu().numpy(), right.detach().cpu().numpy()
        if hasattr(left, "tobytes") and hasattr(right, "tobytes"):
            left, right = left.tobytes(), right.tobytes()
        if isinstance(left, (int, float, str, bytes)) and left != right and left == left:
            return False
    return True
