"""The one parser: fast without the daemon's packages, and the source of man page and completion."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_elastic.client import main, parser
from slurm_elastic.daemon.cli import documents
from slurm_elastic.daemon.selasticd import reference, settings
from slurm_elastic.protocol import errors, request
from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.codes import Reason

LOOK_UPS = [
    *(["--help"], ["--version"], ["status", "--helpformat"], ["acct", "--helpformat"], ["events", "--helpformat"]),
    *(["plan", "--helpformat"], ["explain", "--help"], ["sbatch", "--help"], ["pin", "-h"]),
]


def bare(*words: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The command in a process that has the standard library and nothing else."""
    environment = {"PATH": "/nowhere", "PYTHONPATH": str(Path("packaging/namespace").resolve()), "LC_ALL": "C.UTF-8"}
    command = [sys.executable, *python, "-S", "-m", "slurm_elastic.client.main", *words]
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("words", LOOK_UPS, ids=" ".join)
def test_look_ups_need_nothing(words: list[str]) -> None:
    """--help, --version and --helpformat answer with no daemon, no configuration and no third-party package."""
    ended = bare(*words)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.strip()


SLOW = {
    "asyncio",
    "concurrent.futures",
    "email",
    "http.client",
    "json",
    "sqlite3",
    "ssl",
    "subprocess",
    "urllib.request",
}


def test_help_is_fast() -> None:
    """Help is there in a blink (100 ms), for it loads the parser and nothing that takes its time."""
    told = bare("--help", python=("-X", "importtime"))
    loaded = {line.rpartition("|")[2].strip() for line in told.stderr.splitlines() if line.startswith("import time:")}
    assert {"argparse", "slurm_elastic.client.parser"} <= loaded
    assert not loaded & SLOW
    assert len(loaded) < 120


def test_help_names_every_command() -> None:
    """What exists is what --help lists."""
    text = bare("--help").stdout
    for command in parser.commands():
        assert f"\n    {command.name} " in text


def test_commands_of_the_daemon_are_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user's environment has none of it."""
    added = {command.name for command in parser.commands()} - {command.name for command in parser.COMMANDS}
    assert added == set(parser.OF_THE_DAEMON)
    monkeypatch.setattr(parser, "ADDED", "slurm_elastic.daemon.not_there")
    with pytest.raises(SystemExit):
        parser.parse(["simulate", "month.txt"])
    assert "there is no command 'simulate' (it comes with slurm-elastic-daemon)" in capsys.readouterr().err


def test_help_names_the_environment() -> None:
    """Both ways to say where selasticd is are found where one looks first."""
    assert {"SELASTIC_URL", "SELASTIC_CLIENT_CONF"} <= set(bare("--help").stdout.split())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that needs more than is installed says which package, instead of a traceback."""
    broken = parser.Command("status", "no_such_package_at_all", "x")
    monkeypatch.setattr(parser, "COMMANDS", (broken,))
    assert main.main(["status"]) == 1
    assert "needs the package 'no_such_package_at_all'" in capsys.readouterr().err


def leaves(kind: type[errors.ElasticError]) -> list[type[errors.ElasticError]]:
    """The class and all below it."""
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in leaves(child))]


def test_every_error_has_its_exit_status() -> None:
    """3 only for a daemon that does not answer or cannot be asked for want of munged, 2 only for what the caller wrote,
    1 for everything else."""
    for kind in leaves(errors.ElasticError):
        if issubclass(kind, errors.DaemonUnreachable) or kind is munge.MungeError:
            expected = 3
        elif issubclass(kind, (errors.ConfigError, errors.RequestError)):
            expected = 2
        else:
            expected = 1
        assert main.exit_status(kind.__new__(kind)) == expected, kind


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends any command with the shell's usual status."""

    def interrupted(words: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(parser, "parse", interrupted)
    assert main.main(["status"]) == 130


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Man page and completions, as a package build makes them."""
    pytest.importorskip("shtab")
    pytest.importorskip("argparse_manpage")
    directory = tmp_path_factory.mktemp("generated")
    documents.write(directory)
    return directory


def test_the_man_page_has_every_command(generated: Path) -> None:
    """selastic(1) describes every command and option, and man can format it."""
    page = generated / "man" / "selastic.1"
    text = page.read_text().replace("\\-", "-")
    for command in parser.commands():
        assert f"selastic {command.name}" in text
    for option in ("--dry-run", "--starttime", "--helpformat", "--iterate"):
        assert option in text


def test_the_man_page_explains_requests_fields_and_reasons(generated: Path) -> None:
    """Every key of an elastic request, every column, every reason, and examples that the parser takes."""
    text = (generated / "man" / "selastic.1").read_text().replace("\\-", "-")
    assert set(documents.REQUEST) == set(request.KEYS)
    for section in ("ELASTIC REQUEST", "FIELDS", "REASONS", "EXAMPLES"):
        assert f"\n.SH {section}\n" in text
    for word in (*request.KEYS, *(reason.value for reason in Reason), "Samples/s", "GPUHours"):
        assert f"\n.B {word}\n" in text
    for command, _ in documents.EXAMPLES:
        name, *words = command.split()
        assert name == "selastic" and parser.parse(words).command == words[0]


def test_the_daemons_pages_say_what_its_parser_and_settings_say(generated: Path) -> None:
    """selasticd(8) has every option and the exit status; selasticd.toml(5) every setting with default and bounds."""
    page = (generated / "man" / "selasticd.8").read_text().replace("\\-", "-")
    assert all(option in page for option in ("--config", "--check", "--user", "--log-level", "exit status", "SIGTERM"))
    text = (generated / "man" / "selasticd.toml.5").read_text().replace("\\-", "-")
    for name in settings.FIELDS:
        assert (f"\n.BR {name} " in text) == (name not in reference.HIDDEN)
    assert '.BR mode " = \\(dqreview\\(dq"' in text and "Accepted: a number from 0.2 to 3600." in text


@pytest.mark.parametrize("page", ["selastic.1", "selasticd.8", "selasticd.toml.5"])
def test_man_formats_the_pages(page: str, generated: Path) -> None:
    """roff has no complaint about any page, and shows its title and its sections."""
    if shutil.which("groff") is None:
        subprocess.run(["packaging/install-build-deps-debian"], check=True, timeout=280)
    command = ["groff", "-man", "-ww", "-Wbreak", "-Tutf8", str(generated / "man" / page)]
    formatted = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    name, _, section = page.rpartition(".")
    assert formatted.stderr == "" and f"{name.upper()}({section})" in formatted.stdout
    plain = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", formatted.stdout)
    assert {"NAME", "SEE ALSO"} <= set(plain.splitlines())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_the_daemon(shell: str, generated: Path) -> None:
    """selasticd's few options complete too."""
    text = (generated / "completions" / documents.SHELLS[shell].format("selasticd")).read_text()
    assert all(option in text for option in ("check", "config", "log-level"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_options(shell: str, generated: Path) -> None:
    """Each shell's script names every command and their options, and the shell can read it."""
    script = generated / "completions" / documents.SHELLS[shell].format("selastic")
    text = script.read_text()
    for word in [*(command.name for command in parser.commands()), "helpformat", "starttime"]:
        assert word in text
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True, timeout=60)


def test_bash_completes_a_command(generated: Path) -> None:
    """Typing `selastic sta<TAB>` offers status."""
    script = generated / "completions" / documents.SHELLS["bash"].format("selastic")
    shell = f"source {script}; COMP_WORDS=(selastic sta); COMP_CWORD=1; _shtab_selastic; echo ${{COMPREPLY[@]}}"
    environment = os.environ | {"LC_ALL": "C.UTF-8"}
    ended = subprocess.run(
        ["bash", "-c", shell], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.split() == ["status"]


@pytest.mark.parametrize(
    "words", ["config check pyproj", "run --batch 3 pyproj", "sbatch pyproj", "report --html pyproj"]
)
def test_bash_completes_a_file(generated: Path, words: str) -> None:
    """Where a file is meant, its name completes as it does for any other command."""
    script = generated / "completions" / documents.SHELLS["bash"].format("selastic")
    typed = f"COMP_WORDS=(selastic {words}); COMP_CWORD={len(words.split())}"
    shell = f"compopt() {{ :; }}; source {script}; {typed}; _shtab_selastic; echo ${{COMPREPLY[@]}}"
    ended = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == ["pyproject.toml"], ended.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("status -s PEND", ["PENDING"]),
        ("acct --format GPUH", ["GPUHours"]),
        ("explain 12", ["1207", "1208"]),
        ("status -r gp", ["gpu"]),
    ],
)
def test_bash_completes_values(generated: Path, tmp_path: Path, words: str, offered: list[str]) -> None:
    """States and columns, and what selastic and sinfo know: jobs and partitions."""
    for name, lines in (("selastic", "1207\n1208\n77"), ("sinfo", "gpu\ncpu")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{lines}'\n")
        (tmp_path / name).chmod(0o755)
    script = generated / "completions" / documents.SHELLS["bash"].format("selastic")
    typed = f"COMP_WORDS=(selastic {words}); COMP_CWORD={len(words.split())}"
    shell = f"compopt() {{ :; }}; source {script}; {typed}; _shtab_selastic; echo ${{COMPREPLY[@]}}"
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(
        ["bash", "-c", shell], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.split() == offered, ended.stderr


def test_help_keeps_a_date_in_one_piece() -> None:
    """YYYY-MM-DD is not broken at its hyphens."""
    assert "YYYY-MM-DD[THH" in bare("acct", "--help").stdout


def test_an_unknown_shell_is_refused() -> None:
    """Only shells that we can write for."""
    with pytest.raises(errors.ConfigError, match="accepted: bash, zsh, fish"):
        documents.completion("csh")
