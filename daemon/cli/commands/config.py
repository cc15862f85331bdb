"""`selastic config show|check [FILE]`: the daemon's settings as it would read them, and whether it would.

Promise: nothing is started; a daemon that runs is asked only what its throughput models start from, and none need run.
Limit: it shows the settings of the daemon that is installed beside it.
"""

import argparse
import json
from pathlib import Path

from slurm_elastic.protocol.answers.by_route import Health
from slurm_elastic.protocol.answers.record import read
from slurm_elastic.protocol.api import routes
from slurm_elastic.protocol.errors import ElasticError
from slurm_elastic.protocol.text.times import format_time

DEFAULT_FILE = Path("/etc/slurm-elastic/selasticd.toml")
ASK_S = 2.0
"""How long a running daemon is waited for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="config_command", required=True, metavar="show|check")
    show = commands.add_parser("show", help="print every setting with its value, defaults filled in")
    show.add_argument("--json", action="store_true", help="as JSON")
    check = commands.add_parser("check", help="say whether selasticd would start with this file")
    for command in (show, check):
        command.add_argument(
            "file", nargs="?", type=Path, default=DEFAULT_FILE, metavar="FILE", help="settings (default: %(default)s)"
        )


def run(args: argparse.Namespace) -> int:
    """Show or check. A setting that is not accepted ends with exit status 2 and one sentence."""
    from ...selasticd import settings

    # As the daemon does: without a file of its own it starts with the defaults.
    missing = args.file == DEFAULT_FILE and not DEFAULT_FILE.exists()
    loaded = settings.load(None if missing else args.file)
    if args.config_command == "check":
        with_it = "not there; selasticd would start with its defaults" if missing else "selasticd would start with it"
        print(f"{args.file}: {with_it}")
    elif args.json:
        tables = settings.by_table(loaded)
        print(json.dumps(tables.pop("") | tables, indent=2))
    else:
        for table, values in settings.by_table(loaded).items():
            if table:
                print(f"\n[{table}]")
            for key, value in values.items():
                # JSON's form is TOML's for text, numbers, booleans and flat lists.
                print(f"{key} = {json.dumps(value, ensure_ascii=False)}")
        print()
        for line in in_use():
            print(line)
    return 0


def in_use() -> list[str]:
    """As comments: the mode of the daemon that answers here, whose settings may be others (a user's own), and what
    it starts its throughput models from; nothing when none answers."""
    from slurm_elastic.protocol.api.client import Client

    client = Client(timeout=ASK_S)
    try:
        health = read(Health, client.call(routes.HEALTH))
    except ElasticError:
        return []
    models, runs = health.models, f"# selasticd at {client.url} runs in mode {health.mode}."
    if models is None:
        return [runs]
    when = f", learned {format_time(models.learned_at, 0.0)}" if models.learned_at else ""
    own = f"; programs with one of their own: {models.programs}" if models.programs else ""
    return [runs, f"# It models what was not measured from {models.prior}{when}{own}."]
