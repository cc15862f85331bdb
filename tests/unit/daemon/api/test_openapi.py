"""The API against its own OpenAPI document: whatever is sent, it answers as promised and never fails.

SELASTIC_API_EXAMPLES=1000 for the long run.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from api_harness import ADA, BASE, BOB, DIRECTIVE, FakeController, Named, job
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection

from slurm_elastic.daemon.api import openapi
from slurm_elastic.daemon.api.app import create_app
from slurm_elastic.daemon.config.settings import Settings
from slurm_elastic.db.store import Store
from slurm_elastic.protocol import messages
from slurm_elastic.protocol.routes import ROUTES

EXAMPLES = int(os.environ.get("SELASTIC_API_EXAMPLES", "30"))
FOLDER = tempfile.TemporaryDirectory()
SETTINGS = Settings(requests_per_s=10_000, state_dir=FOLDER.name)


class Quick(FakeController):
    """A controller that has a directive, so that nobody waits for one."""

    async def wait_directive(self, job_id: int, after: int, timeout: float) -> messages.Directive | None:
        return None if after else DIRECTIVE


STORE = Store.open(SETTINGS.database_url)
STORE.upsert_jobs([job(7, ADA, "ada"), job(8, BOB, "bob")])
STORE.set_in_use(7, 1, (BASE,), 64, 10.0)
TOKEN = STORE.mint_token(7, ADA)
APP = create_app(STORE, Quick(), SETTINGS, Named(SETTINGS))
# Too long (413) is a refusal of what is not accepted as good as 400.
REFUSALS = ["400", "401", "403", "404", "405", "409", "413", "5xx"]
CONFIG = schemathesis.Config.from_dict({"checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}})
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
    if "path" not in wrong and "job_id" in case.path_parameters and hash(str(case.body)) % 4:
        case.path_parameters["job_id"] = 7
    case.body = _within_the_words(case.body)
    # A wrong credential is put right below, and then nothing may be left that has to be refused.
    excluded = [negative_data_rejection] if wrong & {"header", "cookie"} else []
    security = case.operation.definition.raw["security"]
    credential = f"Bearer {TOKEN}" if security == [{"token": []}] else f"Test {ADA}"
    case.call_and_validate(headers={"Authorization": credential}, excluded_checks=excluded)


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


def test_the_document_describes_the_messages() -> None:
    """What the shim sends is valid by the document, field for field."""
    for kind in (messages.Registration, messages.Report, messages.Phase, messages.Directive, messages.Grant):
        assert set(openapi.schema(kind)["properties"]) == {item.name for item in dataclasses.fields(kind)}
