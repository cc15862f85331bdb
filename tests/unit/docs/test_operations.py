"""docs/how-to/operations.md answers everything that can alarm an admin, and the bounds that it names are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurm_elastic.daemon.mechanisms.reconcile import Bounds
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.protocol.codes import Reason, ResizeState

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "how-to" / "operations.md").read_text()
REASONS = (ROOT / "docs" / "reference" / "reasons.md").read_text()


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_every_alert_has_its_row() -> None:
    """An alert that the rules can raise is in the table, and the table names none that is gone."""
    rules = (ROOT / "packaging" / "monitoring" / "alerts.yml").read_text()
    alerts = set(re.findall(r"- alert: (\w+)", rules))
    assert len(alerts) >= 10
    assert set(re.findall(r"^\| `(\w+)`", section("Alerts"), re.MULTILINE)) == alerts


def test_every_reason_has_its_row() -> None:
    """Every reason that a user can be shown is in the table, once."""
    cells = re.findall(r"^\| (`.*?`) \|", REASONS, re.MULTILINE)
    named = [code for cell in cells for code in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(reason.value for reason in Reason)


@pytest.mark.parametrize(
    "name", ["resize_taken_s", "switch_s", "release_s", "unused_s", "requeue_stop_s", "requeue_start_s"]
)
def test_the_bounds_are_the_settings(name: str) -> None:
    """The times that an admin reads are the settings' names and defaults."""
    assert f"`{name}` ({getattr(Settings(), name):g} s)" in section("What a resize may take, and its way back")


def test_every_open_state_has_a_bound() -> None:
    """No state of a resize is without a row."""
    rows = re.findall(r"^\| `(\w+)`", section("What a resize may take, and its way back"), re.MULTILINE)
    assert set(rows) == {state.value for state in ResizeState if not state.closed}
    assert f"+ {Bounds().margin_s:.0f} s" in TEXT
