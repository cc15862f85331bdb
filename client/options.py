"""What every `selastic` command shares: output options, job filters, the way to the daemon.

Promise: sacct's letters mean what they mean in sacct. Limit: filters work on the rows that the daemon gave; the daemon
decides who sees what.
"""

import argparse
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from slurm_elastic.protocol.answers.by_route import ROUTE_OF
from slurm_elastic.protocol.answers.history import PlanRow
from slurm_elastic.protocol.answers.record import JobRecord, not_known, read
from slurm_elastic.protocol.answers.status import SHORT_STATES, JobStatus
from slurm_elastic.protocol.errors import ConfigError, DaemonUnreachable, NotFound
from slurm_elastic.protocol.text import tables
from slurm_elastic.protocol.text.times import ACCEPTED, check_window, format_time, parse_time

J = TypeVar("J", bound=JobRecord)
R = TypeVar("R")
Parser = argparse._ActionsContainer

STATES = {short: name for name, short in SHORT_STATES.items()}
# Control characters above ASCII's first 32, which JSON escapes itself, and what turns the direction of writing.
_UNPRINTED = re.compile("[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


class _HelpFormat(argparse.Action):
    """--helpformat: print the fields and end, with no daemon and no configuration."""

    def __call__(self, parser: argparse.ArgumentParser, *unused: Any) -> None:
        print("\n".join(tables.helpformat(self.const)))
        parser.exit(0)


def job_id(text: str) -> int | str:
    """One job id, for argparse; that of the whole for a component of a heterogeneous job, such as 1207+1. A task of an
    array, such as 1207_3, stays a text."""
    word = re.sub(r"\+[0-9]+$", "", text.strip())
    if re.fullmatch(r"[0-9]{1,10}_[0-9]{1,10}", word, re.ASCII):
        return "_".join(str(int(number)) for number in word.split("_"))
    if not re.fullmatch(r"[0-9]{1,10}", word, re.ASCII) or not 0 < int(word) < 1 << 32:
        raise argparse.ArgumentTypeError(f"'{text}' is not a job id; accepted: a number such as 1207, or 1207_3")
    return int(word)


def job_ids(text: str) -> list[int | str]:
    """A comma-separated list of job ids, for argparse."""
    return [job_id(word) for word in text.split(",")]


def find_tasks(args: argparse.Namespace) -> None:
    """Where -j names tasks of arrays, put their jobs' own numbers. Raises NotFound."""
    jobs = getattr(args, "jobs", None)
    if isinstance(jobs, list):
        args.jobs = [ask(JobStatus, job).job_id if isinstance(job, str) else job for job in jobs]


def interval(text: str) -> float:
    """Seconds between two refreshes, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.2 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"'{text}' is not accepted; accepted: 0.2 to 3600 seconds")
    return value


CLEAR = "\x1b[H\x1b[2J"


def again(seconds: float, show: Callable[[], None]) -> int:
    """Show it under the time, again and again (a terminal is cleared), until Ctrl-C, which is a clean end; a daemon
    that does not answer is asked again."""
    try:
        while True:
            print((CLEAR if sys.stdout.isatty() else "") + format_time(clock(), clock()))
            try:
                show()
            except DaemonUnreachable as error:
                print(error)
            print(flush=True)
            time.sleep(seconds)
    except KeyboardInterrupt:
        return 0


def words(text: str) -> list[str]:
    """A comma-separated list, for argparse."""
    return [word.strip() for word in text.split(",") if word.strip()]


def states(text: str) -> list[str]:
    """A comma-separated list of Slurm's states, long or short, for argparse."""
    chosen = [STATES.get(word.upper(), word.upper()) for word in words(text)]
    unknown = [state for state in chosen if state not in SHORT_STATES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown state '{unknown[0]}'; accepted: {', '.join(STATES.values())}")
    return chosen


def add_output_options(parser: argparse.ArgumentParser, fields: Sequence[tables.Field], default: str) -> None:
    """sacct's output options over these fields."""
    group = parser.add_argument_group("output")
    listed = default.replace("%", "%%").replace(",", ", ")  # with blanks, so that lines are not broken inside a name
    form = group.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the rows as JSON, every field in it")
    form.add_argument("-p", "--parsable", action="store_true", help="separate columns with '|', one at the end too")
    form.add_argument("-P", "--parsable2", action="store_true", help="separate columns with '|', none at the end")
    group.add_argument("-n", "--noheader", action="store_true", help="no line of column names")
    group.add_argument(
        "-o",
        "--format",
        metavar="FIELD[%WIDTH],...",
        help=f"columns to print, a negative width aligns to the left (default: {listed}; on a terminal that is too "
        "narrow some are left out)",
    )
    group.add_argument(
        "--helpformat", nargs=0, action=_HelpFormat, const=tuple(fields), help="list the fields for --format"
    )


def add_window_options(parser: Parser, start: str, end: str = "until when (default: now)") -> None:
    """sacct's -S and -E. `start`, `end`: their help."""
    parser.add_argument("-S", "--starttime", metavar="TIME", help=f"{start}; {ACCEPTED}")
    parser.add_argument("-E", "--endtime", metavar="TIME", help=end)


def window(args: argparse.Namespace, now: float, otherwise: str) -> tuple[float, float | None]:
    """Start and end as -S and -E say; without -S from `otherwise` on, of jobs named with -j from the beginning."""
    start = parse_time(args.starttime or otherwise, now) if args.starttime or not args.jobs else 0.0
    end = parse_time(args.endtime, now) if args.endtime else None
    if args.starttime:
        check_window(start, end, now)
    return start, end


def add_job_filters(parser: argparse.ArgumentParser) -> None:
    """Which jobs: sacct's -j -u -s -A -r -a."""
    group = parser.add_argument_group("which jobs (default: your own; root: everybody's)")
    group.add_argument("-j", "--jobs", type=job_ids, metavar="ID,...", help="these jobs only, whoever owns them")
    group.add_argument("-u", "--user", type=words, metavar="USER,...", help="jobs of these users (names or uids)")
    group.add_argument("-a", "--allusers", action="store_true", help="jobs of all users")
    group.add_argument("--me", action="store_true", help="your own jobs only, also as root")
    of_states = ("-s", "-t", "--state", "--states")  # sacct's letter, and squeue's
    group.add_argument(*of_states, type=states, metavar="STATE,...", help="jobs in these states, R or RUNNING")
    group.add_argument("-A", "--accounts", type=words, metavar="ACCOUNT,...", help="jobs of these accounts")
    group.add_argument("-r", "--partition", type=words, metavar="PART,...", help="jobs in these partitions")


def matching(rows: Iterable[J], args: argparse.Namespace) -> list[J]:
    """The rows that the filters of `add_job_filters` keep, in their order."""
    everybody = not args.me and (args.allusers or args.user or args.jobs or os.geteuid() == 0)
    return [row for row in rows if (everybody or row.own) and _matches(row, args)]


def _matches(row: JobRecord, args: argparse.Namespace) -> bool:
    if args.jobs and row.job_id not in args.jobs:
        return False
    if args.user and row.user not in args.user and str(row.uid) not in args.user:
        return False
    if args.state and row.state.split(" ")[0] not in args.state:
        return False
    if args.accounts and row.account not in args.accounts:
        return False
    return not (args.partition and row.partition not in args.partition)


def named(args: argparse.Namespace, rows: Iterable[JobRecord | PlanRow]) -> tuple[list[JobStatus], list[int]]:
    """Of the jobs that -j names and that have no row in the daemon's answer: the status rows of those that it knows all
    the same, and the ids of those that it does not. Raises NotFound when it knows none of the jobs named."""
    known, unknown = [], []
    for job in sorted(set(args.jobs or ()) - {row.job_id for row in rows}):
        try:
            known.append(ask(JobStatus, job))
        except NotFound:
            unknown.append(job)
    if unknown and len(unknown) == len(set(args.jobs)):
        refuse(unknown)
    return known, unknown


def refuse(unknown: Sequence[int]) -> None:
    """Raise NotFound for these ids; none: nothing is wrong."""
    if unknown:
        raise NotFound(not_known(unknown))


def check_format(args: argparse.Namespace, fields: Sequence[tables.Field], default: str) -> list[tables.Field]:
    """The chosen columns; called before the daemon is asked, so that a wrong word is a usage error in any case."""
    if args.json and args.format is not None:
        raise ConfigError("--format does not go with --json; accepted: one of them (--json prints every field)")
    return tables.choose(fields, default, args.format)


def terminal_width() -> int:
    """Columns of the terminal that is printed on; 0: it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def print_answer(
    answer: object,
    columns: Sequence[tables.Field],
    rows: Sequence[object],
    args: argparse.Namespace,
    *,
    rule: bool = False,
    spare: Sequence[str] = (),
    below: Sequence[str] = (),
) -> None:
    """The answer as JSON, or its rows in the form that the output options ask for. A terminal's width is kept to where
    they name no columns, by leaving out those in `spare` first. `below`: sentences for people, under a table with a
    header."""
    if args.json:
        print_json(answer)
        return
    style = "parsable" if args.parsable else "parsable2" if args.parsable2 else "table"
    terminal = 0 if args.format is not None else terminal_width()
    shown = tables.lines(
        columns, rows, header=not args.noheader, style=style, rule=rule, terminal=terminal, spare=spare
    )
    shown += [tables.clean(line) for line in below] if style == "table" and not args.noheader else []
    print("".join(f"{line}\n" for line in shown), end="")


def print_json(answer: Any) -> None:
    """A record as indented JSON, with letters as they are where the locale can show them; what a terminal might obey is
    escaped."""
    plain = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    text = json.dumps(asdict(answer), indent=2, ensure_ascii=not plain)
    print(_UNPRINTED.sub(lambda found: json.dumps(found[0])[1:-1], text))


LONG_S = 120.0
"""How long to wait for what may tell of a month of jobs."""


def ask(
    kind: type[R],
    job_id: int | str | None = None,
    query: object = None,
    message: object = None,
    timeout: float | None = None,
) -> R:
    """This kind of answer of the daemon. `timeout`: seconds (None: the client's usual ones). Raises the client's
    errors."""
    from slurm_elastic.protocol.api.client import Client

    return read(kind, Client().call(ROUTE_OF[kind], job_id, query, message, timeout=timeout) or {})


def clock() -> float:
    """Now, in unix seconds."""
    return time.time()


def bold(text: str) -> str:
    """Bold on a terminal, unless NO_COLOR is set to anything."""
    plain = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[1m{text}\x1b[0m"
