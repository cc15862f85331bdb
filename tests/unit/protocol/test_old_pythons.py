"""A Python that is older than promised."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "imported", ["trainer_shim", "trainer_shim.supervisor.cli", "client.main", "protocol.messages"]
)
def test_a_python_that_is_too_old_is_named_in_one_sentence(imported: str) -> None:
    """Not by a traceback from the middle of some module."""
    code = f"import sys; sys.version_info = (3, 9, 18); import slurm_elastic.{imported}"
    environment = {"PYTHONPATH": str(ROOT / "packaging/namespace")}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    sentence = f"slurm-elastic needs Python 3.10 or newer; this is 3.9 ({sys.executable})\n"
    assert (ended.returncode, ended.stderr) == (1, sentence)


@pytest.mark.parametrize(
    "name", ["protocol/__init__.py", "trainer_shim/__init__.py", "daemon/__init__.py", "packaging/selastic"]
)
def test_what_is_read_before_that_sentence_is_old_python(name: str) -> None:
    """Python 3.6 knows no `annotations` of the future, and stops there."""
    code = (ROOT / name).read_text()
    assert "__future__" not in code and "match " not in code and ":=" not in code
