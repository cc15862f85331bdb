"""The sizes that a job's request accepts. Pure."""

from __future__ import annotations

from slurm_elastic.protocol.request import ElasticRequest

from ...capacity.roster import ElasticJob


class AcceptedSizes:
    """Sizes at which some accepted batch is shared out evenly; of an exclusive job, which gets whole nodes only, those
    that are whole nodes. Thousands for some requests: made once for all jobs that ask alike."""

    __slots__ = ("ascending", "every", "largest")

    def __init__(self, request: ElasticRequest, node_gpus: int = 1) -> None:
        """node_gpus: of the whole nodes that the job gets; 1: it shares nodes."""
        whole = (size for size in request.sizes() if size % max(1, node_gpus) == 0)
        self.ascending = tuple(sorted(size for size in whole if request.batches(size)))
        self.every = frozenset(self.ascending)
        self.largest = self.ascending[-1] if self.ascending else 0


def asked_for(job: ElasticJob) -> tuple[ElasticRequest, int]:
    """What the accepted sizes of a job depend on, as AcceptedSizes takes it."""
    return job.request, job.base.gpus_per_node if job.base.exclusive and job.running else 1
