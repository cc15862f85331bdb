"""Policies of other distributions: entry points of the group `slurm_elastic.policies`, each naming a `Policy`.

    [project.entry-points."slurm_elastic.policies"]
    square-roots = "square_roots:POLICY"

Promise: the daemon never imports their code; only the policy that is used is loaded, in a process of its own.
Limit: a built-in policy's name stays the built-in one's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_elastic.protocol.errors import ConfigError

from ..optimizer.errors import PolicyFailed
from ..optimizer.policies import POLICIES

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
    from .isolated import IsolatedPolicy, isolated  # numpy comes with it

    entry = found().get(name)
    if entry is None:
        raise ConfigError(f"policy {name} is not known; accepted: {', '.join(names())}")
    before = POLICIES.get(name)
    if isinstance(before, IsolatedPolicy):
        before.remote.close()
    try:
        POLICIES[name] = isolated(entry.value, limit_s)
    except PolicyFailed as error:
        whose = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
        raise ConfigError(f"policy {name} ({entry.value}{whose}) {error}") from None
