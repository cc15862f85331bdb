"""The reference pages are what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import cli_reference
import pytest

from slurm_elastic.daemon.api import openapi
from slurm_elastic.protocol import request
from slurm_elastic.protocol.codes import EventKind, ResizeState

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def rows(page: str) -> set[str]:
    """What a page's tables explain: first cells that hold one code and nothing else."""
    return set(re.findall(r"^\| `([^`|]+)` \|", (REFERENCE / page).read_text(), re.MULTILINE))


def test_the_commands_are_what_the_parsers_say() -> None:
    """docs/reference/cli.md is what tests/support/cli_reference.py prints."""
    assert (REFERENCE / "cli.md").read_text() == cli_reference.markdown()


def test_every_key_of_the_elastic_request_has_its_row() -> None:
    """A key that the parser accepts is explained, and none that it does not."""
    assert {row for row in rows("elastic-request.md") if row.isidentifier()} == set(request.KEYS)


def test_every_mechanism_has_its_row() -> None:
    """The mechanisms that `via=` accepts are those of the page."""
    assert rows("mechanisms.md") == set(request.MECHANISMS)


def test_every_route_has_its_row() -> None:
    """The addresses of the page are those of the OpenAPI document, with their methods."""
    routes = {
        f"{method.upper()} {path}"
        for path, item in openapi.document()["paths"].items()
        for method in item
        if method in ("get", "post", "put", "delete")
    }
    assert rows("api.md") == routes


@pytest.mark.parametrize("words", [EventKind, ResizeState])
def test_every_event_and_state_has_its_row(words: type[EventKind | ResizeState]) -> None:
    """With the meaning that the code gives it, and in the code's order."""
    page = (REFERENCE / "events.md").read_text()
    assert "".join(f"| `{word}` | {word.meaning} |\n" for word in words) in page


def test_the_events_page_has_no_row_of_its_own() -> None:
    """What the code no longer stores goes from the page."""
    assert rows("events.md") == {*EventKind, *ResizeState}
