"""Man pages and shell completion, made from the one parser of each program and the one schema of the settings. What
selastic(1) says besides its options (the elastic request, fields, reasons, examples) is made from the same tables.

    python -m slurm_elastic.daemon.cli.documents DIRECTORY

writes man/selastic.1, man/selasticd.8, man/selasticd.toml.5 and completions of both programs for bash, zsh and fish
there. Limit: for building packages only; it needs shtab and argparse-manpage, which nothing that is installed does.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

from slurm_elastic.client import parser as selastic
from slurm_elastic.protocol import request
from slurm_elastic.protocol.answers.status import SHORT_STATES
from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.errors import ConfigError
from slurm_elastic.protocol.version import version

from ..selasticd.reference import escaped, wrapped

VALUES = {"STATE,...": sorted(SHORT_STATES)}
"""What an option takes, by its metavar, where that never changes."""
REQUEST = {
    "gpus": "N or MIN-MAX: GPUs of the whole job, companions included; the size at submission must be one of them",
    "batch": "N or MIN-MAX: global batch in samples, those of one optimizer step",
    "step": "distance between two accepted sizes, counted from the smallest (default: that of group)",
    "group": "GPUs of one model-parallel replica; only multiples are accepted (default: 1)",
    "slice": "samples that every rank's part of a step, and each micro batch, is a multiple of (default: 1)",
    "combine": f"what all ranks step with, made of their gradients: {', '.join(request.COMBINES)} (default: mean)",
    "lr": f"how the learning rate follows the batch: {', '.join(request.LR_RULES)} (default: auto)",
    "weight": "how much this job's progress counts, within the site's limit (default: 1)",
    "via": f"how it may be resized: {', '.join(request.MECHANISMS)}, joined by + "
    f"(default: {'+'.join(request.DEFAULT_VIA)})",
    "until": f"what ends the training: {' or '.join(request.ENDS)} (default: epochs)",
    "guard": "per cent of its value that a sample must keep at a larger batch, 1 to 100 (default: none)",
    "deadline": "HH:MM, YYYY-MM-DD[THH:MM] or now+8hours: when it is to be done (default: never)",
    "budget": "GPU-hours, as the site charges for them, that the training may cost (default: none)",
    "speedup": "of selastic hold: linear, or how much of twice as fast twice the GPUs are (default: none)",
}
TABLES = ("status", "acct", "events", "plan", "queue", "power", "predict", "hosts")
"""Commands with FIELDS."""
EXAMPLES = (
    ("selastic sbatch --elastic=gpus=2-16,batch=256-4096 train.sh", "submit an elastic job"),
    ("selastic status -u ada", "what the jobs of one user have now"),
    ("selastic explain 1207", "why job 1207 has what it has, and what can be done"),
    ("selastic predict 1207 --gpus 1:64", "how fast job 1207 would be on 1 to 64 GPUs, and what it costs to get there"),
    ("selastic status -o JobID,GPUs,Target,Batch,HeldBack", "choose the columns; --helpformat lists them"),
    ("selastic acct -j 1207 -P", "each size that a job has had, for a program to read"),
    ("selastic pin 1207 8", "hold a job at 8 GPUs; selastic unpin 1207 lets it go"),
    ("selastic hosts --clear n7,n9", "put jobs on both of these hosts again, whose network is mended"),
    ("selastic report -S now-7days --html week.html", "a page of how the jobs of a week have gone"),
)


def sections() -> Iterator[str]:
    """The lines of these sections in roff."""
    yield from (".SH ELASTIC REQUEST", f".B {escaped(request.ACCEPTED_FORM)}[,KEY=VALUE...]", ".PP")
    yield from wrapped(escaped("It stands in the job's comment. Keys come in any order, each once; no blanks."), 100)
    yield from _listed(REQUEST.items())
    yield ".SH FIELDS"
    yield from wrapped(escaped("Of --format, by command; --helpformat prints them too."), 100)
    for command in TABLES:
        yield f".SS {command}"
        fields = import_module(f"slurm_elastic.client.commands.{command}").FIELDS
        yield from _listed((field.name, field.help) for field in fields)
    yield ".SH REASONS"
    yield from wrapped(escaped("Why a job has what it has: the code under REASON, and what it means."), 100)
    yield from _listed((reason.value, reason.meaning) for reason in Reason)
    yield ".SH EXAMPLES"
    yield from _listed(EXAMPLES)


def _listed(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, words in entries:
        yield from (".TP", f".B {escaped(name)}", *wrapped(escaped(words), 100))


SHELLS = {"bash": "{}.bash", "zsh": "_{}", "fish": "{}.fish"}
"""Shells, and the file name that each looks for."""
FILES = ("script", "arguments", "words", "trace")
"""Arguments that are files, besides those that are called FILE."""
_ASKED = {"JOB": "_selastic_jobs", "ID,...": "_selastic_jobs", "PART,...": "_selastic_partitions"}
"""Values that are asked for when they are completed, by metavar, and the shell's function for it."""
_BASH = """
_selastic_jobs() { compgen -W "$(selastic status -nP -o JobID 2>/dev/null)" -- "$1"; }
_selastic_partitions() { compgen -W "$(sinfo -h -o %R 2>/dev/null)" -- "$1"; }
"""
_ZSH = """
_selastic_jobs() { compadd -- ${(f)"$(selastic status -nP -o JobID 2>/dev/null)"} }
_selastic_partitions() { compadd -- ${(f)"$(sinfo -h -o %R 2>/dev/null)"} }
"""
PROGRAMS = {
    "selastic": (1, "User Commands", "see, explain and steer elastic deep-learning jobs on Slurm"),
    "selasticd": (8, "System Administration", "decide what elastic jobs on Slurm get, and see to it"),
}


def parser_of(program: str) -> argparse.ArgumentParser:
    """The program's one parser, every option in it."""
    if program == "selastic":
        return selastic.build()
    from ..selasticd.main import parser

    return parser()


def man_page(program: str) -> str:
    """The program's page in roff; its date is SOURCE_DATE_EPOCH's, where that is set."""
    section, title, description = PROGRAMS[program]
    data = {
        "project_name": "slurm-elastic",
        "version": version(),
        "manual_title": title,
        "manual_section": section,
        "description": description,
    }
    page = str(_tool("argparse_manpage.manpage").Manpage(parser_of(program), _data=data)).rstrip()
    # A usage of several lines keeps them.
    page = re.sub(r"^usage: .*\n(?: +.*\n)*", r".nf\n\g<0>.fi\n", page, flags=re.MULTILINE)
    if program == "selastic":
        page = "\n".join([page, *sections()])
    others = [f".BR {name} ({PROGRAMS[name][0]})," for name in PROGRAMS if name != program]
    return "\n".join([page, ".SH SEE ALSO", *others, ".BR selasticd.toml (5)"]) + "\n"


def settings_page() -> str:
    from ..selasticd.reference import roff

    built = float(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    return roff(datetime.fromtimestamp(built, timezone.utc).strftime("%Y-%m-%d"), version())


def completion(shell: str, program: str = "selastic") -> str:
    """The completion script for bash, zsh or fish. Raises ConfigError for another shell."""
    if shell not in SHELLS:
        raise ConfigError(f"no completion for shell '{shell}'; accepted: {', '.join(SHELLS)}")
    preamble = {"bash": _BASH, "zsh": _ZSH}
    return str(_tool("shtab").complete(_completing(parser_of(program)), shell=shell, preamble=preamble))


def _completing(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser with what shtab asks for: which words are files, and of each command no more than its one line."""
    shtab = _tool("shtab")
    for action in parser._actions:
        if action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.metavar in ("FILE", "[FILE]") or action.dest in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _ASKED:
            name = _ASKED[action.metavar]
            action.complete = {"bash": name, "zsh": name}  # type: ignore[attr-defined]
        elif action.metavar in VALUES:
            action.choices = VALUES[action.metavar]
        elif action.metavar == "FIELD[%WIDTH],...":
            listed = next(each for each in parser._actions if each.dest == "helpformat").const
            action.choices = [field.name for field in listed]
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                child = action.choices[listed.dest]
                child.description = listed.help
                _completing(child)
    return parser


def _tool(name: str) -> Any:
    """A tool of the builder, which neither the daemon nor the command line has."""
    return import_module(name)


def write(directory: Path) -> list[Path]:
    """Write all of them under `directory`; returns the files."""
    texts = {directory / "man" / "selasticd.toml.5": settings_page()}
    for program, (section, _, _) in PROGRAMS.items():
        texts[directory / "man" / f"{program}.{section}"] = man_page(program)
        for shell, name in SHELLS.items():
            texts[directory / "completions" / name.format(program)] = completion(shell, program)
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(texts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="documents", description="write man pages and shell completion")
    parser.add_argument("directory", type=Path, help="where to")
    for path in write(parser.parse_args().directory):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
