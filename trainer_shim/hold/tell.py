"""`selastic tell`: within a job of `selastic hold`, say that this node is ready, or how fast the program is."""

import argparse
import math
import os
import re
import secrets

from slurm_elastic.protocol import json_lines
from slurm_elastic.protocol.errors import ConfigError, ElasticError
from slurm_elastic.protocol.json_lines import Message

from ..control import handshake
from .driver import TOLD_KEY, TOLD_PORT

PATIENCE_S = 10.0
ACCEPTED = "ready, in a join command, or samples=N seconds=S: so many, 0 or more, in a time above 0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="+", metavar="WORD", help=ACCEPTED)


def run(args: argparse.Namespace) -> int:
    message = said(" ".join(args.words), os.environ.get("SELASTIC_JOIN", ""))
    if TOLD_KEY not in os.environ:
        raise ConfigError("selastic tell is for what selastic hold has started; this is not")
    who = {"kind": "worker", "worker": secrets.token_hex(8)}
    try:
        host, port = os.environ["SELASTIC_HEAD"], int(os.environ[TOLD_PORT])
        with handshake.call(host, port, os.environ[TOLD_KEY], who, PATIENCE_S) as sock:
            sock.sendall(json_lines.encode(message))
    except OSError as error:
        raise ElasticError(f"selastic hold does not answer: {error}") from None
    return 0


def said(words: str, join: str) -> Message:
    """What these words mean, of this join command ("": of none). Raises ConfigError."""
    if words == "ready" and join:
        return {"type": "ready", "join": join}
    found = re.fullmatch(r"samples=([0-9.e+-]+) seconds=([0-9.e+-]+)", words)
    try:
        samples, seconds = map(float, found.groups() if found else ())
    except ValueError:
        samples = seconds = -1.0
    if not (0 <= samples < math.inf and 0 < seconds < math.inf):
        raise ConfigError(f"'{words}' is not accepted; accepted: {ACCEPTED}")
    return {"type": "figure", "per_s": samples / seconds}
