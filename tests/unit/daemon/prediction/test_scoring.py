"""A resize to a size never measured is scored once, by what is measured there afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from plan_cases import seen

from slurm_elastic.daemon.prediction.scoring import ENOUGH, FORGET_S, Expectations
from slurm_elastic.db.rows import DecisionRow, InUse, ObservationRow, PredictionRow
from slurm_elastic.protocol.messages import Piece

PROGRAM = ("alice:train.py", "a100")


def decided(**evidence: Any) -> DecisionRow:
    """To grow from 4 to 8 GPUs, where 300 samples/s are expected."""
    found = {"samples_per_s_to": 300.0, "doubt": 0.2, "modelled": True} | evidence
    return DecisionRow(1, 0.0, 4, 8, 256, 256, "grow_idle", None, None, found)


def use(gpus: int, batch: int = 256) -> dict[int, InUse]:
    """What job 1 trains on."""
    return {1: InUse(1, 1, (Piece(1, "base", ("n1",), gpus),), batch, 0.0, 0.0)}


def settled(expectations: Expectations, gpus: int, *rows: ObservationRow, now: float = 60.0) -> list[PredictionRow]:
    return expectations.settle(use(gpus), lambda job_id: rows, lambda job_id: PROGRAM, now)


def test_the_measured_size_is_scored_once() -> None:
    """By the program, with what was said and what was measured."""
    expectations = Expectations()
    expectations.expect([decided()], {1}, 0.0)
    assert settled(expectations, 4, seen(4)) == []
    [row] = settled(expectations, 8, seen(4), seen(8, 0.8))
    assert (row.program, row.gpu_type, row.gpus, row.predicted, row.doubt) == (*PROGRAM, 8, 300.0, 0.2)
    assert row.observed == pytest.approx(320.0)
    assert settled(expectations, 8, seen(8, 0.8)) == []


def test_a_few_reports_are_waited_for() -> None:
    """And reports at another batch are none of it."""
    expectations = Expectations()
    expectations.expect([decided()], {1}, 0.0)
    assert settled(expectations, 8, seen(8, count=ENOUGH - 1), seen(8, batch=512)) == []
    assert len(settled(expectations, 8, seen(8, count=ENOUGH))) == 1


@pytest.mark.parametrize(
    "evidence", [{"modelled": False}, {"modelled": None}, {"samples_per_s_to": None}, {"doubt": None}]
)
def test_what_was_no_prediction_is_not_scored(evidence: dict[str, Any]) -> None:
    """A size that had been measured, or a decision that says nothing of it."""
    expectations = Expectations()
    expectations.expect([decided(**evidence)], {1}, 0.0)
    assert settled(expectations, 8, seen(8)) == []


def test_a_resize_that_did_not_begin_or_did_not_come_about_is_forgotten() -> None:
    """Later reports at that size, for another reason, are none of it."""
    expectations = Expectations()
    expectations.expect([decided()], (), 0.0)
    assert settled(expectations, 8, seen(8)) == []
    expectations.expect([decided()], {1}, 0.0)
    assert settled(expectations, 4, now=FORGET_S + 1.0) == []
    assert settled(expectations, 8, seen(8)) == []
