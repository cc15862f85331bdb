"""Statistical efficiency: how much a sample is worth at another global batch.

    EFF(b) = (phi + b0) / (phi + b)        phi: gradient noise scale, b0: the reference batch, all in samples

Source: McCandlish et al., "An Empirical Model of Large-Batch Training", 2018; Qiao et al., "Pollux", OSDI 2021.
1 at the reference batch, falling with b. Limit: phi belongs to the point of training where it was measured.
"""

import math

from ..errors import PlanInputError


def efficiency(batch: int, reference: int, noise_scale: float | None) -> float:
    """Progress per sample at `batch` relative to `reference`; 1 when the noise scale is not known.

    Without a measured noise scale the user's batch range is taken at its word: every batch in it is as good.
    """
    if noise_scale is None:
        return 1.0
    if not (math.isfinite(noise_scale) and noise_scale >= 0):
        raise PlanInputError(f"noise scale {noise_scale} is not 0 or more")
    return (noise_scale + reference) / (noise_scale + batch)


def nearest(batches: tuple[int, ...], reference: int) -> tuple[int, ...]:
    """The batch nearest to the reference by ratio, as a tuple of one; empty when there are none."""
    return (min(batches, key=lambda b: (abs(math.log(b / reference)), b)),) if batches else ()


def guarded(batches: tuple[int, ...], reference: int, noise_scale: float | None, least: float) -> tuple[int, ...]:
    """The batches at which a sample keeps at least the share `least` of its worth; the smallest when none does.

    While the noise is not known, none above the reference: a guard that is blind lets nothing pass.
    """
    if noise_scale is None:
        kept = tuple(b for b in batches if b <= reference)
    else:
        kept = tuple(b for b in batches if efficiency(b, reference, noise_scale) >= least)
    return kept or batches[:1]
