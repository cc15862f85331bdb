"""What runs inside a user's job. Importing this package imports nothing but the standard library.

    import slurm_elastic.trainer_shim as elastic
    job = elastic.join(batch=256, max_batch=4096, lr="auto")

`join` imports torch when it is called; everything else a script needs hangs off the job that it returns.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import slurm_elastic.protocol  # noqa: F401 - ends where Python is too old

if TYPE_CHECKING:
    from .data.shard_streams import InOrder
    from .job import Job, join
    from .parallel.averaged_weights import Average
    from .parallel.planned_sharding import fully_shard

__all__ = ["Average", "InOrder", "Job", "fully_shard", "join"]
_ELSEWHERE = {
    "InOrder": ".data.shard_streams",
    "Average": ".parallel.averaged_weights",
    "fully_shard": ".parallel.planned_sharding",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(_ELSEWHERE.get(name, ".job"), __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
