"""The mean over all samples of a step, whatever each rank's share of them."""

from typing import Any

from ...data.sampling import Micro
from ...numerics.batch import loss_scale
from .base import Bucket, ByBucket, Combined


class Mean(ByBucket):
    """See the module. Where torch itself takes a mean over the ranks (DistributedDataParallel, fully_shard), losses are
    scaled so that it is this one, and combine() is not needed."""

    averages = True

    def scale(self, own: float, micro: Micro, replicas: int) -> float:
        return loss_scale(own, replicas, micro.total)

    def combine(self, bucket: Bucket, share: float, group: Any) -> Combined:
        buffer = bucket.buffer()
        if share:
            buffer.mul_(share)
        else:
            buffer.zero_()
        work: Any = group.allreduce([buffer])
        combined: Combined = work.get_future()
        return combined
