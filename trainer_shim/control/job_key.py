"""The key of one run, which its supervisor makes and its agents and workers have: by it they know each other.

Promise: no connection carries it, no command line and no file has it. Agents get it in their environment, which the
kernel shows to their user alone, and take it out: nothing that a script starts or prints has it. Limit: Slurm carries
the environment of a step to its nodes as it carries everything, encrypted only where the site has set that up.
"""

import secrets
from collections.abc import Mapping, MutableMapping

VARIABLE = "SELASTIC_SECRET"
_held = ""
"""Of this process, and of those that it forks."""


def make() -> str:
    return secrets.token_hex(32)


def take(environ: MutableMapping[str, str]) -> str:
    """The key; from now on it is not in the environment."""
    global _held
    _held = environ.pop(VARIABLE, _held)
    return _held


def held() -> str:
    """The key that was taken; "" in a job that has no supervisor."""
    return _held


def without(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for what is neither agent nor worker."""
    return {name: value for name, value in environ.items() if name != VARIABLE}
