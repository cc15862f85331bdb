"""`selastic sandbox up|down|status`: a private real Slurm to try everything on. Needs root and no daemon of ours."""

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from slurm_elastic.protocol.errors import SandboxError

from ...sandbox import registry
from ...sandbox.config import SandboxSpec
from ...sandbox.lifecycle import Sandbox, Status

DEFAULT_NAME = "default"
SHAPE = {
    "nodes": "compute nodes",
    "gpus_per_node": "pretended GPUs of each node",
    "gpu_type": "their type",
    "cpus_per_node": "processors each node says it has",
}
"""Fields of SandboxSpec that are options."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="sandbox_command", required=True, metavar="up|down|status")
    defaults = SandboxSpec()
    up = commands.add_parser("up", help="start a private Slurm and wait until it is ready")
    for name, words in SHAPE.items():
        default = getattr(defaults, name)
        option, shown = f"--{name.replace('_', '-')}", f"{words} (default: %(default)s)"
        up.add_argument(option, type=type(default), default=default, help=shown)
    up.add_argument("--dir", type=Path, help="a new or empty directory (default: /tmp/selastic-sandbox-NAME)")
    up.add_argument("--no-accounting", action="store_true", help="without slurmdbd and MariaDB: no sacct")
    down = commands.add_parser("down", help="end a private Slurm and remove all of it")
    down.add_argument("--all", action="store_true", help="every sandbox on this host")
    status = commands.add_parser("status", help="say which sandboxes there are and what runs of them")
    status.add_argument("--json", action="store_true", help="as JSON")
    for command in (up, down):
        command.add_argument("--name", default=DEFAULT_NAME, help="to have several (default: %(default)s)")
    status.add_argument("--name", help="only this one (default: all)")


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed. Exit status: 0 done, 1 refused or not found (one sentence on stderr)."""
    commands = {"up": _up, "down": _down, "status": _status}
    try:
        return commands[args.sandbox_command](args)
    except SandboxError as error:
        print(f"selastic sandbox: {error}", file=sys.stderr)
        return 1


def _up(args: argparse.Namespace) -> int:
    shape = {name: getattr(args, name) for name in SHAPE}
    spec = SandboxSpec(with_accounting=not args.no_accounting, **shape)
    began = time.monotonic()
    sandbox = Sandbox.up(spec, name=args.name, directory=args.dir)
    gpus = f", {spec.gpus_per_node} {spec.gpu_type} GPUs each" if spec.gpus_per_node else ""
    flag = "" if args.name == DEFAULT_NAME else f" --name {args.name}"
    print(f"Slurm is up after {time.monotonic() - began:.1f} s: {spec.nodes} nodes{gpus}, in {sandbox.dir}.")
    print("Use it:   ", *(f"export {name}={value}" for name, value in sandbox.env.items()))
    print(f"Look:      sinfo; selastic sandbox status{flag}")
    print(f"End it:    selastic sandbox down{flag}")
    return 0


def _down(args: argparse.Namespace) -> int:
    names = [entry.name for entry in registry.entries()] if args.all else [args.name]
    for name in names:
        Sandbox.attach(name).down()
        print(f"The sandbox {name!r} is gone.")
    return 0


def _status(args: argparse.Namespace) -> int:
    names = [args.name] if args.name else [entry.name for entry in registry.entries()]
    found = []
    for name in names:
        sandbox = Sandbox.attach(name)
        status = sandbox.status()
        found.append(
            {"name": name, "dir": str(sandbox.dir), "env": sandbox.env, "ready": status.ready, **asdict(status)}
        )
        if not args.json:
            _print_status(sandbox, status)
    if args.json:
        print(json.dumps(found, indent=2))
    elif not found:
        print("No sandbox is up: 'selastic sandbox up' starts one.")
    return 0 if all(one["ready"] for one in found) else 1


def _print_status(sandbox: Sandbox, status: Status) -> None:
    dead = [name for name, pid in status.daemons.items() if not pid]
    counts = ", ".join(f"{n} {state}" for state, n in sorted(Counter(status.nodes.values()).items())) or "no answer"
    print(f"{sandbox.entry.name}: {'ready' if status.ready else 'not ready'}; nodes: {counts}; {sandbox.dir}")
    if dead:
        print(f"  not running: {', '.join(dead)}; their logs are in {sandbox.dir}/log")
