"""What an agent makes for its workers."""

from __future__ import annotations

import multiprocessing.connection
import shutil
import tempfile
from pathlib import Path

import pytest

from slurm_elastic.trainer_shim.node import agent


@pytest.mark.parametrize("length", [1, 40, 80, 200])
def test_a_workers_sockets_have_a_place_whatever_tmpdir_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Below TMPDIR as long as a socket's path may be; else in /tmp. Python makes a socket there as loaders do."""
    place = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"), "x" * length)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    folder = agent.folder_for_sockets()
    try:
        assert Path(folder).parent == (place if length <= 40 else Path("/tmp"))
        name = tempfile.mktemp(prefix="listener-", dir=folder)
        with multiprocessing.connection.Listener(name, family="AF_UNIX") as listener:
            assert listener.address == name
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(place.parent)
