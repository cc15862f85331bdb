"""`python -m sandbox_of_hosts up|exec|network|down`: such a sandbox to try things on, by hand."""

from __future__ import annotations

import argparse
import os
import sys

from slurm_elastic.protocol.errors import SandboxError

from . import links, names
from .links import Link, Links
from .sandbox import HostsSandbox, HostsSpec, check, host_names


def parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sandbox_of_hosts", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="up|exec|network|down")
    up = commands.add_parser("up", help="start it: nodes, each on a host of its own, and slurmctld on another")
    up.add_argument("--hosts", type=int, default=3, metavar="N", help="nodes (default: %(default)s)")
    told = "; ".join(f"{kind}: {what}" for kind, what in names.KINDS.items())
    up.add_argument("--names", choices=names.KINDS, default="full", help=f"what hosts are called by hosts. {told}")
    up.add_argument("--no-accounting", action="store_true", help="without slurmdbd and MariaDB: no sacct")
    execute = commands.add_parser("exec", help="run a command on one of its hosts")
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
    for command in (up, execute, network, commands.add_parser("down", help="end it")):
        command.add_argument("--name", default="hosts", help="to have several (default: %(default)s)")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Exit status: 0 done, 1 refused (one sentence on stderr)."""
    args = parsed(words)
    try:
        if args.command == "up":
            return start(args)
        sandbox = HostsSandbox.attach(args.name)
        if args.command == "down":
            sandbox.down()
        elif args.command == "exec":
            wanted = args.words[1:] if args.words[:1] == ["--"] else args.words
            command = sandbox.daemons.on_host(args.on, wanted or ["bash"])
            os.execvpe(command[0], command, {**os.environ, **sandbox.env})
        else:
            disturb(sandbox, args)
    except SandboxError as error:
        print(f"sandbox_of_hosts: {error}", file=sys.stderr)
        return 1
    return 0


def packets(args: argparse.Namespace) -> tuple[float | None, float | None]:
    return links.seconds(args.delay) if args.delay else None, links.share(args.loss) if args.loss else None


def start(args: argparse.Namespace) -> int:
    delay_s, loss = packets(args)
    spec = HostsSpec(nodes=args.hosts, hosts=args.names, with_accounting=not args.no_accounting)
    check(spec)
    sandbox = HostsSandbox.up(spec, name=args.name)
    sandbox.links = Links(Link(delay_s or 0.0, loss or 0.0))
    sandbox.let_go()
    print(
        f"up, in {sandbox.dir}; {sandbox.home} is home, the same on every host; /tmp, /run, /dev/shm are each one's own"
    )
    print(f"use it: python -m sandbox_of_hosts exec --name {args.name} srun -N{spec.nodes} hostname")
    return 0


def disturb(sandbox: HostsSandbox, args: argparse.Namespace) -> None:
    hosts, (delay_s, loss) = host_names(sandbox.spec), packets(args)
    for host in filter(None, (args.sender, args.receiver, args.apart)):
        if host not in hosts:
            raise SandboxError(f"No host {host} of the sandbox; it has: {', '.join(hosts)}.")
    now = Links() if args.reset else sandbox.links
    if delay_s is not None or loss is not None:
        now = now.changed(hosts, args.sender, args.receiver, delay_s, loss)
    sandbox.links = now = now.apart(args.apart, hosts) if args.apart else now
    for name, link in {"others": now.others, **now.named}.items():
        print(f"{name}: {link.delay_s * 1000:g} ms, {link.loss:.2%} lost")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
