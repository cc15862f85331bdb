"""How long a training may go without a step before it counts as one that hangs: for who watches it from outside
(supervisor/hang_detection) and for who watches its GPU (training/guards/device_watch). Pure."""

USUAL_STEPS = 30
"""So many usual steps without one are a hang, where that is longer than what `selastic run` was told."""
FIRST_STEPS_S = 1800.0
"""The same before a step's usual time is known: the first ones compile, and warm caches up."""
LONGEST_PATIENCE_S = 3600.0
"""Also for one call of job.once(), while all others wait for it, and for the end of a script behind its loop."""


def patience(least_s: float, usual_s: float, longest_s: float) -> float:
    """Seconds without a step after which the training hangs.

    least_s: what `selastic run` was told. usual_s: of a step; 0: not known yet. longest_s: the longest time between two
    steps of this world that was followed by another one, such as an evaluation.
    """
    if not usual_s:
        return max(least_s, FIRST_STEPS_S)
    return max(least_s, USUAL_STEPS * usual_s, min(2 * longest_s, LONGEST_PATIENCE_S))
