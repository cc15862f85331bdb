"""The systemd unit and the files around it, looked at without installing them."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
UNIT = PACKAGING / "systemd" / "selasticd.service"


def unit() -> configparser.ConfigParser:
    """The unit's settings; a key that stands twice keeps its last value."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def test_the_unit_is_confined() -> None:
    """What an intruder could do through the daemon is what systemd rates 1.5 of 10 or less."""
    if shutil.which("systemd-analyze") is None:
        subprocess.run([PACKAGING / "install-build-deps-debian"], check=True, timeout=280)
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=15", UNIT]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stdout[-300:]
    assert re.search(r"Overall exposure level for selasticd.service: (0|1\.[0-5])", answer.stdout)


def test_the_unit_runs_as_its_own_user_without_capabilities() -> None:
    """selasticd never runs as root, and Slurm's grants are all it has."""
    service = unit()["Service"]
    assert service["User"] == service["Group"] == "selastic"
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == ""
    assert service["NoNewPrivileges"] == "yes"
    sysusers = (PACKAGING / "systemd" / "slurm-elastic.sysusers").read_text()
    assert re.search(r"^u selastic -", sysusers, re.MULTILINE)


def test_the_state_is_the_daemons_and_its_address_everyones() -> None:
    """Users read where the daemon is, and nothing else of what it stores."""
    service = unit()["Service"]
    assert (service["StateDirectory"], service["StateDirectoryMode"], service["UMask"]) == (
        "slurm-elastic",
        "0755",
        "0077",
    )


def test_paths_of_unit_packages_and_hooks_agree() -> None:
    """One place for each thing: what the unit starts, the policy loads and the hook reads is what is installed."""
    package = (PACKAGING / "nfpm-slurm-elastic.yaml").read_text()
    assert "dst: /etc/slurm-elastic/selasticd.toml, type: config|noreplace" in package
    assert (
        unit()["Service"]["ExecStart"] == "/opt/slurm-elastic/bin/selasticd --config /etc/slurm-elastic/selasticd.toml"
    )
    policy = (ROOT / "slurm_hooks" / "job_submit.lua").read_text()
    assert 'pcall(dofile, "/usr/share/slurm-elastic/elastic.lua")' in policy
    assert "/etc/slurm-elastic/client.json" in (ROOT / "slurm_hooks" / "notify").read_text()
    assert "dst: /etc/slurm-elastic/client.json, type: symlink" in package
    for source in re.findall(r"src: (packaging/[^,}]+)", package):
        assert (ROOT / source).exists(), source


@pytest.mark.parametrize("script", ["postinstall", "preremove", "postremove"])
def test_maintainer_scripts_never_start_the_daemon(script: str) -> None:
    """An installed package changes nothing on a cluster until an admin says so."""
    file = PACKAGING / "maintainer" / script
    assert subprocess.run(["sh", "-n", file], check=False).returncode == 0
    assert not re.search(r"systemctl (start|enable|restart|reload-or-restart)", file.read_text())


def test_the_documentation_that_the_unit_names_is_installed() -> None:
    """`systemctl help selasticd` opens pages that are there."""
    package = (PACKAGING / "nfpm-slurm-elastic.yaml").read_text()
    places = re.findall(r'src: "?([^",}]+)"?, dst: ([^,}]+)', package)
    pages = unit()["Unit"]["Documentation"].split()
    files = [page for page in pages if page.startswith("file:")]
    assert [page for page in pages if page not in files] == [
        *("man:selasticd(8)", "man:selasticd.toml(5)", "man:selastic(1)"),
    ]
    assert {f"/usr/share/man/man{section}/" for section in (1, 5, 8)} <= set(dict(places).values())
    assert ("stage/usr/share/doc/slurm-elastic", "/usr/share/doc/slurm-elastic") in places
    installed = {f"file:///usr/share/doc/slurm-elastic/{page.relative_to(ROOT)}" for page in shipped()}
    assert files and set(files) <= installed


def shipped() -> set[Path]:
    """What build-packages puts into /usr/share/doc/slurm-elastic, as it lies here."""
    listed = re.search(r'^pages="(.+)"$', (PACKAGING / "build-packages").read_text(), re.MULTILINE)
    assert listed
    found = [ROOT / word for word in listed[1].split()]
    return {each for top in found for each in (top.rglob("*") if top.is_dir() else [top])} | set(found)


def test_the_links_of_installed_pages_lead_to_installed_pages() -> None:
    """An admin who reads install.md from the package finds SECURITY.md too."""
    there = shipped()
    for page in sorted(each for each in there if each.suffix == ".md"):
        for target in re.findall(r"\]\(([^)\s:#]+)[#)]", page.read_text()):
            assert (page.parent / target).resolve() in there, f"{page.name}: {target}"


def test_the_users_command_runs_under_the_users_python(tmp_path: Path) -> None:
    """What the module file puts into PATH runs under whatever Python stands first there: the one that has torch."""
    module = (PACKAGING / "modulefile").read_text()
    build = (PACKAGING / "build-packages").read_text()
    assert re.search(r"^prepend-path\s+PATH\s+/opt/slurm-elastic/shim/bin$", module, re.MULTILINE)
    assert 'install -D -m 0755 packaging/selastic "$STAGE$prefix/shim/bin/selastic"' in build
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\necho "the user\'s python"\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(PACKAGING / "namespace")}
    said = subprocess.run(
        [PACKAGING / "selastic", "--help"], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.startswith("the user's python\nusage: selastic ")


def setup_cfg() -> configparser.SectionProxy:
    """What the wheel is made from."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup["options"]


def test_the_shim_and_the_command_line_need_nothing_else() -> None:
    """`pip install slurm-elastic` lives beside the user's training code and must pull in nothing."""
    wanted = setup_cfg()["install_requires"].splitlines()
    assert [line for line in wanted if line and not line.startswith("#")] == []
