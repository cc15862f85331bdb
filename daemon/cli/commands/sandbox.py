"""`selastic sandbox up|down|status`: a private real Slurm to try everything on. Needs root and no daemon of ours."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from slurm_elastic.protocol.errors import SandboxError

from ...sandbox import registry
from ...sandbox.config import SandboxSpec, host_names
from ...sandbox.hosts import links, names
from ...sandbox.hosts.links import Link, Links
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
    """Declare the sub-commands and their options on the parser of `selastic sandbox`."""
    commands = parser.add_subparsers(dest="sandbox_command", required=True, metavar="up|down|status|exec|network")
    defaults = SandboxSpec()
    up = commands.add_parser("up", help="start a private Slurm and wait until it is ready")
    for name, words in SHAPE.items():
        default = getattr(defaults, name)
        option, shown = f"--{name.replace('_', '-')}", f"{words} (default: %(default)s)"
        up.add_argument(option, type=type(default), default=default, help=shown)
    up.add_argument("--hosts", type=int, metavar="N", help="N nodes, each on a host of its own; slurmctld on another")
    told = "; ".join(f"{kind}: {what}" for kind, what in names.KINDS.items())
    up.add_argument("--names", choices=names.KINDS, default="full", help=f"what hosts are called by hosts. {told}")
    up.add_argument("--dir", type=Path, help="a new or empty directory (default: /tmp/selastic-sandbox-NAME)")
    up.add_argument("--no-accounting", action="store_true", help="without slurmdbd and MariaDB: no sacct")
    down = commands.add_parser("down", help="end a private Slurm and remove all of it")
    down.add_argument("--all", action="store_true", help="every sandbox on this host")
    status = commands.add_parser("status", help="say which sandboxes there are and what runs of them")
    status.add_argument("--json", action="store_true", help="as JSON")
    execute = commands.add_parser("exec", help="run a command on a host of a private Slurm that has hosts of its own")
    execute.add_argument("--on", default=names.HEAD, metavar="HOST", help="head, n1, n2, ... (default: %(default)s)")
    execute.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command")
    network = commands.add_parser("network", help="delay or lose packets between hosts, or show what happens to them")
    network.add_argument("--from", dest="sender", metavar="HOST", help="only of packets from this host")
    network.add_argument("--to", dest="receiver", metavar="HOST", help="only of packets to this host")
    network.add_argument("--apart", metavar="HOST", help="cut this host off from all others")
    network.add_argument("--reset", action="store_true", help="first forget all that was set before")
    for command in (up, network):
        command.add_argument("--delay", metavar="TIME", help="how long packets take one way, as in 20ms")
        command.add_argument("--loss", metavar="SHARE", help="how many of them get lost, as in 1%%")
    for command in (up, down, execute, network):
        command.add_argument("--name", default=DEFAULT_NAME, help="to have several (default: %(default)s)")
    status.add_argument("--name", help="only this one (default: all)")


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed. Exit status: 0 done, 1 refused or not found (one sentence on stderr)."""
    commands = {"up": _up, "down": _down, "status": _status, "exec": _exec, "network": _network}
    try:
        return commands[args.sandbox_command](args)
    except SandboxError as error:
        print(f"selastic sandbox: {error}", file=sys.stderr)
        return 1


def _up(args: argparse.Namespace) -> int:
    shape = {name: getattr(args, name) for name in SHAPE}
    if args.hosts is not None:
        shape |= {"nodes": args.hosts, "hosts": args.names}
    delay_s, loss = _packets(args)
    spec = SandboxSpec(with_accounting=not args.no_accounting, **shape)
    began = time.monotonic()
    sandbox = Sandbox.up(spec, name=args.name, directory=args.dir, owned=False)
    if spec.hosts:
        sandbox.links = Links(Link(delay_s or 0.0, loss or 0.0))
    gpus = f", {spec.gpus_per_node} {spec.gpu_type} GPUs each" if spec.gpus_per_node else ""
    flag = "" if args.name == DEFAULT_NAME else f" --name {args.name}"
    print(f"Slurm is up after {time.monotonic() - began:.1f} s: {spec.nodes} nodes{gpus}, in {sandbox.dir}.")
    if spec.hosts:
        print(f"Use it:    selastic sandbox exec{flag} srun -N{spec.nodes} hostname")
        print(f"Shared:    {sandbox.home} is home, the same on every host; /tmp, /run and /dev/shm are each host's own")
    else:
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


def _packets(args: argparse.Namespace) -> tuple[float | None, float | None]:
    return links.seconds(args.delay) if args.delay else None, links.share(args.loss) if args.loss else None


def _exec(args: argparse.Namespace) -> int:
    sandbox = Sandbox.attach(args.name)
    command = sandbox.daemons.on_host(args.on, (args.words[1:] if args.words[:1] == ["--"] else args.words) or ["bash"])
    os.execvpe(command[0], command, {**os.environ, **sandbox.env})


def _network(args: argparse.Namespace) -> int:
    sandbox = Sandbox.attach(args.name)
    hosts = host_names(sandbox.spec)
    for host in filter(None, (args.sender, args.receiver, args.apart)):
        if host not in hosts:
            raise SandboxError(f"No host {host} of the sandbox; it has: {', '.join(hosts) or 'none of its own'}.")
    if not hosts:
        raise SandboxError(f"The sandbox {args.name!r} has no hosts of its own: 'selastic sandbox up --hosts 3' has.")
    now = Links() if args.reset else sandbox.links
    delay_s, loss = _packets(args)
    if delay_s is not None or loss is not None:
        now = now.changed(hosts, args.sender, args.receiver, delay_s, loss)
    if args.apart:
        now = now.apart(args.apart, hosts)
    if now != sandbox.links:
        sandbox.links = now
    for name, link in {"others": now.others, **now.named}.items():
        print(f"{name}: {link.delay_s * 1000:g} ms, {link.loss:.2%} lost")
    return 0


def _print_status(sandbox: Sandbox, status: Status) -> None:
    dead = [name for name, pid in status.daemons.items() if not pid]
    counts = ", ".join(f"{n} {state}" for state, n in sorted(Counter(status.nodes.values()).items())) or "no answer"
    print(f"{sandbox.entry.name}: {'ready' if status.ready else 'not ready'}; nodes: {counts}; {sandbox.dir}")
    if dead:
        print(f"  not running: {', '.join(dead)}; their logs are in {sandbox.dir}/log")
