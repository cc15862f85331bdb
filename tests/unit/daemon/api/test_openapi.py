"""The API against its own OpenAPI document: whatever is sent, it answers as promised and never fails.

SELASTIC_API_EXAMPLES=1000 for the long run.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from api_harness import ADA, BASE, BOB, REPORT, RESIZE, FakeController, Named, job
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection

from slurm_elastic.daemon.api import openapi
from slurm_elastic.daemon.api.app import create_app
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.db.rows import DecisionRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol import messages
from slurm_elastic.protocol.answers.by_route import ANSWERS
from slurm_elastic.protocol.answers.explain import Evidence
from slurm_elastic.protocol.api.routes import ROUTES

EXAMPLES = int(os.environ.get("SELASTIC_API_EXAMPLES", "12"))
FOLDER = tempfile.TemporaryDirectory()
SETTINGS = Settings(requests_per_s=10_000, state_dir=FOLDER.name)


class Quick(FakeController):
    """A controller that has a resize, so that nobody waits for one."""

    async def wait_resize(self, job_id: int, after: int, timeout: float) -> messages.Resize | None:
        return None if after else RESIZE


def decision(at: float, before: int, after: int, reason: str = "grow_idle") -> DecisionRow:
    """With everything that evidence can hold, so that no part of an answer is left out of the checks."""
    known = {"samples_per_s_from": 1.0, "samples_per_s_to": 2.0, "modelled": True, "doubt": 0.1, "pool": "gpu"}
    named = {"job_id": 8, "gpus_from": 2, "gpus_to": 1, "change": 0.5}, {"job_id": 99, "gpus": 2, "given": 2}
    evidence = {
        **known, "capacity_gpus": 16, "idle_gpus": 0, "for_job": 99, "for_gpus": 2, "for_jobs": [named[1]],
        "others": [named[0]], "passed_over": [{"mechanism": "requeue", "why": "it is not named"}], "next": "later",
    }  # fmt: skip
    row = DecisionRow(7, at, before, after, 16 * before, 16 * after, reason, 1.0, 0.5, evidence, mode="review")
    return dataclasses.replace(
        row, alternatives=[{"gpus": 2, "batch": 64, "value": 0.5}, {"gpus": 1, "why": "too few"}]
    )


STORE = Store.open(SETTINGS.database_url)
STORE.jobs.upsert_all([job(7, ADA, "ada"), job(8, BOB, "bob")])
STORE.allocations.note(7, 1, (BASE,), 64, 10.0)
STORE.allocations.note(
    7, 2, (BASE, dataclasses.replace(BASE, slurm_job_id=9, kind="companion")), 128, 20.0, 1.5, "grow_idle"
)
STORE.decisions.save(19.0, [decision(19.0, 4, 8), decision(25.0, 8, 4, "shrink_for_job")])
STORE.resizes.begin(dataclasses.replace(RESIZE, id=0), 25.0)
STORE.reports.submit(7, [dataclasses.replace(REPORT, generation=2, gpus=8)], 30.0).result()
STORE.events.add(7, "pinned", f"uid:{ADA}", {"gpus": 4}, 31.0)
STORE.host_pairs.note("ada", [messages.Unreached("n2", "n3", "10.0.0.3")], 32.0)
TOKEN = STORE.tokens.mint(7, ADA)
APP = create_app(STORE, Quick(), SETTINGS, Named(SETTINGS))
# Too long (413) is a refusal of what is not accepted as good as 400.
REFUSALS = ["400", "401", "403", "404", "405", "409", "413", "5xx"]
CHECKS = {
    "negative_data_rejection": {"expected-statuses": REFUSALS},
    # A message of very many reports is valid and still too long.
    "positive_data_acceptance": {"expected-statuses": ["2xx", "401", "403", "404", "409", "413", "429", "5xx"]},
}
CONFIG = schemathesis.Config.from_dict({"checks": CHECKS})
SCHEMA = schemathesis.openapi.from_asgi("/v1/openapi.json", APP, config=CONFIG)


@pytest.fixture(scope="module", autouse=True)
def closed_at_the_end() -> Iterator[None]:
    yield
    STORE.close()
    FOLDER.cleanup()


@SCHEMA.parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
def test_it_answers_as_its_document_says(case: schemathesis.Case) -> None:
    """No request that anyone can make, right or wrong, is answered by a fault or by something undocumented."""
    wrong = {str(place.value) for place, part in case.meta.components.items() if part.mode is GenerationMode.NEGATIVE}
    if "path" not in wrong and "job_id" in case.path_parameters and zlib.crc32(repr(case.body).encode()) % 4:
        case.path_parameters["job_id"] = 7
    case.body = _within_the_words(case.body)
    # A wrong credential is put right below, and then nothing may be left that has to be refused.
    from_job = case.operation.definition.raw["security"] == [{"token": []}]
    # A supervisor of a newer release may send parameters that this one does not know.
    newer = from_job and not set(case.query or ()) <= {one.name for one in case.operation.query}
    excluded = [negative_data_rejection] if wrong & {"header", "cookie"} or newer else []
    credential = f"Bearer {TOKEN}" if from_job else f"Test {ADA}"
    case.call_and_validate(
        base_url="https://selasticd", headers={"Authorization": credential}, excluded_checks=excluded
    )


def _within_the_words(value: Any) -> Any:
    """What JSON Schema cannot say: text is printable, and a whole number is written as 8, not 8.0."""
    if isinstance(value, dict):
        return {key: _within_the_words(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_within_the_words(item) for item in value]
    if isinstance(value, str):
        return "".join(letter for letter in value if letter.isprintable())
    return int(value) if isinstance(value, float) and value.is_integer() else value


def test_every_address_of_the_table_is_served_and_documented() -> None:
    """Routes and document come from one table."""
    table = {(route.path, route.method) for route in ROUTES}
    served = {(route.path.replace(":job", ""), method) for route in APP.routes for method in route.methods - {"HEAD"}}
    paths = openapi.document()["paths"].items()
    assert table == served == {(path, method.upper()) for path, item in paths for method in item}


@pytest.mark.parametrize(
    "kind", [messages.Registration, messages.Report, messages.Happening, *ANSWERS.values(), Evidence]
)
def test_the_document_describes_messages_and_answers(kind: type) -> None:
    """What the shim sends is valid by the document, and what it gets is in it: field for field."""
    assert set(openapi.schema(kind)["properties"]) == {item.name for item in dataclasses.fields(kind)}


def test_every_answer_is_described_field_by_field() -> None:
    """No answer but the document itself and the metrics is an object of which nothing is said; what a record's field
    means is said where the record is."""
    paths = openapi.document()
    described = {kind.__name__ for kind in ANSWERS.values()} | {"Evidence", "HeldPiece", "JobReview", "CurvePoint"}
    assert described <= set(paths["components"]["schemas"])
    assert {route.name for route in ROUTES if route not in ANSWERS} == {"openapi", "metrics"}
    evidence = paths["components"]["schemas"]["Evidence"]["properties"]
    assert all(evidence[name]["description"] for name in ("idle_gpus", "others", "for_job"))
