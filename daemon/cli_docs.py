"""Man pages and shell completion of `selastic`, made from its one parser.

    python -m slurm_elastic.daemon.cli_docs DIRECTORY

writes man/selastic.1 and completions/selastic.{bash,zsh,fish} there. Limit: for building packages only; it needs shtab
and argparse-manpage, which nothing that is installed does.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from slurm_elastic.trainer_shim.errors import ConfigError

from . import cli_parser

SHELLS = {"bash": "selastic.bash", "zsh": "_selastic", "fish": "selastic.fish"}
"""Shells, and the file name that each looks for."""


def man_page() -> str:
    """selastic.1 in roff; its date is SOURCE_DATE_EPOCH's, where that is set."""
    data = {
        "project_name": "slurm-elastic",
        "version": cli_parser.version(),
        "manual_title": "User Commands",
        "manual_section": 1,
        "description": "see, explain and steer elastic deep-learning jobs on Slurm",
    }
    return str(_tool("argparse_manpage.manpage").Manpage(cli_parser.build(), _data=data)).rstrip() + "\n"


def completion(shell: str) -> str:
    """The completion script for bash, zsh or fish. Raises ConfigError for another shell."""
    if shell not in SHELLS:
        raise ConfigError(f"no completion for shell '{shell}'; accepted: {', '.join(SHELLS)}")
    return str(_tool("shtab").complete(cli_parser.build(), shell=shell))


def _tool(name: str) -> Any:
    """A tool of the builder, which neither the daemon nor the command line has."""
    return import_module(name)


def write(directory: Path) -> list[Path]:
    """Write all of them under `directory`; returns the files."""
    texts = {directory / "man" / "selastic.1": man_page()}
    texts |= {directory / "completions" / name: completion(shell) for shell, name in SHELLS.items()}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(texts)


def main() -> int:
    """The command of the module's docstring."""
    parser = argparse.ArgumentParser(prog="cli_docs", description="write man pages and shell completion")
    parser.add_argument("directory", type=Path, help="where to")
    for path in write(parser.parse_args().directory):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
