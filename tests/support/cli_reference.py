"""docs/reference/cli.md, printed from the one parser of each program.

    .venv/bin/python tests/support/cli_reference.py > docs/reference/cli.md

Promise: the same text on every Python. Limit: fields of --format are left to --helpformat.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from slurm_elastic.client import parser as selastic
from slurm_elastic.daemon.selasticd.main import parser as selasticd

OPENING = """# Commands

This page is printed from the code: `.venv/bin/python tests/support/cli_reference.py > docs/reference/cli.md`.
Every command has `--help`. The packages bring man pages and shell completion.
"""
Commands = list[tuple[str, argparse.ArgumentParser]]


def markdown() -> str:
    """The reference page."""
    return "\n".join([OPENING, *program(selastic.build()), *program(selasticd())]).rstrip() + "\n"


def program(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A program: what it is, its own options, those of several commands, and a section for each command."""
    yield f"## {parser.prog}\n"
    yield sentence(parser.description)
    yield from table(parser._actions)
    yield from (part[:1].upper() + sentence(part[1:]) for part in (parser.epilog or "").split("\n\n"))
    groups = [group for _, child in commands(parser) for group in child._action_groups[2:]]
    titles = [group.title for group in groups]
    shared = {group.title: group for group in reversed(groups) if titles.count(group.title) > 1}
    for title, group in shared.items():
        yield f"### Options: {title}\n"
        yield from table(group._group_actions)
    for name, child in commands(parser):
        yield f"### {parser.prog} {name}\n"
        yield sentence(child.description)
        yield from table([a for g in child._action_groups if g.title not in shared for a in g._group_actions])
        if also := [f"*{str(g.title).partition(' (')[0]}*" for g in child._action_groups if g.title in shared]:
            yield f"Also the options {' and '.join(also)}.\n"
        for inner, grandchild in commands(child):
            yield f"`{parser.prog} {name} {inner}`: {sentence(help_of(child, inner))}"
            yield from table(grandchild._actions)


def commands(parser: argparse.ArgumentParser) -> Commands:
    found: Commands = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [(listed.dest, action.choices[listed.dest]) for listed in action._choices_actions]
    return found


def help_of(parser: argparse.ArgumentParser, name: str) -> str:
    actions = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next(str(listed.help) for action in actions for listed in action._choices_actions if listed.dest == name)


def table(actions: Iterable[argparse.Action]) -> Iterator[str]:
    """Arguments and options, --help left out."""
    left_out = (argparse._SubParsersAction, argparse._HelpAction)
    rows = [f"| {form(action)} | {meaning(action)} |" for action in actions if not isinstance(action, left_out)]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n"


def meaning(action: argparse.Action) -> str:
    words = str(action.help or "").partition("\n")[0] % vars(action) if action.help else ""
    # The default columns differ from command to command; they are in its --help.
    return sentence(words.partition(" (default")[0] if action.dest == "format" else words).strip()


def form(action: argparse.Action) -> str:
    """How an argument is written: `-a`, `--all`, or `-j ID, --jobs ID`."""
    value = "" if action.nargs == 0 else str(action.metavar or action.dest)
    if action.choices is not None and action.metavar is None:
        value = ",".join(map(str, action.choices))
    names = [f"{option} {value}".strip() for option in action.option_strings] or [value]
    return ", ".join(f"`{name}`" for name in names).replace("|", "\\|")


def sentence(text: str | None) -> str:
    return " ".join((text or "").split()).replace("%%", "%").replace("|", "\\|") + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
