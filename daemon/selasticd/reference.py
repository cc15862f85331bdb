"""The settings' reference and sample file, printed from the code: the docstring under each field is its explanation."""

import argparse
import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any

from . import settings as schema
from .settings import FIELDS, TABLE_OF

HIDDEN = ("user_mode",)
"""Given on the command line, not in the file."""


def explanations() -> dict[str, str]:
    """The docstring under each setting, on one line, in the order of the tables."""
    return {name: said for kind in schema.TABLES for name, said in _explained(kind).items()}


def _explained(kind: type[Any]) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = tree.body[0].body  # type: ignore[attr-defined]
    found: dict[str, str] = {}
    for statement, following in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            value = following.value if isinstance(following, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[statement.target.id] = " ".join(value.value.split())
    return found


def _tables() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each table that a file has, with its settings and their explanations."""
    words = explanations()
    for table, some in groupby(words, key=TABLE_OF.__getitem__):
        yield table, [(name, words[name]) for name in some if name not in HIDDEN]


def accepted(name: str) -> str:
    return str(FIELDS[name].metadata["accepted"])


def default(name: str) -> str:
    value = FIELDS[name].default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def markdown() -> str:
    lines = [
        "# Settings of selasticd",
        "",
        f"One TOML file, `{schema.DEFAULT_FILE}` unless `--config` names another. Every setting is optional; a",
        "change takes effect when selasticd is started again. `selasticd --check` says what is wrong with the file.",
        "In this release settings also count above the first table, as in 0.2; the log says where they belong.",
        "",
        "This page is printed from the code: "
        "`python -m slurm_elastic.daemon.selasticd.reference --markdown > docs/reference/settings.md`.",
    ]
    for table, settings in _tables():
        lines += ["", f"## `[{table}]`" if table else "## Above the first table"]
        for name, words in settings:
            lines += ["", f"### `{name}`", "", f"Default `{default(name)}`; accepted: {accepted(name)}.", ""]
            lines += wrapped(words, 118)
            meanings = [f"- `{word}`: {said}" for word, said in FIELDS[name].metadata["words"].items() if said]
            lines += [""] * bool(meanings) + meanings
    return "\n".join(lines) + "\n"


def sample() -> str:
    """The sample file: every setting, commented out, at its default."""
    lines = ["# Settings of selasticd. What is commented out is the default. Check with: selasticd --check"]
    for table, settings in _tables():
        lines += ["", f"[{table}]"] if table else []
        for name, words in settings:
            lines.append("")
            for paragraph in (words, f"Accepted: {accepted(name)}."):
                lines += wrapped(paragraph, 118, "# ")
            lines.append(f"#{name} = {default(name)}")
    return "\n".join(lines) + "\n"


def roff(date: str, version: str) -> str:
    lines = [
        f'.TH SELASTICD.TOML 5 "{date}" "slurm-elastic {version}" "File Formats"',
        ".SH NAME",
        "selasticd.toml \\- settings of selasticd",
        ".SH DESCRIPTION",
        f"One TOML file, {escaped(str(schema.DEFAULT_FILE))} unless \\-\\-config names another.",
        "Every setting is optional; a change takes effect when selasticd is started again.",
        ".B selasticd \\-\\-check",
        "says what is wrong with the file.",
        ".SH SETTINGS",
    ]
    for table, settings in _tables():
        lines += [f".SS [{table}]"] if table else []
        for name, words in settings:
            lines += [".TP", f'.BR {escaped(name)} " = {escaped(default(name)).replace(chr(34), chr(92) + "(dq")}"']
            lines += wrapped(escaped(words), 100)
            lines += [".br", f"Accepted: {escaped(accepted(name))}."]
    lines += [".SH FILES", f".I {escaped(str(schema.DEFAULT_FILE))}", ".SH SEE ALSO", ".BR selasticd (8),"]
    return "\n".join([*lines, ".BR selastic (1)"]) + "\n"


def wrapped(text: str, width: int, before: str = "") -> list[str]:
    """Lines of whole words, each with this before it."""
    wrapper = textwrap.TextWrapper(width, before, before, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text)


def escaped(text: str) -> str:
    """Text as roff takes it: backslashes and hyphens escaped, no line that begins with a request."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return "\\&" + plain if plain.startswith((".", "'")) else plain


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m slurm_elastic.daemon.selasticd.reference", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--markdown", action="store_true", help="print the reference page")
    what.add_argument("--sample", action="store_true", help="print the sample file")
    options = parser.parse_args(arguments)
    sys.stdout.write(markdown() if options.markdown else sample())


if __name__ == "__main__":
    main()
