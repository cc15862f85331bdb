"""Programs from measured tables: what a step takes, and how many samples a batch wastes."""

from __future__ import annotations

import pytest

from slurm_elastic.daemon.simulator.measured import PHASES, program

PLACES = """placement,local_bsz,step_time,sync_time
1,8,0.5,0.0
1,32,1.4,0.0
2,8,0.6,0.1
2,32,1.5,0.1
4,8,0.7,0.2
4,32,2.0,0.2
11,8,1.3,0.8
44,8,1.1,0.6
44,32,2.1,0.6
"""
STATISTICS = {
    8: [(10, 1.0, 1.0), (40, 1.0, 9.0), (50, 1.0, 99.0), (100, 1.0, 4.0)],
    32: [(20, 2.0, 1.0), (100, 1.0, 50.0)],
}


def tables() -> dict[str, str]:
    """Of a program whose base batch is 8."""
    rows = {
        f"validation-{batch}.csv": "progress,grad_sqr,grad_var\n" + "".join(f"{p},{q},{v}\n" for p, q, v in each)
        for batch, each in STATISTICS.items()
    }
    return {"placements.csv": PLACES} | rows


def test_a_step_takes_what_was_measured_where_it_was() -> None:
    """At every row of the table; between two of them something between, whatever form was fitted."""
    law = program("p", tables()).law
    for line in PLACES.splitlines()[1:]:
        place, micro, seconds, _ = line.split(",")
        assert law(sum(map(int, place)), len(place), float(micro)) == pytest.approx(float(seconds))
    assert 0.7 < law(4, 1, 16.0) < 2.0
    assert law(8, 2, 8.0) < law(4, 2, 8.0) < law(2, 2, 8.0)


@pytest.mark.parametrize("batch", [8, 32])
def test_a_training_takes_the_samples_that_its_statistics_say(batch: int) -> None:
    """The sum over the rows of (phi + b) / (phi + b0), each for the work up to it; not a ratio of their sums."""
    found = program("p", tables())
    taken, before = 0.0, 0.0
    for progress, squared, variance in STATISTICS[batch]:
        phi = 8 * variance / squared
        taken, before = taken + (progress - before) * (phi + batch) / (phi + 8), progress
    phases = [1.0 / found.efficiency(batch, (phase + 0.5) / PHASES) for phase in range(PHASES)]
    assert sum(phases) / PHASES * 100 == pytest.approx(taken)
