"""`selastic`: the command line.

Promise: every outcome is one exit status, decided here alone: 0 done, 1 not found or refused, 2 wrong usage,
3 selasticd or munged does not answer; an error is one sentence on stderr; a closed pipe is silent; a letter that the
locale cannot show is a `?`. Limit: what `run`
executes and what `sbatch` becomes end with their own status; of `convert`, 3 says that work is left.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence

from slurm_elastic.protocol.errors import ConfigError, DaemonUnreachable, ElasticError, RequestError

from . import parser

DONE, REFUSED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; `argv` without the program's name. Returns its exit status, or raises SystemExit as argparse
    does for --help and wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    _prepare_output()
    try:
        try:
            status = _run(words)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has what it wanted (`| head`).
        _drop_output()
        return DONE
    except OSError as error:
        if error.errno not in FULL:
            raise
        _drop_output()
        print(f"selastic: the output cannot be written ({error.strerror})", file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except ElasticError as error:
        print(f"selastic: {error}", file=sys.stderr)
        return exit_status(error)
    return status


def _prepare_output() -> None:
    """Something to print to where stdout was closed (`>&-`), and no error for a name in another alphabet."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Python would complain at exit when it flushes what is left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def exit_status(error: ElasticError) -> int:
    if isinstance(error, DaemonUnreachable) or _munge_is_away(error):
        return UNREACHABLE
    if isinstance(error, (ConfigError, RequestError)):
        return USAGE
    return REFUSED


def _munge_is_away(error: ElasticError) -> bool:
    """Without munged no way leads to selasticd; a credential that it refuses is a refusal."""
    from slurm_elastic.protocol.api.munge import CredentialRefused, MungeError

    return isinstance(error, MungeError) and not isinstance(error, CredentialRefused)


def _run(words: list[str]) -> int:
    try:
        args = parser.parse(words)
        from .options import find_tasks  # what commands need is imported with them

        find_tasks(args)
        return int(args.function(args))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("slurm_elastic"):
            raise
        raise ElasticError(
            f"this command needs the package '{error.name}', which is not installed; "
            "install slurm-elastic-daemon beside it"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
