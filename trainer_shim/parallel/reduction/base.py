"""How the gradients that ranks have computed become the one that all of them step with.

A strategy says how a model is spread, when gradients are complete and in which group they travel; a reduction says what
travels and what comes back, which is the same on every rank. It knows neither the model nor where its ranks are.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ...data.sampling import Micro
from ...state.packed_tensors import buckets_of

Combined = torch.futures.Future[list[torch.Tensor]]
"""What comes back, as the only entry; a collective of torch's gives its result like that."""


class Reduction(ABC):
    """What all reductions have in common."""

    averages = False
    """Whether the mean over all samples of the step comes back. Then the vote rides along as one gradient more, losses
    may have weights; else the vote travels by itself, and the mean, too, in steps that measure the noise scale."""
    keeps_rate = False
    """Whether what comes back is as long as the rate is to stay as it is, however many ranks there are."""
    by_steps = False
    """Whether not gradients are combined, but what each rank's own step changes; see own_steps.py."""

    @abstractmethod
    def scale(self, own: float, micro: Micro, replicas: int) -> float:
        """The factor for the mean loss of a micro batch that counts as `own` samples, before it is differentiated."""

    def use(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:  # noqa: B027
        """What steps with that which comes back."""

    def forget(self) -> None:  # noqa: B027
        """The step comes to nothing, or the world is left."""


class Bucket(Protocol):
    """Gradients that travel together, as DistributedDataParallel's hooks get them."""

    def buffer(self) -> torch.Tensor:
        """All of them, flat."""

    def gradients(self) -> list[torch.Tensor]:
        """Those of each parameter, within the buffer."""


class ByBucket(Reduction):
    """A reduction that needs to see no more than some gradients at a time: they travel while others are computed."""

    def scale(self, own: float, micro: Micro, replicas: int) -> float:
        return own / micro.rank_samples if micro.rank_samples else 0.0

    @abstractmethod
    def combine(self, bucket: Bucket, share: float, group: Any) -> Combined:
        """Begin to combine the ranks' buckets, each the gradient of that rank's mean loss. Every rank of the group
        calls this. The buffer may be overwritten.

        share: how much this rank's counts, over all ranks 1; where it is 0 the buffer may hold anything.
        """

    def own(self, bucket: Bucket, share: float, group: Any) -> Combined:
        """As combine(): what a rank's own step is taken with, where those are combined; here its own gradients."""
        done: Combined = torch.futures.Future()
        done.set_result([bucket.buffer() if share else bucket.buffer().zero_()])
        return done

    def replace(self, gradients: Sequence[torch.Tensor], share: float, group: Any) -> None:
        """Put what comes back in place of gradients of which all are there."""
        for parts in buckets_of(gradients):
            (flat,) = self.combine(Flat(parts), share, group).wait()
            for part, combined in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
                part.copy_(combined.view(part.shape))


class Flat:
    """A bucket made of tensors that lie anywhere."""

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        self._parts, self._buffer = parts, torch.cat([part.reshape(-1) for part in parts])

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        split = self._buffer.split([part.numel() for part in self._parts])
        return [flat.view(part.shape) for flat, part in zip(split, self._parts, strict=True)]
