"""The README shows what the demo prints."""

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
