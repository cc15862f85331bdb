"""`selastic hold`: run a command whose nodes come and go with the job, for programs that are elastic by themselves.

The command runs where the batch script runs. Join commands bring it further nodes, a leave command takes them away.
"""

import argparse
import os
import signal
from dataclasses import replace

from slurm_elastic.protocol import own_files, request
from slurm_elastic.protocol.errors import ConfigError

from ..allocation import launchers
from ..allocation import start as allocation
from ..allocation.driver import program
from ..allocation.pieces.alone import Alone
from ..allocation.pieces.changes import Changes
from ..allocation.pieces.machine import Machine
from ..allocation.pieces.nodes import Nodes
from ..control import copies
from .driver import Commands, HoldDriver
from .joins import Held, HoldLimits, Joins
from .speeds import Speeds, reader

EPILOG = """--join finds in its environment SELASTIC_HEAD (address of the host of COMMAND), SELASTIC_ADDRESS (its own),
SELASTIC_NODE, SELASTIC_NODE_INDEX (from 1), SELASTIC_NODES (of the whole job), SELASTIC_GPUS and CUDA_VISIBLE_DEVICES;
--leave finds SELASTIC_LEAVING, names with commas, and lost=1 where they are lost already.
The elastic request has no batch=: gpus=MIN-MAX[,speedup=linear|0.9]."""
COPIES = "accepted: selastic hold alone, which starts --join on all nodes itself"
MODULE = "slurm_elastic.trainer_shim.hold.program"
OF_A_START = 1_000_000
"""Generations that one start of the job may come to."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--join", default="", metavar="CMD", help="runs on each further node as long as the job has it")
    parser.add_argument("--leave", default="", metavar="CMD", help="runs beside COMMAND before nodes go")
    parser.add_argument(
        "--drain-s", type=_seconds, default=60.0, metavar="N", help="seconds for --leave and the end of --join"
    )
    parser.add_argument(
        "--ready-s",
        type=_seconds,
        default=0.0,
        metavar="N",
        help="--join says 'selastic tell ready' within so many seconds, or its nodes go back (default: it is ready "
        "when it has run for 2 s)",
    )
    parser.add_argument(
        "--speed",
        default="",
        metavar="SOURCE",
        help="where the program's speed is read, in units a second: a file, or http://HOST:PORT/metrics#NAME; it may "
        "call 'selastic tell samples=N seconds=S' instead",
    )
    parser.add_argument(
        "--backlog", default="", metavar="SOURCE", help="where the number of waiting tasks is read: at 0 nodes go back"
    )
    parser.add_argument("--unit", default="samples", metavar="WORD", help="what the speed counts (default: samples)")
    parser.add_argument("--elastic", default="", metavar="REQUEST", help="elastic request, instead of the comment's")
    parser.add_argument(
        "--interface", default="", metavar="NAME", help="network between the nodes, as for selastic run"
    )
    parser.add_argument("--job-dir", metavar="DIR", help="shared directory for logs")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command, and its arguments")


def run(args: argparse.Namespace) -> int:
    """Run to the end; the exit code is the command's."""
    if why := copies.refusal(os.environ, "selastic hold", COPIES):
        raise ConfigError(why)
    own = tuple(args.words[1:] if args.words[:1] == ["--"] else args.words)
    if not own:
        raise ConfigError("selastic hold has no COMMAND; accepted: selastic hold [--join CMD] ... -- COMMAND")
    if not args.unit.isidentifier() or len(args.unit) > 20:
        raise ConfigError(f"--unit {args.unit} is not accepted; accepted: one word of at most 20 letters")
    for source in filter(None, (args.speed, args.backlog)):
        reader(source)
    env = dict(os.environ)
    start = allocation.find(
        env, ("-m", MODULE, "/bin/sh", "-c", args.join or "exec sleep infinity"), args.job_dir, 0, args.interface
    )
    comment = request.find(start.jobs[0].comment) if start.jobs else None
    asked = args.elastic or comment or env.get("SELASTIC_REQUEST", "")
    if args.elastic and request.parse(args.elastic).max_batch:
        raise ConfigError(f"--elastic {args.elastic} has a batch=; accepted with selastic hold: a request without it")
    own_files.raise_limit()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a reader of our output that has gone away is no reason to end
    start = replace(start, options=replace(start.options, request="" if asked == comment else asked))
    start, lease = start.take_directory()
    limits = HoldLimits(
        warm_up_s=args.ready_s or HoldLimits().warm_up_s,
        drain_s=args.drain_s,
        says_ready=bool(args.ready_s),
        end_s=launchers.end_s(start.options.env if start.jobs else None),
    )
    first = OF_A_START * (start.jobs[0].restarts if start.jobs else 0)
    held = Held(start.pieces, limits, first, args.unit, program(own))
    machine = Machine(held, (Nodes, Changes, Alone, Joins, Speeds))
    commands = Commands(own, args.leave, env, args.speed, args.backlog)
    return HoldDriver(commands, start.options, machine, start.launcher(), start.connect(), lease).run()


def _seconds(text: str) -> float:
    if not text.isdigit() or not 1 <= int(text) <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not accepted; accepted: 1 to 86400 seconds")
    return float(text)
