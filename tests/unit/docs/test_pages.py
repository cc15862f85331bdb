"""Pages: no dead link, and none that nobody finds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "benchmarks/*.md") for path in ROOT.glob(pattern)
)
LINK = re.compile(r"(?:\]\(|src(?:set)?=\")([^)\s:\"]+)[)\"]")


def links(page: Path) -> list[str]:
    """What a page links to inside the repository, pictures included."""
    return LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))


def anchors(page: Path) -> set[str]:
    """What a link can name in a page: its headings, in GitHub's spelling."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """No dead links in a fresh clone: the file is there, and the heading in it."""
    for target in links(page):
        name, _, anchor = target.partition("#")
        to = page.parent / name if name else page
        assert to.exists(), target
        assert not anchor or anchor in anchors(to), target


def test_the_index_links_every_page() -> None:
    """Every page under docs/ is linked from docs/README.md, and the README leads there."""
    linked = {(DOCS / target.partition("#")[0]).resolve() for target in links(DOCS / "README.md")}
    assert [str(page) for page in DOCS.rglob("*.md") if page.resolve() not in linked | {DOCS / "README.md"}] == []
    assert "docs/README.md" in links(ROOT / "README.md")


def test_every_file_that_contributing_names_is_there() -> None:
    """Its lists of files lead to the files; those with a NAME in them stand for new ones."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    tops = "protocol|trainer_shim|daemon|db|slurm_hooks|tests|packaging|examples|benchmarks|docs"
    named = set(re.findall(rf"`((?:{tops})/[\w./-]*)`", text))
    assert len(named) > 10
    assert sorted(name for name in named if "NAME" not in name and not (ROOT / name).exists()) == []


def test_every_attack_that_security_names_has_its_test() -> None:
    """The table says in which files; below tests/unit, those of cluster/ below tests."""
    table = (ROOT / "SECURITY.md").read_text().partition("## Attacks that are tests")[2].partition("\n## ")[0]
    rows = [line.split("|")[3] for line in table.splitlines() if line.count("|") == 4][2:]
    named = [re.findall(r"`([\w/]+\.py)`", cell) for cell in rows]
    assert len(rows) > 20 and all(named)
    places = (ROOT / "tests/unit", ROOT / "tests")
    assert [name for row in named for name in row if not any((place / name).exists() for place in places)] == []
