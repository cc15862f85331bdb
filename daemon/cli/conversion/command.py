"""`selastic convert`: propose the diff that makes a training script elastic with its own loop kept, and say on stderr,
line by line, what is left to you. The diff goes to stdout: `selastic convert train.py | patch train.py`.

Promise: nothing is written without --write; the script is read, never run. Limit: it knows the usual patterns by their
syntax; read the diff, and the lines that it names.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from slurm_elastic.protocol.errors import ElasticError

from .edits import unified
from .rewriting import converted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic convert`."""
    parser.add_argument("script", metavar="SCRIPT", help="a PyTorch training script")
    parser.add_argument("--write", action="store_true", help="write the change into SCRIPT instead of showing it")


def run(args: argparse.Namespace) -> int:
    """Print, or write, the change; exit status 1 where no loop that trains is found, or the script can't be read."""
    path = Path(args.script)
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ElasticError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is no UTF-8 text'}"
        ) from None
    after, left = converted(text, str(path))
    if args.write:
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            partial.write_bytes(after.encode())
            partial.chmod(path.stat().st_mode)
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise ElasticError(f"{path} cannot be written: {error.strerror}") from None
    else:
        sys.stdout.write(unified(str(path), text, after))
        sys.stdout.flush()
    for line, sentence in left:
        print(f"{path}:{line}: {sentence}", file=sys.stderr)
    return 0
