"""The one parser of `selastic`: help, man page and completion are all made from it.

Promise: a command's module is imported only when that command is parsed, so that `--help` stays fast and needs nothing
but the standard library. Limit: options are declared in the commands' own modules; here is the list of commands.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class Command:
    """One sub-command: `module` has `add_arguments(parser)` and `run(args) -> exit status`, or so named."""

    name: str
    module: str
    help: str
    arguments: str = "add_arguments"
    function: str = "run"
    verbatim: bool = False
    """Its words are another program's and reach `function` unparsed, as args.words."""


_HERE = "slurm_elastic.client.commands."
COMMANDS = (
    Command("status", _HERE + "status", "what every job has now, its target and why (like squeue)"),
    Command("acct", _HERE + "acct", "a row for each size a job has had, with its cost (like sacct)"),
    Command("explain", "slurm_elastic.client.explanation.command", "why a job has what it has, and what you can do"),
    Command("predict", _HERE + "predict", "how fast a job would be at other sizes, beside what was measured"),
    Command("advise", _HERE + "advise", "what to submit a program with: by a deadline, within a budget, or for value"),
    Command("events", _HERE + "events", "the timeline of everything done to a job"),
    Command("plan", _HERE + "plan", "the last plan for all jobs, or one computed now"),
    Command("review", _HERE + "review", "what would have been done while the daemon did not act, and its gain"),
    Command(
        "report",
        "slurm_elastic.client.report.command",
        "what jobs did with their GPU-hours, and what it brought",
    ),
    Command("top", _HERE + "status", "the status table, again and again", "add_top_arguments"),
    Command("pin", _HERE + "pin", "hold a job at a size"),
    Command("unpin", _HERE + "pin", "let a pinned job be resized again", "add_unpin_arguments", "run_unpin"),
    Command("hosts", _HERE + "hosts", "pairs of hosts that do not reach each other; clear them"),
    Command("queue", _HERE + "queue", "when waiting jobs will start, and why in this order"),
    Command("power", _HERE + "power", "which idle nodes sleep, and what that has brought"),
    Command("run", "slurm_elastic.trainer_shim.supervisor.cli", "run a training script on everything the job holds"),
    Command("hold", "slurm_elastic.trainer_shim.hold.cli", "run a command whose nodes come and go with the job"),
    Command("tell", "slurm_elastic.trainer_shim.hold.tell", "within `selastic hold`: say how fast a program is"),
    Command("rehearse", "slurm_elastic.trainer_shim.rehearse.cli", "prove that a script trains the same while resized"),
    Command("convert", "slurm_elastic.client.conversion.command", "propose the diff that makes a script elastic"),
    Command("sbatch", _HERE + "sbatch", "submit an elastic job: checks --elastic, then calls sbatch", verbatim=True),
)
"""Those of a user's environment."""
ADDED = "slurm_elastic.daemon.cli.commands"
"""What adds those of the daemon, where it is installed. No entry point: to look for those takes longer than all else,
and a tree that is not installed has none."""
EPILOG = """exit status: 0 done, 1 not found or refused, 2 wrong usage, 3 selasticd or munged does not answer

environment: SELASTIC_URL (where selasticd listens), SELASTIC_CLIENT_CONF (the file that says so, instead of
/etc/slurm-elastic/client.json or ~/.slurm-elastic/client.json), SLURM_TIME_FORMAT (standard, relative or a strftime
format), NO_COLOR"""


class Parser(argparse.ArgumentParser):
    """argparse with short refusals: one sentence, and where the help is, in place of the whole usage."""

    def error(self, message: str) -> NoReturn:
        """One line, one hint; exit status 2."""
        self.exit(2, f"{self.prog}: {message}\n{self.prog} --help lists what is accepted\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """A sub-command that does not exist: the nearest, and those that are listed in the help."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            from difflib import get_close_matches

            listed = [choice.dest for choice in action._choices_actions]
            near = get_close_matches(str(value), listed, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            if value in OF_THE_DAEMON:
                hint = " (it comes with slurm-elastic-daemon)"
            self.error(f"there is no command '{value}'{hint}; accepted: {', '.join(listed)}")
        super()._check_value(action, value)


class _Format(argparse.HelpFormatter):
    """argparse's, but YYYY-MM-DD stays in one piece."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        import textwrap

        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)


class _Version(argparse.Action):
    """--version, looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *unused: Any) -> None:
        from slurm_elastic.protocol.version import version

        print(f"selastic {version()}")
        parser.exit(0)


OF_THE_DAEMON = ("probe", "simulate", "sandbox", "config")
"""Their names, for whom they are missing."""


def commands() -> tuple[Command, ...]:
    """All that are installed."""
    try:
        added: tuple[Command, ...] = import_module(ADDED).COMMANDS
    except ModuleNotFoundError as error:
        if not ADDED.startswith(error.name or "?"):
            raise
        added = ()
    return COMMANDS + added


def build(argv: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser. With `argv`, only the command named there gets its options; without, every one does."""
    parser = Parser(
        prog="selastic",
        description="Elastic deep-learning jobs on Slurm: see, explain and steer what they have.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", nargs=0, action=_Version, help="print the version and end")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    wanted = None if argv is None else next((word for word in argv if not word.startswith("-")), "")
    own = any(command.name == wanted for command in COMMANDS)
    for command in COMMANDS if own else commands():
        module = import_module(command.module) if wanted is None or wanted == command.name else None
        _add(subparsers.add_parser, command, module)
    return parser


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The parsed command; `function` in it is to be called with it. Raises SystemExit for --help and wrong usage."""
    command = next((command for command in COMMANDS if command.verbatim and words[:1] == [command.name]), None)
    if command is not None and words[1:2] not in ([], ["-h"], ["--help"]):
        # argparse would look for its own options among the first words, even under nargs=REMAINDER.
        function = getattr(import_module(command.module), command.function)
        return argparse.Namespace(command=command.name, words=list(words[1:]), function=function)
    parser = build(words)
    if not words:
        parser.print_help(sys.stderr)
        parser.exit(2)
    args, extra = parser.parse_known_args(words)
    if extra:
        parser.prog += f" {args.command}"  # whose --help it is that lists what is accepted
        parser.error(f"unrecognized arguments: {' '.join(extra)}{_meant(words, extra)}")
    return args


def _meant(words: Sequence[str], extra: Sequence[str]) -> str:
    """What somebody who knows squeue has probably meant; empty for no idea."""
    first = extra[0].partition("=")[0]
    if first.isdigit():
        return f" (did you mean -j {first}?)"
    if not first.startswith("-") and words[words.index(extra[0]) - 1] == "-p":
        return f" (-p is --parsable, as in sacct; did you mean -r {first}?)"
    return ""


def _add(add_parser: Callable[..., argparse.ArgumentParser], command: Command, module: Any) -> None:
    # '%' starts a substitution in argparse's texts.
    text = _description(command, module).replace("%", "%%")
    child = add_parser(command.name, help=command.help, description=text, formatter_class=_Format)
    if module is not None:
        getattr(module, command.arguments)(child)
        child.set_defaults(function=getattr(module, command.function))


def _description(command: Command, module: Any) -> str:
    """The first paragraph of the module, without the `selastic ...`: that opens it; else the command's one line."""
    own = module.__doc__ if module and command.function == "run" else None
    opening = (own or command.help).strip().split("\n\n")[0]
    text = re.sub(r"^`selastic[^:]*`: ", "", opening)
    return text[:1].upper() + text[1:].replace("`", "'")
