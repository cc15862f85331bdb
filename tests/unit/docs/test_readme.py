"""The README shows what the demo prints; links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DEMO = ROOT / "examples" / "demo" / "demo.py"


def test_the_transcript_is_of_the_demo_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was trained in the README's transcript is what the demo trains: changed one, run it again for the other."""
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec and spec.loader
    demo = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", demo)  # dataclasses look their module up
    spec.loader.exec_module(demo)
    text = (ROOT / "README.md").read_text()
    told = re.findall(r"(\w+) \(\d+\): (\d+) epochs of (\d+) samples, in each every sample exactly once", text)
    digits = [("digits", str(count), str(demo.SAMPLES["digits"])) for count in demo.EPOCHS["digits"]]
    assert told == [("chars", str(demo.EPOCHS["chars"]), str(demo.SAMPLES["chars"])), *digits]


PAGES = sorted(path for pattern in ("*.md", "docs/*.md", "examples/*.md") for path in ROOT.glob(pattern))


def anchors(page: Path) -> set[str]:
    """What a link can name in a page: its headings, in GitHub's spelling."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """No dead links in a fresh clone: the file is there, and the heading in it."""
    for target in re.findall(r"\]\(([^)\s:]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        to = page.parent / name if name else page
        assert to.exists(), target
        assert not anchor or anchor in anchors(to), target


def test_every_page_of_docs_is_named_in_the_readme() -> None:
    """Nothing is written that nobody finds."""
    text = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in text] == []
