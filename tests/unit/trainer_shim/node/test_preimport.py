"""What an agent imports before it forks workers."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from slurm_elastic.trainer_shim.node import agent


def test_workers_share_what_is_imported_and_collect_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector rests during imports only, a module that cannot be imported included; what is there then, workers
    never look through."""
    (tmp_path / "seen_by_agent.py").write_text("import gc\nCOLLECTS = gc.isenabled()\n")
    (tmp_path / "broken_for_agent.py").write_text("raise RuntimeError('no GPU')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        agent.preimport(["broken_for_agent", "not_there_at_all", "seen_by_agent"])
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
        assert sys.modules["seen_by_agent"].COLLECTS is False
        assert "broken_for_agent" not in sys.modules
    finally:
        gc.unfreeze()
        sys.modules.pop("seen_by_agent", None)
