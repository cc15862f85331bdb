"""The process in which an installed policy lives. isolated.py starts it and holds the other end.

It answers (call, argument, seconds) on the connection FD, one at a time, with (True, value) or (False, why), until that
closes. Answers are plain numbers and texts. A call that takes longer than those seconds ends the process, also when
nobody is left to wait for it; when memory runs out on the host, the kernel ends it before others.
"""

import contextlib
import operator
import os
import signal
from dataclasses import fields
from importlib.metadata import EntryPoint
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..optimizer.policies import Policy

GRACE_S = 1.0
"""How much longer than its time a call may take before the process ends itself."""


def load(target: str) -> Policy:
    """The policy at `target`. Raises whatever its code raises, and TypeError for what is no policy."""
    found = EntryPoint("", target, "").load()
    if not isinstance(found, Policy):
        raise TypeError(f"{target} is a {type(found).__name__}; expected a Policy of slurm_elastic")
    return found


def answer(policy: Policy, call: str, argument: Any = None) -> Any:
    """What a call gives, in plain values."""
    if call == "about":
        told = {one.name: getattr(policy, one.name) for one in fields(Policy)}
        plans = told.pop("planner") is not None
        return {name: value for name, value in told.items() if name != "utility"} | {"plans": plans}
    if call == "utilities":
        return [float(value) for value in policy.utilities(argument)]
    assert policy.planner is not None
    return [operator.index(i) for i in policy.planner(argument)]


def main(target: str, fd: int) -> None:
    """Answer until the connection closes."""
    # The daemon's end is the end of the connection: a signal to its whole group must not come first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(fd)
    os.dup2(2, 1)  # a policy may print
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    policy, why = None, ""
    try:
        policy = load(target)
    except Exception as error:
        why = f"cannot be loaded: {_words(error)}"
    with contextlib.suppress(EOFError, OSError):  # the caller has closed
        while True:
            call, *arguments, seconds = connection.recv()
            signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_S)
            connection.send((False, why) if policy is None else _reply(policy, call, arguments))
            signal.setitimer(signal.ITIMER_REAL, 0.0)


def _reply(policy: Policy, call: str, arguments: list[Any]) -> tuple[bool, Any]:
    try:
        return True, answer(policy, call, *arguments)
    except Exception as error:
        return False, f"raised {_words(error)}"


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
