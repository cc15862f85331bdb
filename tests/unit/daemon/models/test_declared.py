"""What is believed of a job of `selastic hold` where nothing was measured."""

from __future__ import annotations

import math

from slurm_elastic.daemon.models.cache import observations
from slurm_elastic.daemon.models.declared import only_idle, with_declared
from slurm_elastic.daemon.optimizer.models.throughput import fit
from slurm_elastic.db.rows import ObservationRow
from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.request import parse

PIECES = (Piece(1, "base", ("n1",), 4),)


def seen(gpus: int, speed: float, at: float = 1.0) -> ObservationRow:
    return ObservationRow(gpus, -(-gpus // 4), gpus, 1, 1, 50, gpus / speed, speed, at)


def test_a_declared_curve_is_what_the_model_says() -> None:
    """Between its points, too, within a few per cent; and through what was measured, whatever its unit."""
    request = parse("gpus=4-32,speedup=0.9")
    for rows, unit in (((), 1.0), ((seen(8, 583.2),), 100.0)):
        model = fit(observations(with_declared(request, rows, PIECES)))
        for gpus in (4, 8, 12, 16, 24, 32):
            expected = unit * 1.8 ** math.log2(gpus)
            assert math.isclose(model.throughput(gpus, -(-gpus // 4), gpus), expected, rel_tol=0.06), gpus


def test_what_was_measured_counts_before_what_is_declared() -> None:
    request = parse("gpus=4-32,speedup=linear")
    rows = (seen(4, 40.0, 1.0), seen(8, 44.0, 2.0))
    model = fit(observations(with_declared(request, rows, PIECES)))
    assert model.throughput(8, 2, 8) < 50.0


def test_who_knows_nothing_gets_what_would_be_idle() -> None:
    """Not with a curve, nor once something was measured; a training is as it was."""
    request, training = parse("gpus=4-32"), parse("gpus=4-32,batch=64")
    assert only_idle(request, with_declared(request, (), PIECES))
    assert not only_idle(request, with_declared(request, (seen(4, 40.0),), PIECES))
    assert not only_idle(parse("gpus=4-32,speedup=0.9"), ())
    assert with_declared(training, (), PIECES) == () and not only_idle(training, ())
