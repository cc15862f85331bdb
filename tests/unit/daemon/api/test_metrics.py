"""Metrics: what a scrape tells, and what it must not."""

from __future__ import annotations

from pathlib import Path

import pytest
from api_harness import ADA, BASE, BOB, REPORT, RESIZE, ROOT, FakeController, Named, job
from fresh_store import fresh_store
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from slurm_elastic.daemon.api.app import create_app
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.db.rows import DecisionRow
from slurm_elastic.protocol.codec import to_json
from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.messages import Reports

OWN = {
    f"slurm_elastic_{name}"
    for name in (
        *("build_info", "mode", "last_round_timestamp_seconds", "trouble", "tripped", "round_seconds", "rounds_total"),
        *("requests_total", "database_bytes"),
    )
}
"""What is of the daemon alone."""


def scrape(http: TestClient, who: str = f"Test {ADA}") -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of a scrape, by name and labels, as Prometheus itself reads it."""
    answer = http.get("/metrics", headers={"Authorization": who} if who else {})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_a_scrape_tells_sums_and_no_names(tmp_path: Path) -> None:
    """GPUs, throughput, decisions and resizes as they are in the store; requests and reports as they were counted;
    and nothing that names a user, a job or a node."""
    with fresh_store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        settings = Settings()
        app = create_app(store, FakeController(), settings, Named(settings))
        store.jobs.upsert_all([job(7, ADA, "ada"), job(8, BOB, "bob")])
        store.allocations.note(7, 1, (BASE,), 64, 10.0)
        store.decisions.save(1.0, [DecisionRow(7, 1.0, 4, 4, 64, 64, "keep_best", None, None)])
        store.resizes.begin(RESIZE, 1.0)
        http = TestClient(app, base_url="https://selasticd")
        headers = {"Authorization": f"Bearer {store.tokens.mint(7, ADA)}"}
        assert http.post("/v1/jobs/7/reports", content=to_json(Reports((REPORT,))), headers=headers).status_code == 202
        http.get("/v1/jobs")
        told = scrape(http)
        text = http.get("/metrics", headers={"Authorization": f"Test {ADA}"}).text
    assert told["slurm_elastic_gpus_training", ()] == 4
    assert told["slurm_elastic_jobs", (("managed", "true"), ("state", "RUNNING"))] == 2
    assert told["slurm_elastic_samples_per_second", ()] == 640
    assert told["slurm_elastic_decisions", (("reason", "keep_best"),)] == 1
    assert told["slurm_elastic_resizes_open", (("state", "issued"),)] == 1
    assert told["slurm_elastic_reports_total", ()] == 1
    assert told["slurm_elastic_requests_total", (("status", "401"),)] == 1
    assert told["slurm_elastic_database_bytes", ()] > 10_000
    assert {dict(labels)["reason"] for name, labels in told if name == "slurm_elastic_decisions"} == {
        r.value for r in Reason
    }
    assert any(name == "slurm_elastic_build_info" and dict(labels)["version"] for name, labels in told)
    assert told["process_start_time_seconds", ()] > 1e9 and told["process_resident_memory_bytes", ()] > 1e6
    assert told["slurm_elastic_jobs", (("managed", "true"), ("state", "PENDING"))] == 0
    assert not [name for name, _ in told if name.endswith("_created")]
    for private in ("ada", "secret-name", "n1", "lab"):
        assert private not in text


@pytest.mark.parametrize("hidden", [False, True])
def test_sums_over_others_jobs_are_for_those_who_may_see_them(tmp_path: Path, hidden: bool) -> None:
    """Under Slurm's PrivateData a scrape without a credential, or of a user, tells how the daemon does and no more; an
    admin's tells all. A credential that proves nothing is refused."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"SlurmUser=root\nPrivateData={'jobs' if hidden else 'accounts'}\n")
    with fresh_store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        settings = Settings(slurm_conf=str(conf))
        app = create_app(store, FakeController(), settings, Named(settings))
        store.jobs.upsert_all([job(7, ADA, "ada"), job(8, BOB, "bob")])
        http = TestClient(app)
        everything = set(scrape(http, f"Test {ROOT}"))
        told = {name for name, _ in everything}
        assert {"slurm_elastic_gpus_idle", "slurm_elastic_jobs", "slurm_elastic_reports_total"} <= told
        for who in ("", f"Test {ADA}" + " private" * hidden):
            public = {name for name, _ in scrape(http, who)}
            assert public >= OWN
            assert (public == told) is not hidden
            others = {name for name in public if name.startswith("slurm_elastic_")} - OWN
            assert bool(others) is not hidden, others
        assert http.get("/metrics", headers={"Authorization": "Nobody"}).status_code == 401
