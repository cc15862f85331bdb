"""The figures that stand in a decision's evidence."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
from plan_cases import World, row, seen

from slurm_elastic.daemon.planner import JobState
from slurm_elastic.daemon.planner.decision_record import DecisionRecord


def test_evidence_counts_the_reports_and_says_what_is_modelled() -> None:
    """A figure that was never measured is marked as the model's."""
    world = World(2)
    world.job(1, "n1")
    evidence = row(world.plan(), 1).evidence
    assert (evidence["reports_from"], evidence["reports_to"], evidence["modelled"]) == (5, 0, True)
    assert evidence["last_report_age_s"] == 20 and evidence["pause_measured"] is False
    assert evidence["speedup_to"] > evidence["speedup_from"]


def test_who_trains_epochs_at_a_batch_that_wastes_samples_is_told() -> None:
    """The worth of a sample there, and what until=quality would bring at the same size; nothing where little is lost,
    or the noise is not known."""
    told = {}
    for until, noise in (("epochs", 100.0), ("epochs", 1e6), ("epochs", 0.0), ("quality", 100.0)):
        world = World(1)
        world.job(1, "n1", f"elastic:gpus=4,batch=64-4096,until={until}")
        reports = [replace(seen(4, step, batch, 9), noise_scale=noise) for step, batch in ((1.0, 256), (1.5, 512))]
        world.states[1] = JobState(observations=tuple(reports), reference=(4, 256))
        evidence = row(world.plan(), 1).evidence
        told[until, noise] = evidence.get("sample_worth"), evidence.get("quality_gain")
    worth, gain = told.pop(("epochs", 100.0))
    assert worth == pytest.approx(356 / 4196, abs=1e-3) and gain > 1
    assert set(told.values()) == {(None, None)}


def test_a_plan_that_is_written_down_is_let_go_of_without_the_garbage_collector() -> None:
    """It holds all jobs, and the collector does not run in a round."""
    world = World(2)
    world.job(1, "n1")
    record = DecisionRecord(world.plan())
    assert record.rows()
    gone = weakref.ref(record)
    gc.disable()
    try:
        del record
        assert gone() is None
    finally:
        gc.enable()
