"""The gradient noise scale from norms that a step has at hand anyway, right for uneven slices and for one rank.

With q the mean over ranks of |g_i|^2 (each rank's mean gradient over its n_i samples) and Q = |g|^2 of the global mean
over N: S = (q - Q) / (mean(1 / n_i) - 1 / N) estimates tr(Sigma), and Q - S / N estimates |G|^2, both without bias for
any n_i; it reduces to McCandlish et al. 2018 (arXiv 1812.06162, appendix A.1) for equal ones. B_noise = EMA(S) /
EMA(|G|^2): the ratio of averages, because the average of ratios is biased. One rank takes a part of its own slice as
the small batch. Limit: with a few dozen measured steps the value is still rough; with fewer than ten none is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

EVERY = 10
"""Steps between two measurements, until there are enough to go by."""
SELDOM = 100
"""And from then on: the scale changes slowly, and one rank alone computes a measured step in two halves."""
DECAY = 0.95
FEWEST = 10
"""Measurements; with fewer, no scale is given."""
ENOUGH = 1 - DECAY**FEWEST
"""Their weight."""


@dataclasses.dataclass(frozen=True, slots=True)
class Noise:
    """Averages of both estimates; part of what survives."""

    trace: float = 0.0
    """EMA of S, times the weight."""
    signal: float = 0.0
    """EMA of |G|^2, times the weight."""
    weight: float = 0.0
    """1 - DECAY^measurements: corrects the start at zero."""

    def updated(self, small: float, large: float, small_sizes: Sequence[int], total: int) -> Noise:
        """With one more step: `small` = mean |g_i|^2 over the small batches of these sizes, `large` = |g|^2 over all
        `total` samples. Returns itself when the sizes cannot tell the two apart.
        """
        sizes = [size for size in small_sizes if size > 0]
        if not sizes:
            return self
        span = sum(1 / size for size in sizes) / len(sizes) - 1 / total
        if span <= 0:
            return self
        trace = (small - large) / span
        signal = large - trace / total
        return Noise(
            DECAY * self.trace + (1 - DECAY) * trace,
            DECAY * self.signal + (1 - DECAY) * signal,
            DECAY * self.weight + (1 - DECAY),
        )

    @property
    def known(self) -> bool:
        """Whether enough steps have been measured."""
        return self.weight >= ENOUGH - 1e-9

    @property
    def scale(self) -> float:
        """B_noise in samples; 0 when nothing usable has been measured."""
        if not self.known or self.trace <= 0:
            return 0.0
        # A signal below what can be distinguished from noise would make the scale infinite.
        return self.trace / max(self.signal, 1e-6 * self.trace)
