"""How far the training is: what a checkpoint and a joining rank continue from. A plain value."""

import dataclasses
from typing import Any


@dataclasses.dataclass
class TrainingProgress:
    """The position of the training. Counts are over the whole job, never per rank."""

    epoch: int = 0
    loader: int = 0
    """Passes over a dataset already finished in this epoch."""
    cursor: int = 0
    """Samples done in the pass under way."""
    pass_samples: int = 0
    """Length of the pass under way; 0: none has begun in this epoch."""
    unread: tuple[int, int, tuple[tuple[int, int, int], ...]] = (0, 0, ())
    """Of the pass under way, where its dataset is made of shards: see shard_streams.Unread."""
    computed: bool = False
    """Whether the order of the pass under way is computed (see sampling.order), as those of releases before it are not.
    """
    step: int = 0
    samples: int = 0
    schedule: int = 0
    """Steps that the schedulers have been advanced by: base batches."""
    base: int = 0
    """The batch the rate was tuned for."""
    batch: int = 0
    ramp: tuple[float, float, int, int] = (0.0, 0.0, 0, 0)
    noise: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Averages that the noise scale is computed from."""
    noise_at_change: float = 0.0
    """The noise scale when the batch last changed: the rate that was chosen then is kept."""
    per_sample: float = 1.0
    """About how much weight a sample has, a power of two, where the script weighs its losses: gradients are of the
    usual size while they are added up."""
    frozen: tuple[str, ...] | None = None
    """Of what is captured: parameters that were not trained then; None: not known."""
    once: dict[int, Any] = dataclasses.field(default_factory=dict)
    """Results of this epoch's job.once() calls, by their order."""
    finished: bool = False

    def begin_at(self, epoch: int, step: int, samples: int, in_epoch: int) -> None:
        """Go on where another program's training was; samples of all, and of the epoch under way."""
        self.epoch, self.step, self.samples, self.cursor = epoch, step, samples, in_epoch

    def next_epoch(self) -> None:
        self.epoch += 1
        self.next_pass(0)
        self.once = {}

    def next_pass(self, number: int) -> None:
        self.loader, self.cursor, self.pass_samples, self.unread = number, 0, 0, (0, 0, ())
