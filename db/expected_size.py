"""How large the database is after a year at today's pace. Pure.

Limit: the figures are those of `make bench-history`, for jobs that train for a day each.
"""

from __future__ import annotations

RESIZE_KB = 2.0
"""A resize with its steps, its decisions and its row in the history, while they are kept in full."""
LIFE_KB = 2.5
"""What is left of a job once they are thinned."""


def expected_mb(resizes: int, ended: int, full_days: float, history_days: float) -> float:
    """In MB, of so many resizes and ended jobs a day."""
    return (resizes * RESIZE_KB * full_days + ended * LIFE_KB * min(history_days, 365.0)) / 1e3
