"""How the daemon starts, what it checks before, and what ends it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from certificates import self_signed

from slurm_elastic.daemon.selasticd import listeners, main
from slurm_elastic.daemon.selasticd.leader import instance_lock
from slurm_elastic.daemon.selasticd.listeners import AddressUnusable, public_url, tcp_listener, write_client_file
from slurm_elastic.daemon.selasticd.preflight import about_epilog, check, known, rights
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.db import engine
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.errors import ConfigError, NotAllowed


def test_two_daemons_on_one_state_directory_are_refused(tmp_path: Path) -> None:
    """Both would act."""
    settings = Settings(state_dir=str(tmp_path))
    with (
        instance_lock(settings),
        pytest.raises(NotAllowed, match="another selasticd"),
        instance_lock(settings),
    ):
        pass
    with instance_lock(settings):
        pass


def test_a_file_system_without_locks_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lustre without -o flock knows none: the daemon of a user runs all the same, and says what is not seen to."""

    def unknown(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unknown)
    with instance_lock(Settings(state_dir=str(tmp_path))):
        pass
    assert f"no lock on state_dir={tmp_path} (Function not implemented)" in caplog.text


def test_a_port_in_use_is_said_in_one_sentence(tmp_path: Path) -> None:
    """Before anything else is opened."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = Settings(state_dir=str(tmp_path), listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(AddressUnusable, match=r"listen=127\.0\.0\.1"), listeners.tcp_listener(settings):
            pass
    # What fails later, while the daemon runs, is not the port's fault.
    with pytest.raises(OSError, match="No space left"), listeners.tcp_listener(settings):
        raise OSError(28, "No space left on device")


def test_answers_that_nobody_reads_end_their_connection(tmp_path: Path) -> None:
    """A caller whose host has died, or who does not read, does not keep a descriptor of the daemon's for good."""
    settings = Settings(state_dir=str(tmp_path), listen="127.0.0.1:0")
    with listeners.tcp_listener(settings) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == listeners.UNREAD_MS


def test_port_0_is_told_to_clients(tmp_path: Path) -> None:
    """The file has the port that was taken."""
    settings = Settings(state_dir=str(tmp_path), listen="127.0.0.1:0")
    with listeners.tcp_listener(settings) as listener:
        url = listeners.public_url(settings, listener)
    path = listeners.write_client_file(settings, {"url": url})
    assert json.loads(path.read_text()) == {"url": url} and not url.endswith(":0")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert listeners.public_url(replace(settings, url="http://head:1"), listener) == "http://head:1"


def test_a_client_file_with_a_secret_is_its_owners_alone(tmp_path: Path) -> None:
    """Whoever reads it may speak for its owner."""
    settings = Settings(state_dir=str(tmp_path))
    before = os.umask(0)
    try:
        path = listeners.write_client_file(settings, {"url": "http://x:1", "secret": "s"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_bad_setting_ends_it_with_2_and_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An admin's typing error is not a traceback."""
    config = tmp_path / "selasticd.toml"
    config.write_text('mode = "akt"\n')
    assert main.main(["--config", str(config)]) == 2
    assert "did you mean act?" in capsys.readouterr().err


def test_check_names_what_does_not_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each part is tried, whatever the others said."""
    slurm_conf = tmp_path / "slurm.conf"
    slurm_conf.write_text("ClusterName=none\nSlurmctldHost=localhost\nSlurmctldPort=1\nMessageTimeout=2\nNodeName=n1\n")
    config = tmp_path / "selasticd.toml"
    config.write_text(f'state_dir = "{tmp_path}"\nslurm_conf = "{slurm_conf}"\nmunge_socket = "{tmp_path}/no"\n')
    assert main.main(["--config", str(config), "--check"]) == 1
    said = capsys.readouterr().out
    assert "database: sqlite, will be created" in said
    assert "identity:" in said and "slurm:" in said and "would not work" in said


def test_a_users_own_daemon_is_checked_without_munge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`selasticd --user` works without MUNGE, so its check does not ask for it."""
    check(Settings(state_dir=str(tmp_path), munge_socket=f"{tmp_path}/no", user_mode=True))
    assert "identity: callers are known by the secret in client.json\n" in capsys.readouterr().out


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.parametrize(
    ("values", "said"),
    [({}, "; those of 0.2 that registered before the upgrade send a token"), ({"accept_tokens": False}, "\n")],
)
def test_check_says_whose_tokens_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: dict[str, bool], said: str
) -> None:
    """As long as the setting takes any."""
    check(Settings(state_dir=str(tmp_path), user_mode=True, **values))  # type: ignore[arg-type]
    assert f"requests: jobs prove each request{said}" in capsys.readouterr().out


def test_check_says_whose_jobs_may_be_changed() -> None:
    """An admin who forgot the grant hears it before the first refusal; to advise it is not needed."""
    assert rights("selastic", None, "act") == "selastic may change all jobs"
    assert "the jobs of ml, physics, as coordinator" in rights("selastic", {"physics", "ml"}, "act")
    assert rights("selastic", (), "review").endswith("mode review needs none")
    with pytest.raises(ConfigError, match="selastic may change nobody else's jobs"):
        rights("selastic", (), "act")


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder, with its contents and times."""
    found = sorted(folder.rglob("*"))
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in (folder, *found)
    }


def checked(state: Path, capsys: pytest.CaptureFixture[str], url: str = "") -> str:
    """What `--check` says of this state directory; asserts that it leaves everything around it as it was."""
    around = next(parent for parent in state.parents if parent.is_dir())
    before = tree(around)
    check(Settings(state_dir=str(state), database_url=url, user_mode=True))
    assert tree(around) == before
    return capsys.readouterr().out


def test_check_makes_neither_directory_nor_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what the first start will make; the same account may not be the one that it will run as."""
    state = tmp_path / "lib" / "slurm-elastic"
    said = checked(state, capsys)
    assert f"state: {state}, will be created\n" in said and "database: sqlite, will be created\n" in said
    state.mkdir(parents=True)
    said = checked(state, capsys)
    assert f"state: {state}, ready\n" in said and "database: sqlite, will be created\n" in said


def test_check_changes_no_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is there is compared with this code: the same, a newer one, which is refused, and an empty one."""
    url = f"sqlite:///{tmp_path / 'state' / 'selastic.db'}"
    (tmp_path / "state").mkdir()
    with Store.open(url):
        # The daemon that runs has its journal there.
        assert "database: sqlite, ready\n" in checked(tmp_path / "state", capsys)
    assert "database: sqlite, ready\n" in checked(tmp_path / "state", capsys)
    newer, empty = "UPDATE alembic_version SET version_num = '9999'", "DELETE FROM alembic_version"
    for change, words in ((newer, "newer than this version"), (empty, "will be created")):
        with contextlib.closing(sqlite3.connect(tmp_path / "state" / "selastic.db")) as connection:
            connection.execute(change)
            connection.commit()
        assert words in checked(tmp_path / "state", capsys)


def test_check_names_a_place_that_cannot_hold_the_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the way, or a file system that SQLite cannot trust, is found before the directory is made."""
    (tmp_path / "file").touch()
    assert f"{tmp_path}/file is not a directory" in checked(tmp_path / "file" / "state", capsys, "sqlite:////tmp/x.db")
    monkeypatch.setattr(engine, "file_system", lambda _: "nfs4")
    assert "network file system (nfs4)" in checked(tmp_path / "state", capsys)


def test_an_epilog_is_told_of_where_single_nodes_are_given_back() -> None:
    """What to set; nothing where there is none, or where that is set."""
    assert "release_by = job" in about_epilog(Settings(), "/etc/slurm/epilog")
    assert about_epilog(Settings(), "") == about_epilog(Settings(release_by="job"), "/etc/slurm/epilog") == ""


WRONG = {
    "listen is no address of this host": ({"listen": "192.0.2.1:6850"}, "listen=192.0.2.1:6850 cannot be used"),
    "a name nobody has": ({"listen": "no.such.host.invalid:6850"}, "listen=no.such.host.invalid:6850 cannot be used"),
    "a service that there is not": ({"services": ["elastik=act"]}, "services=elastik is not known; accepted: elastic"),
    "a certificate that is none": ({"tls_cert": "{folder}/none", "tls_key": "{folder}/none"}, "tls_cert={folder}/none"),
    "a certificate of another host": (
        {"tls_cert": "{cert}", "tls_key": "{key}", "tls_ca": "{cert}", "url": "https://head.cluster:6850"},
        "not trusted by clients of https://head.cluster:6850 (Hostname mismatch",
    ),
    "an authority of its own": (
        {"tls_cert": "{cert}", "tls_key": "{key}", "url": "https://localhost:6850"},
        "not trusted by clients of https://localhost:6850 (self",
    ),
    "an authority that is no certificate": ({"tls_ca": "{folder}/none"}, "tls_ca={folder}/none cannot be used"),
    "no directory for the socket": ({"listen_socket": "{folder}/no/s"}, "{folder}/no is missing"),
    "an admin that nobody is": ({"admins": ["roott"]}, "admins=roott is not known here; did you mean root?"),
    "a limit of nobody": ({"gpu_limits": ["user:roott=4"]}, "gpu_limits=roott is not known here; did you mean root?"),
    "a driver that is missing": (
        {"database_url": "postgresql+psycopg2://selastic:secret@db/selastic"},
        "database_url=postgresql+psycopg2://selastic:***@db/selastic: its driver psycopg2 is not installed",
    ),
}


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Slurm's commands are not found: asking a slurmctld that is not there takes seconds."""
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.mark.usefixtures("no_slurm")
@pytest.mark.parametrize("name", WRONG)
def test_check_finds_what_only_this_host_knows_to_be_wrong(
    name: str, certificate: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings of the right form that the daemon could not work with."""
    cert, key = certificate
    values, expected = WRONG[name]
    filled = {
        setting: value.format(folder=tmp_path, cert=cert, key=key) if isinstance(value, str) else tuple(value)
        for setting, value in values.items()
    }
    settings = Settings(state_dir=str(tmp_path), user_mode=True, **filled)  # type: ignore[arg-type]
    assert check(settings) == 1
    assert expected.format(folder=tmp_path) in capsys.readouterr().out


@pytest.mark.usefixtures("no_slurm")
def test_check_passes_a_certificate_that_clients_trust(
    certificate: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name is the URL's, the authority the one that client.json will hold."""
    cert, key = certificate
    url = "https://localhost:6850"
    check(Settings(state_dir=str(tmp_path), tls_cert=cert, tls_key=key, tls_ca=cert, url=url, user_mode=True))
    assert f"tls: clients of {url} trust {cert}\n" in capsys.readouterr().out


@pytest.mark.usefixtures("no_slurm")
def test_check_knows_the_port_of_the_daemon_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """New settings are tried while the daemon has its address."""
    settings = Settings(state_dir=str(tmp_path), listen="127.0.0.1:6851", user_mode=True)
    with tcp_listener(settings) as listener:
        listener.listen()
        check(settings)
        assert "address: listen=127.0.0.1:6851 cannot be used (Address already in use)\n" in capsys.readouterr().out
        write_client_file(settings, {"url": public_url(settings, listener)})
        check(settings)
        assert "address: 127.0.0.1:6851 is taken by the selasticd that runs" in capsys.readouterr().out


def test_unknown_names_are_refused_with_those_there_are() -> None:
    """A partition or an account that Slurm does not have."""
    known("partitions", ["gpu"], {"gpu", "cpu"})
    with pytest.raises(ConfigError, match="partitions=gpus is not known here; did you mean gpu"):
        known("partitions", ["gpus"], {"gpu", "cpu"})
    with pytest.raises(ConfigError, match="companion_qos=spair is not known here; did you mean spare"):
        known("companion_qos", ["spair"], {"normal", "spare"})
    with pytest.raises(ConfigError, match="accounts=x is not known here; accepted: lab, ml"):
        known("accounts", ["x"], {"ml", "lab"})
