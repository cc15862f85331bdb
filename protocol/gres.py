"""GPUs in Slurm's lists of generic resources, as users write them and as Slurm shows them. Pure.

A GPU type may begin with a digit (2080ti), and be (null) where gres.conf names the cores or links of GPUs without one.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

_GPUS = re.compile(r"gpu(?::(?P<type>\(null\)|[^:,()=]+?))?(?:[:=](?P<count>\d+))?(?:\([^)]*\))?")
_CACHED = 1 << 12
"""Parsed texts that are cached: thousands of jobs share a few of them, in every round."""


@lru_cache(maxsize=_CACHED)
def gres_gpus(text: str) -> Mapping[str, int]:
    """GPUs by type in a list of generic resources: {"a100": 4} for "gpu:a100:4(IDX:0-3),shard:8"; "" is any type.

    Raises ValueError for an entry of GPUs that is of no known form.
    """
    counts: dict[str, int] = {}
    for part in re.split(r",(?![^(]*\))", text):
        resource = part.removeprefix("gres:").removeprefix("gres/")
        words = re.split("[:=(]", resource)
        if words[0] != "gpu" or "no_consume" in words:  # as many jobs as like use these at once: nobody is given one
            continue
        match = _GPUS.fullmatch(resource)
        if match is None:
            raise ValueError(f"{part!r} is not a number of GPUs such as gpu:a100:4")
        kind, count = match["type"] or "", match["count"]
        if count is None and kind.isdigit():  # gpu:4
            kind, count = "", kind
        kind = "" if kind == "(null)" else kind
        counts[kind] = counts.get(kind, 0) + int(count if count is not None else 1)
    return MappingProxyType(counts)
