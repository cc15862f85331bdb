"""The packages on a clean Debian root: installed, run, upgraded with their database, removed. See packaging/."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import old_database  # noqa: E402
from waiting import wait_until  # noqa: E402

SUITE = "bookworm"
CONFIG = "/etc/slurm-elastic/selasticd.toml"
STATE = "/var/lib/slurm-elastic"
DAEMON = "/opt/slurm-elastic/bin/selasticd"
OLD = "0.0.1"
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def sh(*command: str | Path, **options: object) -> str:
    """Run a command to its good end; its output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return str(done.stdout)


class Root:
    """A Debian in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *command: str, user: str = "root") -> str:
        """Run a command inside, as that user."""
        environment = {
            "PATH": PATH,
            "DEBIAN_FRONTEND": "noninteractive",
            "LC_ALL": "C.UTF-8",
        }
        return sh("chroot", f"--userspec={user}", self.path, *command, env=environment)

    def at(self, path: str) -> Path:
        """A path inside, seen from outside."""
        return self.path / path.lstrip("/")

    def install(self, package: Path) -> None:
        """Install or upgrade a .deb with its dependencies."""
        shutil.copy(package, self.path / "tmp")
        self.run(
            "apt-get",
            "install",
            "-y",
            "-qq",
            "--no-install-recommends",
            "-o",
            "Dpkg::Use-Pty=0",
            f"/tmp/{package.name}",
        )

    def owns(self, path: str) -> str:
        """user:group mode of a file inside."""
        return self.run("stat", "-c", "%U:%G %a", path).strip()

    @contextlib.contextmanager
    def daemon(self) -> Iterator[http.client.HTTPConnection]:
        """selasticd as its user, as the unit starts it, until it answers; stopped with SIGTERM after."""
        client = self.at(f"{STATE}/client.json")
        client.unlink(missing_ok=True)
        command = [
            "chroot",
            "--userspec=selastic:selastic",
            self.path,
            "sh",
            "-c",
            f"umask 0077; exec {DAEMON} --config {CONFIG}",
        ]
        log = (self.path / "tmp" / "selasticd.log").open("w")
        process = subprocess.Popen(command, stdout=log, stderr=log, env={"PATH": PATH})
        try:
            wait_until(lambda: client.exists() or process.poll() is not None, 60)
            assert process.poll() is None, Path(log.name).read_text()
            url = json.loads(client.read_text())["url"]
            yield http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, Path(log.name).read_text()
            log.close()


@pytest.fixture(scope="session")
def built() -> Iterator[Path]:
    """A folder with the wheel and all packages of this tree; SELASTIC_PACKAGES names one that is built already."""
    if given := os.environ.get("SELASTIC_PACKAGES"):
        yield Path(given)
        return
    folder = Path(tempfile.mkdtemp(prefix="selastic-packages-"))
    sh(ROOT / "packaging" / "build-packages", "--output", folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def debian() -> Iterator[Path]:
    """A small Debian with systemd and Slurm; what is installed in it from outside may start no service."""
    path = Path(tempfile.mkdtemp(prefix="selastic-debian-"))
    path.chmod(0o755)
    include = "python3,python3-venv,ca-certificates,systemd,systemd-sysv,dbus,munge,slurm-client,slurmctld"
    sh("debootstrap", "--variant=minbase", f"--include={include}", SUITE, path)
    policy = path / "usr" / "sbin" / "policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def root(debian: Path) -> Iterator[Root]:
    """A copy of it to work in with chroot."""
    path = Path(tempfile.mkdtemp(prefix="selastic-root-")) / "root"
    path.parent.chmod(0o755)
    sh("cp", "-a", debian, path)
    sh("mount", "--bind", "/dev", path / "dev")
    sh("mount", "-t", "proc", "proc", path / "proc")
    try:
        yield Root(path)
    finally:
        sh("umount", path / "dev")
        sh("umount", path / "proc")
        shutil.rmtree(path.parent)


@pytest.fixture(scope="session")
def old(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The previous version: the package named by SELASTIC_PREVIOUS_DEB, or this one under a lower number."""
    if given := os.environ.get("SELASTIC_PREVIOUS_DEB"):
        return Path(given)
    [new] = built.glob("slurm-elastic_*.deb")
    tree, package = (
        tmp_path_factory.mktemp("old") / "tree",
        tmp_path_factory.mktemp("deb") / f"slurm-elastic_{OLD}-1.deb",
    )
    sh("dpkg-deb", "-R", new, tree)
    control = tree / "DEBIAN" / "control"
    control.write_text(re.sub(r"(?m)^Version: .*", f"Version: {OLD}-1", control.read_text()))
    sh("dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "-b", tree, package)
    shutil.rmtree(tree)
    return package


@pytest.fixture(scope="session")
def installed(root: Root, old: Path) -> Root:
    """The root with the previous version, a database with history, and a configuration that an admin has edited."""
    root.install(old)
    return root


def test_two_builds_are_the_same(built: Path, tmp_path: Path) -> None:
    """Whoever does not trust a package builds it again and compares."""
    sh(ROOT / "packaging" / "build-packages", "--output", tmp_path)
    first, second = ({path.name: sh("sha256sum", path).split()[0] for path in of.iterdir()} for of in (built, tmp_path))
    assert len(first) == 6 and first == second


def test_the_bill_of_materials_names_what_is_there(installed: Root) -> None:
    """Every package in the daemon's environment, with its version, in CycloneDX."""
    bill = json.loads(installed.at("/usr/share/doc/slurm-elastic/sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    named = {(part["name"].lower(), part["version"]) for part in bill["components"]}
    frozen = installed.run("/opt/slurm-elastic/bin/pip", "list", "--format=json")
    there = {(part["name"].lower(), part["version"]) for part in json.loads(frozen)}
    assert there <= named and len(there) > 15


def test_installing_starts_nothing(installed: Root) -> None:
    """The package brings user, unit, configuration and pages; it enables and runs nothing."""
    assert "selastic" in installed.run("getent", "passwd", "selastic")
    assert installed.owns(STATE) == "selastic:selastic 755"
    assert installed.at("/usr/lib/systemd/system/selasticd.service").exists()
    assert not list(installed.at("/etc/systemd/system").glob("*/selasticd.service"))
    assert not installed.at(f"{STATE}/client.json").exists()
    for page in (
        "/usr/share/man/man1/selastic.1.gz",
        "/usr/share/man/man8/selasticd.8.gz",
        "/usr/share/man/man5/selasticd.toml.5.gz",
        "/usr/share/bash-completion/completions/selastic",
        "/usr/share/bash-completion/completions/selasticd",
        "/usr/share/slurm-elastic/monitoring/alerts.yml",
    ):
        assert installed.at(page).stat().st_size > 200


def test_the_pages_are_there_with_all_that_they_link(installed: Root) -> None:
    """README, guides and SECURITY.md lie as they do in the repository, so no link between them is dead."""
    pages = installed.at("/usr/share/doc/slurm-elastic")
    for page in [pages / "README.md", pages / "SECURITY.md", *(pages / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)\s:#]+)[#)]", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"
    assert (pages / "docs" / "how-to" / "install.md").exists()


def test_the_commands_work_for_every_user(installed: Root) -> None:
    """`selastic --help` needs neither daemon nor rights; the settings as shipped are accepted."""
    assert "status" in installed.run("selastic", "--help", user="nobody:nogroup")
    assert installed.run("selastic", "--version").split()[-1][0].isdigit()
    assert "--check" in installed.run("selasticd", "--help", user="nobody:nogroup")
    leftovers = [
        file
        for file in installed.at("/opt/slurm-elastic").rglob("*")
        if file.is_file() and b"/stage/" in file.read_bytes() and file.suffix in ("", ".cfg")
    ]
    assert leftovers == [], "paths of the machine that built it"


def test_the_shim_is_importable_from_any_python(installed: Root) -> None:
    """What the module file puts on PYTHONPATH needs nothing else, and its `selastic` runs under any Python too."""
    code = "import slurm_elastic.protocol.request as r; print(r.parse('gpus=1-2,batch=8').text())"
    module = next(installed.at("/usr/share/slurm-elastic/modulefiles/slurm-elastic").iterdir()).read_text()
    path, commands = re.search(r"PYTHONPATH\s+(\S+)", module), re.search(r"\sPATH\s+(\S+)", module)
    assert path is not None and commands is not None
    environment = ("env", f"PYTHONPATH={path[1]}", f"PATH={commands[1]}:{PATH}")
    assert installed.run(*environment, "python3", "-c", code).strip() == "elastic:gpus=1-2,batch=8"
    assert installed.run(*environment, "sh", "-c", "command -v selastic").strip() == f"{commands[1]}/selastic"
    assert "training script" in installed.run(*environment, "selastic", "run", "--help", user="nobody:nogroup")


def test_a_database_driver_is_installed_beside_the_daemon(installed: Root) -> None:
    """The package brings SQLite alone; before and after the documented line, `--check` says what is missing."""
    config = installed.at("/tmp/driver.toml")
    config.write_text('state_dir = "/tmp"\ndatabase_url = "mysql+pymysql://selastic@127.0.0.1:1/selastic"\n')
    check = ("sh", "-c", "selasticd --config /tmp/driver.toml --check; true")
    assert "its driver pymysql is not installed beside selasticd" in installed.run(*check)
    sh(sys.executable, "-m", "pip", "-q", "download", "--no-deps", "-d", installed.at("/tmp/wheels"), "PyMySQL")
    installed.run("/opt/slurm-elastic/bin/pip", "-q", "install", "--no-index", "--find-links=/tmp/wheels", "PyMySQL")
    said = installed.run(*check)
    assert "driver" not in said and "Can't connect to MySQL server" in said


OPEN = "import sys; from slurm_elastic.db.store import Store; s = Store.open(sys.argv[1]); "
EVENT = OPEN + "import time; s.events.add(7, 'pin', 'test', {'n': 1}, time.time()); s.close()"
EVENTS = OPEN + "print([e.kind for e in s.events.of(7)]); s.close()"


def on_database(root: Root, code: str) -> str:
    """Run Python code on the daemon's database, as the daemon's user and with its umask."""
    command = f'umask 0077; exec /opt/slurm-elastic/bin/python -c "$1" sqlite:///{STATE}/selastic.db'
    return root.run("sh", "-c", command, "sh", code, user="selastic:selastic")


def test_upgrade_keeps_database_and_configuration(installed: Root, built: Path) -> None:
    """From the previous version to this one: the daemon finds what it knew, the admin what they wrote."""
    config = installed.at(CONFIG)
    config.write_text('mode = "observe"\nserver.listen = "127.0.0.1:0"\n' + config.read_text().replace("[server]", ""))
    with installed.daemon() as daemon:
        daemon.request("GET", "/v1/health")
        assert daemon.getresponse().status == 200
    on_database(installed, EVENT)
    [new] = built.glob("slurm-elastic_*_amd64.deb")
    installed.install(new)
    assert OLD not in installed.run("dpkg-query", "-W", "-f", "${Version}", "slurm-elastic")
    assert 'mode = "observe"' in config.read_text()
    with installed.daemon() as daemon:
        daemon.request("GET", "/v1/health")
        assert daemon.getresponse().status == 200
    assert on_database(installed, EVENTS).strip() == "['pin']"
    assert installed.owns(f"{STATE}/selastic.db") == "selastic:selastic 600", "users must not read it"
    assert installed.owns(f"{STATE}/client.json") == "selastic:selastic 644", "users must read it"
    assert "127.0.0.1" in installed.run("cat", "/etc/slurm-elastic/client.json", user="nobody:nogroup")


@pytest.fixture
def old_history(installed: Root) -> Iterator[list[str]]:
    """A database that 0.1.0 wrote in the place of today's: its content. Afterwards today's is back."""
    state = installed.at(STATE)
    (state / "kept").mkdir()
    for file in state.glob("selastic.db*"):
        file.rename(state / "kept" / file.name)
    old_database.write(state / "selastic.db")
    installed.run("chown", "selastic:selastic", f"{STATE}/selastic.db")
    yield old_database.content(state / "selastic.db")
    for file in state.glob("selastic.db*"):
        file.unlink()
    for file in (state / "kept").iterdir():
        file.rename(state / file.name)
    (state / "kept").rmdir()


def test_an_upgrade_over_0_1_0_says_what_to_do(installed: Root, old_history: list[str]) -> None:
    """The package and `selasticd --check` both say it; what they say, carried out, is all that is needed."""
    scripts = "sh /var/lib/dpkg/info/slurm-elastic.postinst configure 0.1.0-1 2>&1"
    for command in (scripts, f"{DAEMON} --check --config {CONFIG} 2>&1; true"):
        said = installed.run("sh", "-c", command)
        assert "was written by slurm-elastic 0.1.0, which 0.2.0 does not read: move it away (mkdir" in said
    assert old_database.content(installed.at(f"{STATE}/selastic.db")) == old_history, "it is left alone"
    way_out = re.search(r"\((mkdir [^)]*)\)", said)
    assert way_out is not None
    installed.run("sh", "-c", way_out[1])
    with installed.daemon() as daemon:
        daemon.request("GET", "/v1/health")
        assert daemon.getresponse().status == 200
    moved = installed.at(f"{STATE}/0.1.0/selastic.db")
    assert old_database.content(moved) == old_history, "and kept"
    shutil.rmtree(moved.parent)


def test_the_plugin_package_fits_this_slurm(installed: Root, built: Path) -> None:
    """Installed it changes nothing; named in plugstack.conf it gives sbatch the option."""
    [package] = built.glob("slurm-elastic-spank_*.deb")
    installed.install(package)
    slurm = installed.at("/etc/slurm")
    slurm.mkdir(exist_ok=True)
    (slurm / "slurm.conf").write_text("ClusterName=x\nSlurmctldHost=localhost\n")
    assert "--elastic" not in installed.run("sbatch", "--help")
    (slurm / "plugstack.conf").write_text("optional /usr/lib/slurm-elastic/spank_elastic.so\n")
    assert "--elastic" in installed.run("sbatch", "--help")


def test_the_plugins_sources_build_where_they_are_installed(installed: Root) -> None:
    """A site with a Slurm of its own builds the plugin from the package."""
    installed.run(
        "apt-get", "install", "-y", "-qq", "--no-install-recommends", "gcc", "libc6-dev", "make", "libslurm-dev"
    )
    installed.run("make", "-C", "/usr/src/slurm-elastic", "BUILD=/tmp/hooks")
    assert installed.at("/tmp/hooks/spank_elastic.so").exists()


def test_removal_keeps_the_history_and_purge_takes_it(installed: Root) -> None:
    """Removed in one command, which says what still names it; the database goes only when the admin purges."""
    installed.run("apt-get", "remove", "-y", "-qq", "slurm-elastic-spank")
    said = installed.run("sh", "-c", "apt-get remove -y -qq slurm-elastic 2>&1")
    assert "slurm-elastic is still named in /etc/slurm/plugstack.conf - take these lines out" in said
    assert not installed.at("/opt/slurm-elastic").exists()
    assert not installed.at("/usr/lib/systemd/system/selasticd.service").exists()
    assert installed.at(f"{STATE}/selastic.db").exists()
    installed.run("apt-get", "purge", "-y", "-qq", "slurm-elastic")
    assert not installed.at(STATE).exists()
    assert not installed.at("/etc/slurm-elastic").exists()


PROBE = Path(__file__).with_name("probe.sh")


@pytest.fixture(scope="session")
def booted(debian: Path, built: Path, old: Path) -> Iterator[dict[str, str]]:
    """What probe.sh saw on a machine of its own: sections of its output by name."""
    path = Path(tempfile.mkdtemp(prefix="selastic-boot-")) / "root"
    sh("cp", "-a", debian, path)
    (path / "usr" / "sbin" / "policy-rc.d").unlink()
    shutil.copy(old, path / "root" / "old.deb")
    [new] = built.glob("slurm-elastic_*_amd64.deb")
    shutil.copy(new, path / "root" / "new.deb")
    shutil.copy(PROBE, path / "root" / "probe.sh")
    (path / "etc" / "slurm" / "slurm.conf").write_text(SLURM_CONF.format(address=own_address()))
    (path / "etc" / "hostname").write_text("boot\n")
    # As Debian and Ubuntu install it.
    (path / "etc" / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 boot\n")
    units = path / "etc" / "systemd" / "system"
    (units / "probe.service").write_text("[Service]\nType=oneshot\nExecStart=/bin/bash /root/probe.sh\n")
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants" / "probe.service").symlink_to("../probe.service")
    command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-users=no", "--hostname=boot"]
    try:
        done = subprocess.run(
            [*command, "-D", path, "-b"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=400,
            check=False,
        )
        output = path / "root" / "probe.out"
        assert output.exists(), done.stdout[-2000:] + done.stderr[-2000:]
        text = output.read_text()
    finally:
        shutil.rmtree(path.parent)
    yield {name: said.strip() for name, said in re.findall(r"(?s)== (\w+) ==\n(.*?)(?=== \w+ ==|\Z)", text)}


SLURM_CONF = """ClusterName=x
SlurmctldHost=boot
SlurmctldPort=23990
SlurmdPort=23991
SlurmUser=slurm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
StateSaveLocation=/var/lib/slurm/slurmctld
MpiDefault=none
NodeName=n1 NodeAddr={address} CPUs=4
PartitionName=main Nodes=n1 Default=YES
"""
"""Ports that no other Slurm on this machine uses: the machine shares the network."""


def own_address() -> str:
    """This machine's address on its network. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        towards.connect(("192.0.2.1", 9))
        return str(towards.getsockname()[0])


def test_a_host_that_calls_itself_127_0_1_1_tells_clients_an_address_they_reach(booted: dict[str, str]) -> None:
    """With `listen = "auto:PORT"`, as docs/how-to/install.md has it, on a host as Debian installs it."""
    assert booted["own_name"].split()[0] == "127.0.1.1"
    assert booted["url"] == f"http://{own_address()}:16850"


def test_systemd_installs_without_enabling(booted: dict[str, str]) -> None:
    """On a machine with systemd, too, the admin decides when it starts."""
    assert booted["enabled"] == "disabled"


def test_the_confined_unit_does_its_work(booted: dict[str, str]) -> None:
    """Inside the unit's confinement the daemon reaches database, MUNGE and Slurm, and every user reaches the daemon, by
    MUNGE and by its Unix socket, whose callers the kernel tells apart there."""
    assert booted["active"] == "active", booted["journal"]
    for line in ("database: sqlite, ready", "munged answers, this is uid", "slurm: 1 nodes", "all is well"):
        assert line in booted["journal"]
    assert booted["status_root"].endswith("rc=0")
    assert booted["status_nobody"].endswith("rc=0")
    assert "Permission denied" in booted["database_nobody"]


def test_systemd_sees_that_it_is_ready_and_that_it_hangs(booted: dict[str, str]) -> None:
    """Started means ready, its status says how it goes, and one that stands still is replaced."""
    assert booted["watchdog"].split("\n") == ["notify", "1min", "mode review; rounds succeed", "1", "active"]


def test_the_journal_has_priorities(booted: dict[str, str]) -> None:
    """What is told for information is none of `journalctl -p warning`."""
    shown, informed = booted["warnings"].split()
    assert shown == "0" and int(informed) > 0


def test_an_upgrade_restarts_a_running_daemon(booted: dict[str, str]) -> None:
    """The new code serves at once, on the same state."""
    before, after = booted["pid_before"], booted["pid_after"]
    assert before != after
    assert "0" not in (before, after)
    assert booted["active_after"] == "active"


def test_a_purge_stops_and_takes_everything(booted: dict[str, str]) -> None:
    """One command undoes the installation, running daemon included."""
    assert "no process" in booted["purged"]
    assert not re.search(
        r"/opt/slurm-elastic|/var/lib/slurm-elastic|/etc/slurm-elastic|selasticd.service", booted["purged"]
    )


def test_the_rpm_holds_the_same_files(built: Path) -> None:
    """One description makes both packages; the .rpm's scripts tell removal from upgrade."""
    for name in ("slurm-elastic", "slurm-elastic-spank"):
        [rpm] = built.glob(f"{name}-[0-9]*.rpm")
        [deb] = built.glob(f"{name}_*_amd64.deb")
        listed = {line for line in sh("rpm", "-qpl", rpm).splitlines()}
        files = {line.split()[5].lstrip(".") for line in sh("dpkg-deb", "-c", deb).splitlines() if line[0] == "-"}
        assert files - listed == set()
    [rpm] = built.glob("slurm-elastic-[0-9]*.rpm")
    assert "selastic" in sh("rpm", "-qp", "--scripts", rpm)
    assert CONFIG in sh("rpm", "-qpc", rpm).split()
    assert re.search(r"python\(abi\) = 3\.\d+", sh("rpm", "-qp", "--requires", rpm))


def test_the_bare_wheel_needs_nothing(built: Path, tmp_path: Path) -> None:
    """`pip install slurm-elastic` into a training environment pulls in no package, and its command works."""
    [wheel] = built.glob("slurm_elastic-*.whl")
    sh("/usr/bin/python3", "-m", "venv", tmp_path / "env")
    sh(tmp_path / "env" / "bin" / "python", "-m", "pip", "install", "-q", "--no-index", wheel)
    listed = json.loads(sh(tmp_path / "env" / "bin" / "python", "-m", "pip", "list", "--format=json"))
    assert {item["name"] for item in listed} == {"pip", "setuptools", "slurm-elastic"}
    assert "status" in sh(tmp_path / "env" / "bin" / "selastic", "--help")
    code = "import slurm_elastic.trainer_shim, sys; print('torch' in sys.modules)"
    assert sh(tmp_path / "env" / "bin" / "python", "-c", code).strip() == "False"
