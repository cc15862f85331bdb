"""`selastic predict` over a real store: what is predicted of a measured job, and one sentence where nothing can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sample_history import ALICE, BOB, END, acted, rate

from slurm_elastic.client.commands.predict import summary
from slurm_elastic.daemon.models.priors import SHIPPED
from slurm_elastic.daemon.optimizer.errors import PlanInputError
from slurm_elastic.daemon.prediction import sizes
from slurm_elastic.daemon.prediction.sizes import PredictionInputs, predict
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.predict import ComesFree, Prediction
from slurm_elastic.protocol.api.routes import PredictQuery
from slurm_elastic.protocol.errors import NotAllowed, NotFound


@pytest.fixture
def history(tmp_path: Path) -> Iterator[Store]:
    """A store with jobs that were measured at several sizes, by Amdahl's law and 16 samples a GPU."""
    with Store.open(f"sqlite:///{tmp_path}/elastic.db") as store:
        acted(store)
        yield store


def asked(store: Store, job_id: int = 12, viewer: Viewer | None = None, **query: object) -> Prediction:
    """The answer, to an admin unless somebody else asks."""
    basis = PredictionInputs(Settings(), SHIPPED)
    viewer = viewer or Viewer(0, admin=True)
    return predict(store, lambda *_: basis, job_id, viewer, PredictQuery(**query), END)  # type: ignore[arg-type]


def test_measured_sizes_stand_beside_what_the_model_says(history: Store) -> None:
    """Where a size was measured, the row has its samples/s, its batch and how far off the model is, which is little."""
    rows = {row.gpus: row for row in asked(history, 11).sizes}
    for gpus in (4, 8, 16, 20, 24):
        row = rows[gpus]
        assert (row.observed, row.observed_batch) == (pytest.approx(rate(gpus), rel=0.05), 16 * gpus)
        assert row.off is not None and abs(row.off) < 0.1 and row.reports
    assert (rows[32].observed, rows[32].off) == (None, None)


def test_a_row_is_consistent(history: Store) -> None:
    """The step's parts make the step, the batch over the step is the throughput, and that lies in its interval."""
    answer = asked(history, 11)
    for row in answer.sizes:
        assert row.compute_s + row.comm_s == pytest.approx(row.step_s) and row.input_s == 0
        assert row.batch / row.step_s == pytest.approx(row.samples_per_s)
        assert row.samples_per_s_low is not None and row.samples_per_s_high is not None
        assert 0 < row.samples_per_s_low < row.samples_per_s < row.samples_per_s_high
    assert (answer.reports, answer.sizes_measured, answer.prior) == (163, 5, SHIPPED.words)


def test_the_answer_says_how_much_of_it_is_a_straight_lines(history: Store) -> None:
    """A sentence below the table, and what an older daemon does not say is not said."""
    answer = asked(history, 11)
    assert answer.line_share is not None and 0 <= answer.line_share <= 1
    stepped_back, of_before = (summary(replace(answer, line_share=share)) for share in (0.9, None))
    assert any("90% a straight line, which predicted the reports better" in line for line in stepped_back)
    assert not any("straight line" in line for line in of_before)


def test_sizes_are_chosen(history: Store) -> None:
    """A range gives every size in it, also those that the request does not accept; one at which no batch can be shared
    out is refused with the nearest."""
    assert [row.gpus for row in asked(history, least=3, most=6).sizes] == [3, 4, 5, 6]
    assert [row.gpus for row in asked(history, least=30).sizes] == [30, 31, 32]
    assert [row.note for row in asked(history, least=64, most=64).sizes] == ["the request does not accept it"]
    with pytest.raises(NotFound, match=r"gpus=9999999 holds no size at which .* \(.*\); nearest: 30, 31, 32"):
        asked(history, least=9_999_999, most=9_999_999)


def test_another_kind_of_gpu_takes_a_run_of_the_same_program(history: Store) -> None:
    """The youngest measured run on that kind; where there is none, the kinds that there are."""
    history.programs.note(12, "bob:train.py", "a100")
    with pytest.raises(NotFound, match=r"no run of train\.py was measured on type=h100; accepted: a100"):
        asked(history, type="h100")
    history.programs.note(11, "bob:train.py", "h100")
    answer = asked(history, type="h100")
    assert (answer.gpu_type, answer.reports) == ("h100", 163)
    assert {row.gpus for row in answer.sizes if row.observed} == {4, 8, 16, 20, 24}
    assert asked(history, type="a100").reports == asked(history).reports == 147


def test_who_frees_gpus_is_told_to_those_who_may_see_it(history: Store) -> None:
    """With a time; where Slurm hides others' jobs without the job."""
    ends = (ComesFree(at=END + 60, gpus=8, job_id=11), ComesFree(at=END + 90, gpus=4, job_id=99))
    basis = PredictionInputs(Settings(), SHIPPED, free=ends)
    said = summary(predict(history, lambda *_: basis, 12, Viewer(BOB), PredictQuery(), END))[-1]
    assert "unless waiting jobs take them: 8 by " in said and "(end of job 11), 4 by " in said and "job 99" in said
    hidden = predict(history, lambda *_: basis, 12, Viewer(BOB, private=True), PredictQuery(), END)
    assert [end.job_id for end in hidden.free] == [None, None]
    assert summary(hidden)[-1].count("(end of another job)") == 2


def test_time_left_follows_the_throughput(history: Store) -> None:
    """Of a training that says how much is left; the interval turns round."""
    last = history.reports.last(12)
    assert last is not None
    history.reports.submit(12, [replace(last, at=END, step=last.step + 1, samples_left=10**6)], END).result()
    for row in asked(history, 12).sizes:
        assert row.left_s == pytest.approx(10**6 / row.samples_per_s)
        assert row.left_low_s is not None and row.left_high_s is not None
        assert row.left_low_s < row.left_s < row.left_high_s
    assert asked(history, 11).sizes[0].left_s is None


def test_only_owner_and_admins_are_answered(history: Store) -> None:
    """As by explain; where Slurm hides others' jobs they are not known."""
    assert asked(history, viewer=Viewer(BOB)).job_id == 12
    with pytest.raises(NotAllowed, match="belongs to another user"):
        asked(history, viewer=Viewer(ALICE))
    with pytest.raises(NotFound, match="job 12 is not known"):
        asked(history, viewer=Viewer(ALICE, private=True))


def test_a_job_of_which_nothing_is_known_is_one_sentence(history: Store) -> None:
    """Not measured yet, and a request that cannot be read."""
    row = history.jobs.get(12)
    assert row is not None
    history.jobs.upsert_all([replace(row, job_id=20, state="PENDING"), replace(row, job_id=21, request="elastic:no")])
    with pytest.raises(NotFound, match="job 20 waits in Slurm's queue"):
        asked(history, 20)
    with pytest.raises(NotFound, match="job 21 is not elastic"):
        asked(history, 21)


def test_reports_that_make_no_model_are_one_sentence(history: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_fit(*_: object) -> None:
        raise PlanInputError("no size is a size")

    monkeypatch.setattr(sizes, "fit", no_fit)
    with pytest.raises(NotFound, match="no throughput model can be made of what was measured: no size is a size"):
        asked(history)
