"""What is left of resizes that are long over: the sums, and nothing of each step."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

from past_resizes import DAY, STEPS, count, lives, sums
from store_records import BASE, DECISION, JOB

from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import EventKind


def test_a_job_that_ended_long_ago_keeps_its_sums_by_day_and_size(store: Store) -> None:
    """GPU-hours, samples, steps and pauses are those of before; the steps of its resizes are gone, its end is not."""
    lives(store, [7, 8], days=3, resizes=24)
    store.jobs.end(7, "COMPLETED", 3 * DAY)
    store.events.add(7, EventKind.ENDED, "selasticd", {}, 3 * DAY)
    before, running = sums(store, 7), sums(store, 8)
    last = store.resizes.last_closed(7)
    assert store.thinning.thin(3 * DAY + 1)
    assert sums(store, 7) == before and sums(store, 8) == running
    assert len(store.allocations.rows(7)) == 9 and len(store.allocations.rows(8)) == 72
    assert [event.kind for event in store.events.of(7)] == ["registered", "ended"]
    assert store.resizes.last_closed(7) == last and count(store, "resizes") == 2
    assert count(store, "rollups") == 2 * 3 + 2 * 72
    assert [(row.gpus, row.count, round(row.step_time, 9)) for row in store.reports.observations(7)] == [
        (4, 72, 0.1),
        (8, 72, 0.1),
    ]
    assert store.thinning.thin(3 * DAY + 1) and sums(store, 7) == before


def test_what_is_held_past_midnight_stays_as_it_is(store: Store) -> None:
    """A day's rows lie within the day, so that a report of some days counts what was held in them."""
    store.jobs.upsert(replace(JOB, job_id=7))
    for number, at in enumerate((1.0, 100.0, 200.0, DAY - 10), 1):
        store.allocations.note(7, number, (replace(BASE, gpus_per_node=1 + number % 2),), 64, at)
    store.jobs.end(7, "COMPLETED", 5 * DAY)
    assert store.thinning.thin(6 * DAY)
    rows = [(row.gpus, row.start, row.end) for row in store.allocations.rows(7)]
    assert sorted(rows, key=lambda row: row[1]) == [
        *((4, 1.0, DAY - 10 - 100.0), (2, DAY - 110.0, DAY - 10), (2, DAY - 10, 5 * DAY)),
    ]


def test_the_pace_of_the_last_day(store: Store) -> None:
    """What the expected size is told from."""
    lives(store, [7], days=2, resizes=24)
    store.jobs.end(7, "COMPLETED", 2 * DAY - 1)
    assert store.thinning.pace(2 * DAY) == (23, 1) and store.thinning.pace(4 * DAY) == (0, 0)


def test_what_is_young_stays_in_full(store: Store) -> None:
    """Thinned by age: of a job that runs on, too."""
    lives(store, [7], days=3, resizes=24)
    events = [event.kind for event in store.events.of(7) if event.at >= 2 * DAY]
    assert store.thinning.thin(2 * DAY)
    left = [event.kind for event in store.events.of(7)]
    assert left == ["registered", *events] and "resize_done" in events
    assert count(store, "resizes") == 24 and len(store.allocations.rows(7)) == 72
    assert store.thinning.thin(2 * DAY + 3600 + 1)  # a little later: what has come of age since
    assert [event.kind for event in store.events.of(7)] == ["registered", *events[2 * len(STEPS) :]]
    store.jobs.end(7, "COMPLETED", 3 * DAY)
    assert store.thinning.thin(2 * DAY) and len(store.allocations.rows(7)) == 72


def test_a_call_stops_in_time_and_the_next_goes_on(store: Store) -> None:
    """No round waits for years of history."""
    lives(store, [7], days=2, resizes=24)
    store.jobs.end(7, "COMPLETED", 2 * DAY)
    assert not store.thinning.thin(3 * DAY, busy_s=0.0)
    assert store.thinning.thin(3 * DAY) and len(store.allocations.rows(7)) == 6


def test_decisions_that_were_acted_on_go_sooner_and_end_no_advice_later(store: Store) -> None:
    """Review stands until the decision after it, so that one stays, and the last."""
    modes = ["review", "act", "act", "act", "review", "act", "act"]
    for at, mode in enumerate(modes, 1):
        store.decisions.save(float(at), [dataclasses.replace(DECISION, gpus_to=at, mode=mode)])
    assert store.retention.prune_decisions(100.0, mode="act") == 2
    assert [row.at for row in reversed(store.decisions.of(7))] == [1.0, 2.0, 5.0, 6.0, 7.0]
    assert store.retention.prune_decisions(100.0, mode="act") == 0
