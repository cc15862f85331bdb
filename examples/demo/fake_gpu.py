"""Makes a step on a fake GPU take as long as it would on a real one.

The private Slurm's GPUs are device files with no device behind them, so a training process computes on a share of the
host's cores, and adding processes would add no speed. `FakeGpu.computed` waits until the time that a device with a
given speed would have needed for these samples has passed. The training itself (data, gradients, collectives,
optimizer, checkpoints) is real; only this time is not.
"""

from __future__ import annotations

import time


class FakeGpu:
    """A device that takes `ms_per_sample` milliseconds for forward and backward of one sample; 0 adds nothing."""

    def __init__(self, ms_per_sample: float) -> None:
        self.seconds = ms_per_sample / 1000
        self.started = time.monotonic()

    def start(self) -> None:
        """A micro batch begins now."""
        self.started = time.monotonic()

    def computed(self, samples: int) -> None:
        """Return when the device would have finished these samples."""
        left = self.started + samples * self.seconds - time.monotonic()
        if left > 0:
            time.sleep(left)
