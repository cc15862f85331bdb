"""How evenly recorded jobs were served, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sample_history

from slurm_elastic.daemon import reports
from slurm_elastic.daemon.reports.fairness import Fairness, FairnessResult, Window
from slurm_elastic.db.rows import AllocationRow, JobRow
from slurm_elastic.db.store import Store

EACH = [(1, 10.0), (2, 20.0), (4, 40.0), (8, 80.0)]
"""Ten samples a second on each GPU."""


def job(job_id: int, user: str, end: float | None, submit: float = 0.0, account: str = "lab") -> JobRow:
    request, state = "elastic:gpus=1-8,batch=64-4096", "RUNNING" if end is None else "COMPLETED"
    return JobRow(job_id, user, 1000, user, account, "gpu", request, True, "", "", submit, submit, end, state)


def row(job_id: int, gpus: int, start: float, end: float | None, samples: int) -> AllocationRow:
    return AllocationRow(job_id, 1, start, end, gpus, 1, "n1", 64, samples, 1, 0.0, "", 0)


SIX_AND_TWO = Window(
    0.0, 100.0, 100.0,
    [job(1, "ann", 100.0), job(2, "bob", 100.0)],
    [row(1, 6, 0.0, 100.0, 6000), row(2, 2, 0.0, 100.0, 2000)],
    [(0.0, 4.0), (50.0, 12.0)],
)  # fmt: skip
"""Two users, eight GPUs in the mean: six for the one, two for the other."""


def test_six_gpus_and_two() -> None:
    """An equal division is four each. The one made 1.5 of its progress, the other a half: (1.5 + 0.5)^2 / (2 * 2.5).
    Alone on four, 6,000 samples take 150 s, 2,000 take 50 s, and both took 100 s."""
    found = FairnessResult(SIX_AND_TWO, "account").fairness(lambda _: EACH)
    assert found == Fairness(
        between="user", groups=2, jain=pytest.approx(0.8), jain_gpus=pytest.approx(0.8),
        ended=2, rho_mean=pytest.approx((2 / 3 + 2) / 2), rho_worst=pytest.approx(2.0),
    )  # fmt: skip


def test_waiting_counts_and_what_runs_is_so_far() -> None:
    """The second waits 40 s, then runs on all eight until now: no ended job. It has had 200 s for 12,800 samples, which
    take 320 s on its half; the first, whose 3,200 took it 40 s, was there with it for all of that time."""
    jobs = [job(1, "ann", 40.0, account="a"), job(2, "bob", None, account="b")]
    rows = [row(1, 8, 0.0, 40.0, 3200), row(2, 8, 40.0, None, 12_800)]
    served = FairnessResult(Window(0.0, 200.0, 200.0, jobs, rows, [(150.0, 8.0)]), "account")
    groups = (40 * 2 + 160 * 1) / 200  # that were there with the second, in the mean
    assert served.rho(1, EACH) == pytest.approx(40 / (3200 / 40))
    assert served.rho(2, EACH) == pytest.approx(200 / (12_800 / (80 / groups)))
    found = served.fairness(lambda _: EACH)
    assert found is not None and (found.between, found.ended, found.rho_worst) == ("account", 1, pytest.approx(0.5))
    assert found.jain is None, "no moment in which two groups ran"


def test_a_window_in_the_past_counts_its_own_samples() -> None:
    """Half of the time of two jobs that went on: half of their samples, and the four GPUs that there were."""
    window = replace(SIX_AND_TWO, end=50.0, jobs=[job(1, "ann", None), job(2, "bob", None)])
    assert FairnessResult(window, "user").rho(1, EACH) == pytest.approx(50 / (3000 / (4 / 2 * 10)))
    found = FairnessResult(window, "user").fairness(lambda _: EACH)
    assert found is not None and (found.ended, found.rho_mean, found.jain) == (0, None, pytest.approx(0.8))


def test_what_is_not_known_is_none() -> None:
    """Without a model, without GPUs known, of another job: no figure, and no error."""
    served = FairnessResult(SIX_AND_TWO, "user")
    assert served.rho(1, []) is None and served.rho(99, EACH) is None
    assert FairnessResult(replace(SIX_AND_TWO, capacity=[]), "user").rho(1, EACH) is None
    assert FairnessResult(replace(SIX_AND_TWO, jobs=SIX_AND_TWO.jobs[:1]), "user").fairness(lambda _: EACH) is None
    found = served.fairness(lambda _: [])
    assert found is not None and (found.jain, found.ended, found.rho_worst) == (None, 0, None)


def test_the_report_has_it(store: Store, viewer: Callable[..., Any]) -> None:
    """Of the cluster for everybody, beside each job that one may see; of named jobs only each job's; where Slurm hides
    others' jobs, nothing."""
    sample_history.acted(store)

    def told(who: int, admin: bool = False, **more: Any) -> Any:
        seen = replace(viewer(who, admin), private=more.pop("private", False))
        return reports.usage(store, seen, sample_history.END, start=sample_history.START, **more)

    admin, alice = told(0, True), told(sample_history.ALICE)
    assert admin.fairness == alice.fairness and admin.fairness.groups == 2 and admin.fairness.ended == 1
    assert 0.5 < admin.fairness.jain <= 1.0
    assert {each.job_id: each.rho for each in alice.jobs}.items() <= {
        each.job_id: each.rho for each in admin.jobs
    }.items()
    (ended,) = (each for each in admin.jobs if each.job_id == 11)
    assert admin.fairness.rho_worst == admin.fairness.rho_mean == ended.rho
    named = told(0, True, job=[11])
    assert named.fairness is None and named.jobs[0].rho == ended.rho
    hidden = told(sample_history.ALICE, private=True)
    assert hidden.fairness is None and {each.rho for each in hidden.jobs} == {None}
