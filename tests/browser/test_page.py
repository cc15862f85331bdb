"""The pages of `selastic report` and `selastic simulate` in a real browser: light and dark, wide and narrow.

The picture is left in build/report.png for whoever wants to look.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import sample_history

from slurm_elastic.client import main
from slurm_elastic.daemon import reports
from slurm_elastic.daemon.html.report_page import page
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.db.store import Store

PROBE = """
const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom] };
const found = {
  width: innerWidth, overflow: document.documentElement.scrollWidth,
  pictures: [...document.querySelectorAll('svg')].map(s => box(s)),
  outside: [...document.querySelectorAll('svg text')].filter(t => box(t)[0] < 0 || box(t)[2] > innerWidth + 1)
    .map(t => t.textContent),
  held: [...document.querySelectorAll('rect.held')].map(r => [...box(r), getComputedStyle(r).fill]),
  dots: [...document.querySelectorAll('.curves circle')].map(c => getComputedStyle(c).fill),
  scripts: document.scripts.length, names: [...document.querySelectorAll('text.name')].map(t => t.textContent),
  ink: getComputedStyle(document.body).color, paper: getComputedStyle(document.body).backgroundColor,
};
const out = document.createElement('pre'); out.id = 'found'; out.textContent = JSON.stringify(found);
document.body.append(out);
"""
LOADED = f"<script>{PROBE}</script></body>"


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of an afternoon, for an admin."""
    folder = tmp_path_factory.mktemp("store")
    with Store.open(f"sqlite:///{folder}/a.db") as store:
        sample_history.acted(store)
        return page(reports.usage(store, Viewer(0, True), sample_history.END, start=sample_history.START))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a small simulation, with jobs of hostile names."""
    folder = tmp_path_factory.mktemp("simulation")
    jobs = [f"<b>{number}&,{300 * number},train,{1 << number % 4},{3000 + 500 * number}" for number in range(20)]
    (folder / "trace.csv").write_text("\n".join(["job_id,submit_s,program,gpus,duration_s", *jobs]))
    options = ["--cluster", "2x4", "--assume", "balanced", "--policy", "backfill,auto"]
    assert main.main(["simulate", str(folder / "trace.csv"), *options, "--html", str(folder / "page.html")]) == 0
    return (folder / "page.html").read_text(encoding="utf-8")


def chromium(*arguments: object) -> str:
    """Run the browser without a window; its output."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    assert program, "make test-browser installs it"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000"]
    command = [program, *options, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def looked_at(html: str, folder: Path, width: int, *options: str) -> dict[str, Any]:
    """What a script inside the page sees."""
    copy = folder / "page.html"
    copy.write_text(html.replace("</body>", LOADED), encoding="utf-8")
    dom = chromium(*options, f"--window-size={width},2000", "--dump-dom", copy.as_uri())
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[-500:]
    seen: dict[str, Any] = json.loads(unescape(found[1]))
    return seen


def test_every_chart_is_drawn_within_the_page(html: str, tmp_path: Path) -> None:
    """All pictures have a size, nothing sticks out, bars stand in time order in their job's colour, and a name that is
    a script is a name."""
    seen = looked_at(html, tmp_path, 1200)
    sizes = [(right - left, bottom - top) for left, top, right, bottom in seen["pictures"]]
    assert len([size for size in sizes if size[0] > 200 and size[1] > 100]) == 6 and len(sizes) == 6 + 3  # and the key
    assert seen["outside"] == [] and seen["overflow"] <= seen["width"]
    assert len(seen["held"]) == 10 and len({colour for *_, colour in seen["held"]}) == 3
    chars = [bar for bar in seen["held"] if bar[4] == seen["held"][0][4]]
    assert [bar[0] for bar in chars] == sorted(bar[0] for bar in chars)
    heights = [bottom - top for _, top, _, bottom, _ in chars]
    assert heights[1] == max(heights) and heights[0] == min(heights)
    assert len(seen["dots"]) == 9 and "rgb(0, 0, 0)" not in seen["dots"]
    assert seen["scripts"] == 2 and seen["names"][1] == sample_history.HOSTILE[:16] + "…"


def test_a_click_on_a_heading_sorts_by_it(html: str, tmp_path: Path) -> None:
    """Numbers as numbers, however they are written, the largest first; a second click turns the order round."""
    clicks = """<script>
    const heads = [...document.querySelectorAll('.jobs th')];
    const column = n => [...document.querySelectorAll('.jobs tbody tr')].map(r => Number(r.cells[n].dataset.value));
    const sorted = [];
    for (const n of [7, 7, 4]) { heads[n].click(); sorted.push([n, column(n)]); }
    const out = document.createElement('pre'); out.id = 'sorted'; out.textContent = JSON.stringify(sorted);
    document.body.append(out);
    </script></body>"""
    copy = tmp_path / "page.html"
    copy.write_text(html.replace("</body>", clicks), encoding="utf-8")
    found = re.search(r'<pre id="sorted">(.*?)</pre>', chromium("--dump-dom", copy.as_uri()), re.DOTALL)
    assert found
    (_, down), (_, up), (_, times) = json.loads(unescape(found[1]))
    assert len(set(up)) == 3 and up == sorted(up) and down == up[::-1] and times == sorted(times, reverse=True)


def test_it_fits_a_telephone(html: str, tmp_path: Path) -> None:
    """On a narrow screen nothing but the table scrolls sideways."""
    seen = looked_at(html, tmp_path, 500)
    assert seen["overflow"] <= seen["width"]


@pytest.mark.parametrize("width", [500, 1200])
def test_a_simulations_charts_are_drawn_within_the_page(simulated: str, tmp_path: Path, width: int) -> None:
    """Two charts with a sample of each curve's line, and a timeline for each policy; only charts and tables scroll."""
    seen = looked_at(simulated, tmp_path, width)
    sizes = [(right - left, bottom - top) for left, top, right, bottom in seen["pictures"]]
    assert len([size for size in sizes if size[0] > 400 and size[1] > 100]) == 4 and len(sizes) == 4 + 2 * 2
    assert seen["overflow"] <= seen["width"] and seen["scripts"] == 1
    assert width < 1200 or seen["outside"] == []


def test_dark_is_dark(html: str, tmp_path: Path) -> None:
    """The page follows the reader's choice of light or dark."""

    def brightness(colour: str) -> int:
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    light = looked_at(html, tmp_path, 1200)
    dark = looked_at(html, tmp_path, 1200, "--force-dark-mode", "--blink-settings=preferredColorScheme=0")
    assert brightness(light["paper"]) > brightness(light["ink"])
    assert brightness(dark["paper"]) < brightness(dark["ink"])


def test_a_picture_of_it(html: str, tmp_path: Path) -> None:
    """The browser paints it: a picture of the whole page for a person to look at."""
    source, picture = tmp_path / "report.html", Path("build") / "report.png"
    source.write_text(html, encoding="utf-8")
    picture.parent.mkdir(exist_ok=True)
    picture.unlink(missing_ok=True)
    chromium("--window-size=1200,1900", f"--screenshot={picture.resolve()}", source.as_uri())
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", content[16:24]) == (1200, 1900)
    assert len(content) > 60_000, "an empty page compresses to far less"
