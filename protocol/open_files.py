"""How many files and sockets this process may have open."""

from __future__ import annotations

import contextlib
import resource

UNLIMITED = 1 << 20
"""What "unlimited" is taken for."""


def limit() -> int:
    """How many it may have open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """As many as this process may allow itself; what it starts inherits that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
