"""The sizes and the batches that a job's request accepts, kept for the next time that they are asked for. Pure."""

from __future__ import annotations

from functools import lru_cache

from slurm_elastic.protocol.request import ElasticRequest

from ...capacity.roster import ElasticJob


def sizes(job: ElasticJob) -> frozenset[int]:
    """Sizes at which some accepted batch is shared out evenly; of an exclusive job, which gets whole nodes only, those
    that are whole nodes."""
    return _sizes(job.request, _node_gpus(job))


def ascending_sizes(job: ElasticJob) -> tuple[int, ...]:
    """The same in order."""
    return _ascending(job.request, _node_gpus(job))


def _node_gpus(job: ElasticJob) -> int:
    return job.base.gpus_per_node if job.base.exclusive and job.running else 1


@lru_cache(maxsize=4096)
def _ascending(request: ElasticRequest, node_gpus: int) -> tuple[int, ...]:
    return tuple(sorted(_sizes(request, node_gpus)))


@lru_cache(maxsize=4096)
def _sizes(request: ElasticRequest, node_gpus: int) -> frozenset[int]:
    each = max(1, node_gpus)
    return frozenset(size for size in request.sizes() if size % each == 0 and batches(request, size))


@lru_cache(maxsize=1 << 16)
def batches(request: ElasticRequest, size: int) -> tuple[int, ...]:
    """The request's batches at a size; asked for again in every round."""
    return request.batches(size)
