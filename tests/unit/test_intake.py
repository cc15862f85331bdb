"""The quick way for reports takes what the API's own handler takes, and leaves to it what that refuses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_world import ADA, BASE, REPORT, FakeController, Named, job
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from slurm_elastic.daemon import intake
from slurm_elastic.daemon.api import create_app
from slurm_elastic.daemon.settings import Settings
from slurm_elastic.db.store import Store
from slurm_elastic.trainer_shim import wire
from slurm_elastic.trainer_shim.errors import StoreError
from slurm_elastic.trainer_shim.wire import Report, Reports, WireError, to_json

GOOD = dataclasses.asdict(REPORT)
VALUES = st.one_of(
    st.integers(-2, 10**17), st.floats(), st.booleans(), st.none(), st.text(max_size=5), st.just("x\n"), st.just([]),
    st.text(min_size=wire.MAX_TEXT - 1, max_size=wire.MAX_TEXT + 1),
)  # fmt: skip
CHANGES = st.dictionaries(st.sampled_from([*GOOD, "more"]), VALUES, max_size=3)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(CHANGES, st.sets(st.sampled_from(list(GOOD)), max_size=2)), max_size=3))
def test_it_never_accepts_more_nor_reads_anything_else(changes: list[tuple[dict[str, Any], set[str]]]) -> None:
    """Whatever it takes at first sight, the strict decoder takes too, and as the same reports."""
    made = [{k: v for k, v in (GOOD | change).items() if k not in gone} for change, gone in changes]
    body = json.dumps({"reports": made}).encode()
    quick = intake.decode(body)
    try:
        strict = wire.from_json(Reports, body).reports
    except WireError:
        assert quick is None
    else:
        assert quick in (None, strict)


def test_it_takes_what_supervisors_send() -> None:
    """An ordinary message is no exception that has to be looked at twice."""
    assert intake.decode(to_json(Reports((REPORT, REPORT)))) == (REPORT, REPORT)
    assert intake.decode(b"[" * 100_000) is None and intake.decode(b"\xff") is None
    assert intake.decode(to_json(Reports((REPORT,) * (wire.MAX_ITEMS + 1)))) is None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[Store, TestClient, dict[str, str]]]:
    """A store with a job, the application, and its token: used once, so that it is remembered."""
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}") as store:
        store.upsert_jobs([job(7, ADA, "ada"), job(8, ADA, "ada")])
        store.set_in_use(7, 1, (BASE,), 64, 10.0)
        chosen = Settings(requests_per_s=2)
        http = TestClient(create_app(store, FakeController(), chosen, Named(chosen)), raise_server_exceptions=False)
        token = store.mint_token(7, ADA)
        assert store.token_job(token) == 7
        yield store, http, {"Authorization": f"Bearer {token}"}


def later(step: int) -> Report:
    """Another report."""
    return dataclasses.replace(REPORT, step=step, at=5.0 + step)


def test_the_quick_way_answers_as_the_other(world: tuple[Store, TestClient, dict[str, str]]) -> None:
    """Stored and acknowledged; refused for another job, an unknown token, a wrong form, or too often, as elsewhere."""
    store, http, token = world
    body = to_json(Reports((later(20),)))
    answer = http.post("/v1/jobs/7/reports", content=body, headers=token)
    assert (answer.status_code, answer.json(), store.last_report(7).step) == (202, {"stored": 1}, 20)
    assert http.post("/v1/jobs/8/reports", content=body, headers=token).status_code == 403
    assert http.post("/v1/jobs/7/reports", content=body, headers={"Authorization": "Bearer x"}).status_code == 401
    assert "not JSON" in http.post("/v1/jobs/7/reports", content=b"{", headers=token).json()["error"]
    assert http.post("/v1/jobs/7/reports?x=1", content=body, headers=token).status_code == 400
    statuses = [http.post("/v1/jobs/7/reports", content=body, headers=token).status_code for _ in range(30)]
    assert statuses[0] == 202 and statuses[-1] == 429
    store.end_job(7, "COMPLETED", 50.0)
    assert http.post("/v1/jobs/7/reports", content=body, headers=token).status_code == 401


def test_a_disk_that_refuses_is_said(
    world: tuple[Store, TestClient, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that is not stored is not acknowledged."""
    store, http, token = world

    def full(*_: object) -> None:
        raise StoreError("database cannot grow: the disk is full")

    monkeypatch.setattr(store, "store_reports", full)
    answer = http.post("/v1/jobs/7/reports", content=to_json(Reports((later(30),))), headers=token)
    assert answer.status_code == 503 and "disk is full" in answer.json()["error"] and answer.headers["retry-after"]
