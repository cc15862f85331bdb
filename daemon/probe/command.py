"""`selastic probe`: try a site's Slurm for real, as an ordinary user, with a few jobs of a minute: what works, what is
refused and in whose words, and the settings that follow.

Promise: no more jobs and minutes than --jobs and --minutes say; all are cancelled in the end, after Ctrl-C too. An
admin's findings are remembered by selasticd for the site, a user's for the jobs of that user.
Limit: one partition at a time, and nodes that are free now.
"""

import argparse
import contextlib
import pwd
import re
import signal
import sys
from collections.abc import Callable, Collection
from functools import partial

from slurm_elastic.client import options
from slurm_elastic.protocol.answers.record import columns
from slurm_elastic.protocol.answers.site import Finding, Findings, Remembered
from slurm_elastic.protocol.errors import ConfigError, DaemonUnreachable, ElasticError
from slurm_elastic.protocol.messages import REFUSED, WORKS, Probed, Tried
from slurm_elastic.protocol.request import DEFAULT_VIA

from ..actions.refusals import EPILOG, SHRINK, companion_by, granted_s, no_companions, seconds
from ..reports.site import findings
from ..selasticd.settings import Settings

DEFAULT = "Name,Outcome,Seconds,Said"
FIELDS = columns(Finding, capitals=True)
DAY_S = 86400.0
OLD_S = 90 * DAY_S
"""Findings count whatever their age; one that is older is said to be old."""


def _gres(text: str) -> str:
    if not re.fullmatch(r"gpu(:[A-Za-z0-9_.-]+)?:[1-9][0-9]{0,3}", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not accepted; accepted: gpu:N or gpu:TYPE:N")
    return text


def _up_to(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if text not in map(str, range(1, most + 1)):
            raise argparse.ArgumentTypeError(f"'{text}' is not accepted; accepted: 1 to {most}")
        return int(text)

    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-r", "--partition", metavar="PART", help="where (default: Slurm's default partition)")
    parser.add_argument(
        "--gres", type=_gres, default="gpu:1", metavar="GRES", help="of each node of a job (default: gpu:1)"
    )
    parser.add_argument("--jobs", type=_up_to(20), default=8, metavar="N", help="at most so many jobs (default: 8)")
    parser.add_argument("--minutes", type=_up_to(60), default=5, metavar="N", help="for at most so long (default: 5)")
    parser.add_argument("--show", action="store_true", help="print what is remembered, and try nothing")
    parser.add_argument("--forget", action="store_true", help="forget what was found in the partition, and try nothing")
    parser.add_argument(
        "options", nargs="*", metavar="OPTION", help="further options of sbatch and salloc, after --: -- --account=ml"
    )
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Try everything and print the table; 1 where no job could be had."""
    chosen = options.check_format(args, FIELDS, DEFAULT)
    if args.show:
        known = options.ask(Findings)
        wide = options.check_format(args, FIELDS, f"Partition,User,Time,{DEFAULT}")
        options.print_answer(known, wide, known.findings, args, below=_old(known))
        return 0
    from ..slurm import CommandClient
    from .checks import CHECKS, Bench, tried
    from .trial import Trial

    client = CommandClient()
    partition = args.partition or client.default_partition()
    if not partition:
        raise ConfigError("Slurm has no default partition; name one with --partition")
    if args.forget:
        whose = options.ask(Remembered, message=Probed(partition)).user
        print(f"What was found for {_jobs(whose)} of partition {partition} is forgotten")
        return 0
    found: list[Tried] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Scripts ignore SIGINT for what they start behind them, and nohup SIGHUP: that alone is meant.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    with Trial(partition, args.gres, args.options, args.jobs, args.minutes) as trial:
        say = partial(print, file=sys.stderr, flush=True)
        say(f"jobs of user {trial.user} in partition {partition}, named {trial.name}; Ctrl-C cancels them all")
        for what, one in tried(Bench(trial, client, _daemons_user())):
            found.append(one)
            say(f"{len(found)}/{len(CHECKS)} {what}: {one.outcome}")
    rows = findings(partition, "", options.clock(), found)
    lines = settings_to_write(found)
    below = ["", "settings to write:" if lines else "settings to write: none", *(f"  {line}" for line in lines)]
    told = _told(Probed(partition, tuple(found)))
    options.print_answer(Findings(findings=rows, settings=tuple(lines)), chosen, rows, args, below=[*below, told])
    return 0 if found[0].outcome == WORKS else 1


def _daemons_user() -> str:
    """Whom selasticd runs as; empty: that is not known here."""
    from slurm_elastic.protocol.api.client import Client

    with contextlib.suppress(ElasticError, KeyError):
        uid = Client().uid
        return "" if uid is None else pwd.getpwuid(uid).pw_name
    return ""


def _told(probed: Probed) -> str:
    """Tell selasticd; what came of it."""
    try:
        whose = options.ask(Remembered, message=probed).user
    except DaemonUnreachable:
        return "selasticd does not answer, and remembers nothing of this"
    except ElasticError as error:
        return f"selasticd remembers nothing of this: {error}"
    return (
        f"selasticd goes by this for {_jobs(whose)} of the partition, once it looks at the site again (site_interval_s)"
    )


def _jobs(whose: str) -> str:
    return f"the jobs of {whose}" if whose else "all jobs"


def _old(known: Findings) -> list[str]:
    """What was found so long ago that the site may do otherwise by now."""
    old = [one for one in known.findings if options.clock() - one.at > OLD_S]
    names = ", ".join(dict.fromkeys(f"{one.name} in {one.partition}" for one in old))
    return [f"older than {OLD_S / DAY_S:.0f} days: {names}; probe again, or --forget"] if old else []


CLEANS_S = 5.0
"""An epilog that takes longer cleans more than processes."""


def settings_to_write(tried: Collection[Tried]) -> list[str]:
    """Lines for selasticd.toml, and for elastic requests; each says why. Empty: the defaults fit."""
    found, defaults = {one.name: one for one in tried}, Settings()
    granted, epilog = granted_s(found), seconds(found, EPILOG)
    no = {one.name for one in tried if one.outcome == REFUSED} | ({"companion"} if no_companions(found) else set())
    cleans = (
        "single nodes cannot be given back" if SHRINK in no else f"if the epilog ({epilog:.0f} s) cleans GPUs or disks"
    )
    via = "+".join(name for name in DEFAULT_VIA if name not in no) or "requeue"
    lines = {
        'companion_by = "sbatch"  # salloc is refused': companion_by(found),
        f"companion_wait_s = {2 * granted:.0f}  # a companion was granted after {granted:.0f} s": (
            2 * granted > defaults.companion_wait_s
        ),
        f'release_by = "job"  # {cleans}': SHRINK in no or epilog > CLEANS_S,
        f"release_s = {2 * epilog:.0f}  # nodes are free {epilog:.0f} s after a job": 2 * epilog > defaults.release_s,
        "# selasticd's user has to be a coordinator or an operator: docs/how-to/install.md": "rights" in no,
        f"# in elastic requests: via={via}": no & set(DEFAULT_VIA),
        "# two jobs on one node get the same GPUs: gres.conf is to be mended, or jobs get whole nodes": "gpus" in no,
        "# nodes do not reach each other: docs/how-to/sites.md#several-networks-names-that-mean-nothing": "network"
        in no,
    }
    found_lines = [line for line, holds in lines.items() if holds]
    return ["[resizes]"] * (not all(line.startswith("#") for line in found_lines)) + found_lines
