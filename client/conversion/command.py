"""`selastic convert`: propose the diff that makes a training script elastic with its own loop kept, and name in it what
is left to you. The diff goes to stdout: `selastic convert train.py | patch train.py`.

Promise: nothing is written without --write; the script is read, never run; exit status 0 only where nothing is left.
Limit: it knows a closed list of patterns by their syntax; read the diff.
"""

import argparse
import os
import sys
from pathlib import Path

from slurm_elastic.protocol.errors import ElasticError

COMPLETE, LEFT = 0, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 if nothing is left to you, 3 if comments in the diff name what is"
    parser.add_argument("script", metavar="SCRIPT", help="a PyTorch training script")
    parser.add_argument("--write", action="store_true", help="write the change into SCRIPT instead of showing it")


def run(args: argparse.Namespace) -> int:
    """Print, or write, the change. Exit status 3 where work is left, which comments in it name. Raises ElasticError
    where no loop that trains is found."""
    try:
        from .change import unified
        from .rewriting import converted
    except ModuleNotFoundError as error:
        if error.name != "libcst":
            raise
        raise ElasticError(
            "`selastic convert` needs libcst, which this Python does not have; install it: "
            "pip install libcst, or apt install python3-libcst"
        ) from None
    path = Path(args.script)
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ElasticError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is no UTF-8 text'}"
        ) from None
    after, said = converted(text, path)
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
    for line, sentence in sorted(said):
        print(f"{path}:{line}: {sentence}", file=sys.stderr)
    return LEFT if said else COMPLETE
