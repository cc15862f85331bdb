"""Alert rules and Grafana dashboard: every metric, label and value that they name is one that a scrape really has."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_harness import ADA, BASE, REPORT, RESIZE, FakeController, Named, job
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from slurm_elastic.daemon.api.app import create_app
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codec import to_json
from slurm_elastic.protocol.messages import Happening, Reports

FOLDER = Path("packaging/monitoring")
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
PANELS = json.loads((FOLDER / "grafana.json").read_text())["panels"]
QUERIES = [rule["expr"] for rule in RULES] + [target["expr"] for panel in PANELS for target in panel["targets"]]
NAME = re.compile(r"\b(slurm_elastic_\w+)(?:\{([^}]*)\})?")


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """Labels of every sample of a real scrape, by name."""
    with Store.open(f"sqlite:///{tmp_path_factory.mktemp('store')}/a.db") as store:
        app = create_app(store, FakeController(), Settings(), Named(Settings()))
        http = TestClient(app, base_url="https://selasticd")
        store.jobs.upsert_all([job(7, ADA, "ada")])
        store.allocations.note(7, 1, (BASE,), 64, 10.0)
        order = store.resizes.begin(RESIZE, 1.0)
        headers = {"Authorization": f"Bearer {store.tokens.mint(7, ADA)}"}
        assert http.post("/v1/jobs/7/reports", content=to_json(Reports((REPORT,))), headers=headers).status_code == 202
        phase = to_json(Happening(order.id, "running", 2, (BASE,), 64, 5.0, pause_s=0.4))
        assert http.post("/v1/jobs/7/happenings", content=phase, headers=headers).status_code == 200
        text = http.get("/metrics", headers={"Authorization": f"Test {ADA}"}).text
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_finds_its_series(query: str, series: dict[str, list[dict[str, str]]]) -> None:
    """Names, labels and, where a set of values is fixed, values are those of a scrape: else an alert never fires."""
    named = NAME.findall(query)
    assert named or query.startswith('up{job="selasticd"} == 0')
    for name, matchers in named:
        assert name in series, name
        for label, operator, value in re.findall(r'(\w+)(=~|=|!=)"([^"]*)"', matchers):
            if label == "instance":
                continue
            there = {labels[label] for labels in series[name] if label in labels}
            assert there, f"{name} has no label {label}"
            if operator == "=":
                assert value in there, f"{name} has no {label}={value}"
    for label in re.findall(r"\bby ?\(([^)]*)\)", query):
        for word in label.split(", "):
            assert word == "instance" or any(word in labels for name, _ in named for labels in series[name]), word


def test_a_legend_names_labels_that_are_there(series: dict[str, list[dict[str, str]]]) -> None:
    """What stands in {{...}} is a label of the query's series."""
    for panel in PANELS:
        for target in panel["targets"]:
            names = [name for name, _ in NAME.findall(target["expr"])]
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert any(label in labels for name in names for labels in series[name]), (panel["title"], label)


def test_the_dashboard_is_whole() -> None:
    """Every panel has a number of its own and a place of its own within the 24 columns."""
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    places = [panel["gridPos"] for panel in PANELS]
    assert all(place["x"] + place["w"] <= 24 for place in places)

    def apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
        sides = (one["x"] + one["w"] <= other["x"], other["x"] + other["w"] <= one["x"])
        return any(sides) or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]

    assert all(apart(one, other) for one, other in combinations(places, 2))


DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
UNITS = {"short", "s", "percentunit", "bytes"}
"""Of Grafana's names of units, those that the metrics have."""


def test_the_dashboard_asks_the_data_source_that_is_chosen() -> None:
    """Imported anywhere it finds its data: panels, targets and variables use variables that it has itself, and every
    panel has what Grafana needs to draw it."""
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert all(each["datasource"] == chosen for each in variables.values() if each["type"] == "query")
    assert "__inputs" not in DASHBOARD and DASHBOARD["uid"] and DASHBOARD["schemaVersion"] >= 36
    for panel in PANELS:
        assert panel["type"] in ("stat", "timeseries") and panel["title"] and panel["datasource"] == chosen
        assert set(panel["fieldConfig"]) == {"defaults", "overrides"}
        assert panel["fieldConfig"]["defaults"].get("unit") in UNITS
        assert panel["type"] != "stat" or panel["options"]["reduceOptions"]["calcs"]
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names) > 0
        for target in panel["targets"]:
            assert target["datasource"] == chosen
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= set(variables)


def test_the_state_shown_is_the_one_in_force() -> None:
    """A query of the whole day would still show the mode of this morning, and that a daemon now gone is well."""
    for panel in PANELS[:3]:
        [target] = panel["targets"]
        assert (target["instant"], target["range"]) == (True, False), panel["title"]


def test_promtool_reads_every_query_of_the_dashboard(tmp_path: Path) -> None:
    """Prometheus itself can parse what Grafana will send, with the variables filled in."""
    queries = [target["expr"].replace("$instance", ".*") for panel in PANELS for target in panel["targets"]]
    rules = [{"record": f"panel:query{number}:value", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    ended = subprocess.run(
        [promtool(), "check", "rules", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0 and f"{len(queries)} rules found" in ended.stdout, ended.stdout + ended.stderr


def test_every_alert_says_what_to_do() -> None:
    """A summary, a description, a severity, and a name of its own."""
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")
        assert rule["labels"]["severity"] in ("info", "warning")


def promtool() -> str:
    """Path of Prometheus's own checker; skips where it is not to be had."""
    found = subprocess.run(["packaging/get-promtool"], capture_output=True, text=True, check=False, timeout=280)
    if found.returncode != 0:
        pytest.skip("no promtool here, and none to be had: " + found.stderr[-200:])
    return found.stdout.strip()


def test_promtool_accepts_the_rules_and_their_tests() -> None:
    """Prometheus itself: the rules are right, each fires where all is wrong, none where all is well."""
    program = promtool()
    for command in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts.test.yml")):
        ended = subprocess.run([program, *command], cwd=FOLDER, capture_output=True, text=True, check=False, timeout=60)
        assert ended.returncode == 0, ended.stdout + ended.stderr
