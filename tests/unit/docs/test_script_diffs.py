"""The diffs that docs/how-to/make-a-script-elastic.md shows are those that `make test-scripts` applies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "make-a-script-elastic.md").read_text()
GOALS = {"nanogpt": 15, "dcgan": 20, "imagenet": 30, "timm": 30, "fsdp2": 20, "accelerate": 16, "diffusers": 8}
"""Changed lines, added and removed, at most."""
IN_THE_TABLE = {name: name for name in ("dcgan", "imagenet", "timm")} | {
    "nanogpt": "nanoGPT",
    "fsdp2": "FSDP2",
    "accelerate": "cv_example",
    "diffusers": "train_unconditional",
}


def test_every_diff_has_a_goal() -> None:
    assert {path.stem for path in (ROOT / "examples" / "diffs").glob("*.diff")} == set(GOALS)


@pytest.mark.parametrize("name", GOALS)
def test_the_page_shows_the_diff_and_counts_its_lines(name: str) -> None:
    """Changed a diff? Copy it into the page, and its numbers into the table there."""
    diff = (ROOT / "examples" / "diffs" / f"{name}.diff").read_text()
    assert f"```diff\n{diff.rstrip()}\n```" in PAGE
    added, removed = (len(re.findall(rf"^[{sign}](?![{sign}])", diff, re.MULTILINE)) for sign in ("+", "-"))
    assert added + removed <= GOALS[name]
    assert re.search(rf"^\| .*{IN_THE_TABLE[name]}.* \| {added} \| {removed} \|", PAGE, re.MULTILINE)
