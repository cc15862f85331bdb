"""`selastic sbatch --elastic=REQUEST [sbatch's options] SCRIPT [ARGS]`: check the request, then become sbatch.

Promise: the request is read by the one parser, and refused with one sentence before Slurm sees it; everything else
reaches sbatch as it was given, and its exit status is ours; of a job with a deadline or a budget selasticd is asked at
once whether they will be kept, unless sbatch waits for it. Limit: where the site has the SPANK plugin, plain
`sbatch --elastic=...` does the same; the starting size is checked only where options say it as a plain number.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_elastic.protocol import request as elastic_request
from slurm_elastic.protocol.answers.explain import Explain
from slurm_elastic.protocol.errors import ConfigError, ElasticError, RequestError
from slurm_elastic.protocol.gres import gres_gpus

from ..options import ask

_FLAGS = frozenset({
    "--contiguous", "--exclusive", "--force-launch", "--get-user-env", "--help", "--hold", "--ignore-pbs",
    "--kill-on-invalid-dep", "--nice", "--no-kill", "--no-requeue", "--overcommit", "--oversubscribe", "--parsable",
    "--propagate", "--quiet", "--reboot", "--requeue", "--share", "--spread-job", "--stepmgr", "--test-only",
    "--usage", "--use-min-nodes", "--verbose", "--version", "--wait"
})  # fmt: skip
"""sbatch's long options that take no value, or take one only behind `=`."""
_SHORT_FLAGS = frozenset("hHIkKOQsvVW")
# The long name of a short option whose value is needed here.
_SHORT = {"-N": "--nodes", "-G": "--gpus", "-n": "--ntasks"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything is taken as it is: sbatch's options are sbatch's."""
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="--elastic=gpus=MIN-MAX,batch=MIN-MAX[,KEY=VALUE...] [sbatch's options] SCRIPT [ARGS]",
        help=f"further keys of the request: {', '.join(elastic_request.KEYS[2:])}",
    )


def run(args: argparse.Namespace) -> int:
    """Replace this process by sbatch."""
    command = sbatch_command(args.words, os.environ)
    if shutil.which("sbatch") is None:
        raise ElasticError("sbatch is not in PATH; run this where Slurm's commands are installed")
    request = elastic_request.parse(elastic_request.find(command[1].partition("=")[2]) or "")
    if not (request.deadline or request.budget) or {"-W", "--wait", "--test-only"}.intersection(command):
        os.execvp(command[0], command)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    if number := re.search(r"[0-9]+", done.stdout):
        try:
            aims = ask(Explain, int(number[0])).aims
        except ElasticError as error:
            aims = (f"whether its deadline and its budget will be kept is not known: {error}",)
        for text in aims:
            print(f"selastic: {text}", file=sys.stderr)
    return done.returncode


def sbatch_command(words: Sequence[str], environment: os._Environ[str] | dict[str, str]) -> list[str]:
    """The argv of sbatch for these words.

    Raises ConfigError or RequestError: no request, a malformed one, one already in a comment, or a starting size
    that the request excludes. A comment without a request is kept, in front of the request.
    """
    options, rest = split(words)
    given = [value for name, value, _ in options if name == "--elastic"]
    in_script = _script_options(rest)
    if len(given) != 1 or not given[0]:
        hint = "; --elastic in the script itself needs the SPANK plugin" if _last(in_script, "--elastic") else ""
        accepted = "one --elastic=gpus=MIN-MAX,batch=MIN-MAX before the script"
        what = "is given more than once" if len(given) > 1 else "is missing"
        raise ConfigError(f"--elastic {what}; accepted: {accepted}{hint}")
    request = elastic_request.parse(given[0])
    described = [(name, value) for name, value, _ in options]
    comment = _last(described, "--comment") or environment.get("SBATCH_COMMENT") or _last(in_script, "--comment") or ""
    already = elastic_request.find(comment)
    if already is not None:
        raise RequestError(
            f"--comment already holds the elastic request '{already}'; give it once, with --elastic or in the comment"
        )
    start = starting_gpus([*in_script, *described])
    if start is not None:
        elastic_request.check_start(request, start)
    kept = [word for name, _, raw in options if name not in ("--elastic", "--comment") for word in raw]
    return ["sbatch", f"--comment={comment + ' ' if comment else ''}{request.text()}", *kept, *rest]


def split(words: Sequence[str]) -> tuple[list[tuple[str, str | None, list[str]]], list[str]]:
    """sbatch's options as (long name, value, the words as given), and what follows them: script and its arguments."""
    options: list[tuple[str, str | None, list[str]]] = []
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] not in ("-", "--"):
        word = words[index]
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        name = _SHORT.get(name, name)
        no_value = name in _FLAGS if name.startswith("--") else name[1:] in _SHORT_FLAGS
        if equals or no_value:
            options.append((name, value if equals and not no_value else None, [word]))
            index += 1
            continue
        options.append((name, words[index + 1] if index + 1 < len(words) else None, list(words[index : index + 2])))
        index += 2
    return options, list(words[index:])


def _script_options(rest: Sequence[str]) -> list[tuple[str, str | None]]:
    """The #SBATCH options of the script; none when there is no readable one: sbatch says so.

    A pipe, as of <(...), can be read once, and that is for sbatch to do.
    """
    script = Path(rest[0]) if rest else None
    try:
        if script is None or not script.is_file():
            return []
        text = script.read_text(errors="replace")
    except OSError:
        return []
    options = []
    for line in _header(text):
        try:
            found, _ = split(shlex.split(line, comments=True))
        except ValueError:
            continue
        options += [(name, value) for name, value, _ in found]
    return options


def _header(text: str) -> Iterator[str]:
    """What follows #SBATCH before the script's first command, where sbatch stops reading."""
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            yield line.removeprefix("#SBATCH")
        elif line.strip() and not line.startswith("#"):
            return


def _last(options: Sequence[tuple[str, str | None]], name: str) -> str | None:
    return next((value for key, value in reversed(options) if key == name), None)


def starting_gpus(options: Sequence[tuple[str, str | None]]) -> int | None:
    """GPUs that these options start the job with; later options win. None when they do not say it plainly."""
    total = _gpus(f"gpu:{_last(options, '--gpus')}")
    if total is not None:
        return total
    per_node = _gpus(f"gpu:{_last(options, '--gpus-per-node')}")
    if per_node is None:
        per_node = _gpus(_last(options, "--gres") or "")
    nodes = _last(options, "--nodes") or ("1" if _last(options, "--ntasks") in (None, "1") else "")
    return per_node * int(nodes) if per_node is not None and nodes.isdecimal() else None


def _gpus(gres: str) -> int | None:
    """N of gpu:N or gpu:TYPE:N; None for anything else, such as a list of types, or a variable in a count's place."""
    if not re.fullmatch(r"[^,()]+:\d{1,9}", gres):
        return None
    return next(iter(gres_gpus(gres).values()), None)
