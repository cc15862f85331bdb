"""The interval between checkpoints: Young's, Daly's correction, and the bounds."""

from __future__ import annotations

import math

import pytest

from slurm_elastic.trainer_shim.supervisor.state_machine.checkpoints import LEAST_S, MOST_S, daly_s, interval_s


def lost(every_s: float, cost_s: float, between_s: float) -> float:
    """Share of the time that is lost, of failures at random with this mean: Daly's exact model, restarts free."""
    return between_s * math.expm1((every_s + cost_s) / between_s) / every_s - 1.0


@pytest.mark.parametrize(("cost_s", "between_s"), [(0.1, 86_400.0), (5.0, 3600.0), (60.0, 1800.0), (300.0, 1800.0)])
def test_no_other_interval_loses_less(cost_s: float, between_s: float) -> None:
    """Within a thousandth of the time, against a fine grid of intervals, for cheap and for expensive checkpoints."""
    grid = (cost_s * 1.02**step for step in range(1, 800))
    best = min(lost(every, cost_s, between_s) for every in grid if every < 5 * between_s)
    assert lost(daly_s(cost_s, between_s), cost_s, between_s) < best + 0.002 * (1 + best)


def test_the_first_term_is_youngs() -> None:
    """Where a checkpoint costs next to nothing; of one that costs more than twice the time between failures: that."""
    assert daly_s(0.01, 100_000.0) == pytest.approx(math.sqrt(2 * 0.01 * 100_000.0), rel=1e-3)
    assert daly_s(900.0, 300.0) == 300.0


def test_bounds() -> None:
    """Neither all the time nor hardly ever, a tenth of it writing at most; as told where something is not known."""
    assert interval_s(1e-4, 0.0, 3600.0, 600.0) == LEAST_S
    assert interval_s(30.0, 0.0, 1e9, 600.0) == MOST_S
    assert interval_s(1e-4, 20.0, 3600.0, 600.0) == 200.0
    assert interval_s(0.0, 1.0, 3600.0, 600.0) == interval_s(1.0, 1.0, 0.0, 600.0) == 600.0
