"""Sandboxes on one host share its ports without meeting."""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm_elastic.daemon.sandbox import registry
from slurm_elastic.protocol.errors import SandboxError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry of the test's own."""
    monkeypatch.setenv("SELASTIC_SANDBOX_REGISTRY", str(tmp_path / "registry"))
    return tmp_path / "registry"


def ports(entry: registry.Entry) -> set[int]:
    return set(range(entry.first_port, entry.first_port + entry.ports))


def test_starts_at_the_same_time_get_different_ports() -> None:
    """Twelve starters at once get twelve blocks that do not overlap, though none has bound its ports yet."""
    with ThreadPoolExecutor(12) as pool:
        entries = list(pool.map(lambda i: registry.register(f"s{i}", Path(f"/tmp/s{i}"), f"id{i}", 10), range(12)))
    assert len(set().union(*(ports(entry) for entry in entries))) == 120
    assert {entry.name for entry in registry.entries()} == {f"s{i}" for i in range(12)}


def test_a_port_in_use_is_stepped_over() -> None:
    """A block with a port that something else listens on is not given out."""
    first = registry.register("probe", Path("/tmp/probe"), "a", 10)
    registry.unregister(first)
    with socket.socket() as stranger:
        # As daemons do it: a port whose last connection is in TIME_WAIT can be listened on.
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody else was faster: then the port is in use as well
            stranger.bind(("127.0.0.1", first.first_port + 4))
            stranger.listen()
        second = registry.register("next", Path("/tmp/next"), "b", 10)
    assert first.first_port + 4 not in ports(second)


def test_a_name_is_taken_once() -> None:
    """The second sandbox of a name is refused, with the command that ends the first."""
    registry.register("one", Path("/tmp/one"), "a", 3)
    with pytest.raises(SandboxError, match="selastic sandbox down --name one"):
        registry.register("one", Path("/tmp/two"), "b", 3)


def test_forgetting_leaves_nothing(folder: Path) -> None:
    """With its last entry the registry itself is gone; forgetting twice is fine."""
    entry = registry.register("one", Path("/tmp/one"), "a", 3)
    registry.unregister(entry)
    registry.unregister(entry)
    assert not folder.exists()


def test_a_successor_of_the_same_name_is_not_forgotten() -> None:
    """A late clean-up of an ended sandbox does not remove the entry of the one that has its name now."""
    old = registry.register("one", Path("/tmp/one"), "old", 3)
    registry.unregister(old)
    registry.register("one", Path("/tmp/one"), "new", 3)
    registry.unregister(old)
    found = registry.find("one")
    assert found is not None and found.id == "new"


def test_files_that_are_not_entries_are_passed_over(folder: Path) -> None:
    """A damaged entry does not keep other sandboxes from starting."""
    registry.register("one", Path("/tmp/one"), "a", 3)
    (folder / "broken.json").write_text("{")
    (folder / "strange.json").write_text('{"name": "x"}')
    assert [entry.name for entry in registry.entries()] == ["one"]
