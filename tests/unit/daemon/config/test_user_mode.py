"""What `selasticd --user` finds out about its host: where nodes reach it, and where its database may lie."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from slurm_elastic.daemon.config import user_mode
from slurm_elastic.daemon.selasticd import listeners
from slurm_elastic.daemon.selasticd.preflight import check
from slurm_elastic.daemon.selasticd.settings import Settings, load
from slurm_elastic.db import engine
from slurm_elastic.protocol.errors import ConfigError


def routed(monkeypatch: pytest.MonkeyPatch, table: dict[str, str]) -> list[str]:
    """Names known here, and the address of this host that faces each; gives the names that are looked up."""
    asked: list[str] = []

    class Probe(socket.socket):
        def connect(self, where: tuple[str, int]) -> None:
            self.here = table[where[0]]

        def getsockname(self) -> tuple[str, int]:
            return self.here, 1

    def look_up(name: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(name)
        if name not in table:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (name, port))]

    monkeypatch.setattr(socket, "socket", Probe)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


def test_the_address_is_the_one_that_faces_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first node that is another host decides; this very host and names that nobody knows do not."""
    asked = routed(monkeypatch, {"here": "127.0.0.1", "n1": "10.0.0.5", "n2": "192.168.0.5"})
    assert user_mode.own_address_towards(["cloud", "here", "n1", "n2"]) == "10.0.0.5"
    assert asked == ["cloud", "here", "n1"]
    assert user_mode.own_address_towards(["here", "here"]) == "127.0.0.1"


def test_nodes_that_nobody_knows_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of thousands of unknown names does not hold the start up for hours; the sentence says what to do."""
    asked = routed(monkeypatch, {})
    with pytest.raises(ConfigError, match="accepted: an address as HOST:PORT"):
        user_mode.own_address_towards(f"n{number}" for number in range(5000))
    assert len(asked) == user_mode.TRIES
    with pytest.raises(ConfigError):
        user_mode.own_address_towards([])


def test_this_host_is_reached_from_where_packets_leave() -> None:
    """The kernel's own routes are asked: what faces a loopback address is one."""
    assert user_mode.own_address_towards(["127.0.0.9"]) == "127.0.0.1"


def test_clients_are_told_the_address_that_was_found(tmp_path: Path) -> None:
    """`auto` is never written to client.json."""
    settings = Settings(state_dir=str(tmp_path), listen="auto:0")
    with listeners.tcp_listener(settings, lambda: ["127.0.0.9"]) as listener:
        assert listeners.public_url(settings, listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def shared_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory on NFS, and a /var/tmp of the test's own."""
    home, local = tmp_path / "home", tmp_path / "local"
    home.mkdir()
    local.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(user_mode, "LOCAL", local)
    kind = engine.file_system
    monkeypatch.setattr(engine, "file_system", lambda path: "nfs4" if path.is_relative_to(home) else kind(path))
    return home


def test_a_database_stays_off_a_network_file_system(
    shared_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQLite loses data there: with such a home it goes to a local disk, in a directory that is the user's alone; what
    jobs have to read stays at home, and a file that names a database is heard."""
    found = load(user_mode=True)
    folder = tmp_path / "local" / f"slurm-elastic-{os.geteuid()}"
    assert found.state_dir == str(shared_home / ".slurm-elastic")
    assert found.supervisor_requests
    assert found.database_url == f"sqlite:///{folder}/selastic.db"
    check(found)
    assert "database: sqlite, will be created" in capsys.readouterr().out and not folder.exists()
    user_mode.make_local_folder(found.database_url)
    user_mode.make_local_folder(found.database_url)
    assert folder.stat().st_mode & 0o777 == 0o700
    config = tmp_path / "my.toml"
    config.write_text('database_url = "sqlite:////else/where.db"\n')
    assert load(config, user_mode=True).database_url == "sqlite:////else/where.db"


def test_somebody_elses_directory_is_refused(shared_home: Path, tmp_path: Path) -> None:
    """Anyone can make a directory of that name in /var/tmp first: a link, or one that others can write."""
    found = load(user_mode=True)
    folder = user_mode.local_folder()
    (tmp_path / "trap").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "trap")
    with pytest.raises(ConfigError, match="yours alone"):
        user_mode.make_local_folder(found.database_url)
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="yours alone"):
        user_mode.make_local_folder(found.database_url)


def test_a_local_home_keeps_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the home directory is on a local disk, the database lies in it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(engine, "file_system", lambda path: "ext4")
    assert load(user_mode=True).database_url == f"sqlite:///{tmp_path}/.slurm-elastic/selastic.db"
