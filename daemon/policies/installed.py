"""Policies of other distributions: entry points of the group `slurm_elastic.policies`, each naming a `Policy`.

    [project.entry-points."slurm_elastic.policies"]
    square-roots = "square_roots:POLICY"

Promise: only the policy that is used is loaded; what it gives is checked; a round waits for it no longer than `limit_s`
in all, on a thread beside the round, and never for one that is still busy with an earlier question.
Limit: a built-in policy's name stays the built-in one's. The code is the daemon's own from then on: what it never ends
keeps a thread and takes time of a core, and what ends its process ends the daemon, which systemd starts again.
"""

from __future__ import annotations

import operator
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import TYPE_CHECKING, TypeVar

from slurm_elastic.protocol.errors import ConfigError

from ..optimizer.errors import PolicyFailed
from ..optimizer.policies import POLICIES, Policy

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from ..optimizer.problem import Problem

T = TypeVar("T")
GROUP = "slurm_elastic.policies"
BUILT_IN = tuple(POLICIES)


def found() -> dict[str, EntryPoint]:
    """The installed policies, by name."""
    from importlib.metadata import entry_points  # now: every command reads settings, and few ask for a policy

    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in BUILT_IN}


def known(name: str) -> bool:
    """Whether a policy has that name, built in or installed."""
    return name in BUILT_IN or name in found()


def names() -> list[str]:
    """All policies' names: what --policy and the setting accept."""
    return [*BUILT_IN, *sorted(found())]


def use(name: str, limit_s: float) -> None:
    """Make a policy one that plans can be made by; nothing to do for a built-in one.

    limit_s: how long an installed one may take in a round. Raises ConfigError where it cannot be loaded.
    """
    if name in BUILT_IN:
        return
    entry = found().get(name)
    if entry is None:
        raise ConfigError(f"policy {name} is not known; accepted: {', '.join(names())}")
    try:
        theirs = entry.load()
        if not isinstance(theirs, Policy):
            raise TypeError(f"{entry.value} is a {type(theirs).__name__}; expected a Policy of slurm_elastic")
    except Exception as error:
        whose = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
        raise ConfigError(f"policy {name} ({entry.value}{whose}) cannot be loaded: {_words(error)}") from None
    told = {one.name: getattr(theirs, one.name) for one in fields(Policy)}
    bounds = Bounds(limit_s)
    if theirs.planner is not None:
        told["planner"] = bounds.around(theirs.planner)
    POLICIES[name] = InstalledPolicy(**told, theirs=theirs, bounds=bounds)


class Bounds:
    """The time that one policy's functions have in each round."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = self._left_s = limit_s
        self._thread: threading.Thread | None = None
        """That of the last question, which it may still be busy with."""
        self._failure = ""
        """Why it is not asked again in this round."""

    def begin_round(self) -> None:
        """Give it its time for one round."""
        self._left_s, self._failure = self._limit_s, ""

    def around(self, planner: Callable[[Problem], Sequence[int]]) -> Callable[[Problem], Sequence[int]]:
        """The same planner within these bounds, on a copy of the problem."""

        def bounded(problem: Problem) -> list[int]:
            copy = pickle.loads(pickle.dumps(problem))
            return self.ask(lambda: [operator.index(i) for i in planner(copy)])

        return bounded

    def ask(self, question: Callable[[], T]) -> T:
        """Its answer. Raises PolicyFailed where it raises, or has no time left, and then for the rest of the round."""
        if not self._failure and self._thread is not None and self._thread.is_alive():
            self._failure = "gave no answer: it is still busy with an earlier question"
        if self._failure:
            raise PolicyFailed(self._failure)
        answers: list[tuple[str, T | None]] = []

        def answer() -> None:
            try:
                answers.append(("", question()))
            except PolicyFailed as error:
                answers.append((str(error), None))
            except BaseException as error:  # sys.exit, too
                answers.append((f"raised {_words(error)}", None))

        began, self._thread = time.monotonic(), threading.Thread(target=answer, name="policy", daemon=True)
        self._thread.start()
        self._thread.join(self._left_s)
        self._left_s = max(0.0, self._left_s - (time.monotonic() - began))
        late = f"gave no answer: nothing within its {self._limit_s:g} s of this round"
        self._failure, given = answers[0] if answers else (late, None)
        if self._failure:
            raise PolicyFailed(self._failure)
        return given  # type: ignore[return-value]  # a question that failed has none


@dataclass(frozen=True)
class InstalledPolicy(Policy):
    """A policy whose functions have bounds."""

    theirs: Policy = field(kw_only=True)
    bounds: Bounds = field(kw_only=True)

    def utilities(self, progress: Sequence[float]) -> list[float]:
        asked = [float(one) for one in progress]

        def given() -> list[float]:
            values = [float(value) for value in self.theirs.utilities(asked)]
            for at, value in zip(asked, values, strict=True):
                if not isfinite(value):
                    raise PolicyFailed(f"gave utility {value} of progress {at:g}; accepted: finite numbers")
            return values

        return self.bounds.ask(given)

    def begin_round(self) -> None:
        self.bounds.begin_round()


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
