"""Stores of a test's own, made as copies: what the migrations make of an empty file is the same every time.

Promise: a file that is there already is opened, and brought to this code's schema, as the daemon does it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from slurm_elastic.db.store import Store


def nothing(store: Store) -> None:
    """An empty store."""


@cache
def _made(fill: Callable[[Store], None]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.db"
        with Store.open(f"sqlite:///{path}") as store:
            fill(store)
        return path.read_bytes()


def fresh_store(url: str, fill: Callable[[Store], None] = nothing) -> Store:
    """A store at this address; in a new one is what `fill` writes, which it does once for all that ask for the same."""
    path = Path(url.removeprefix("sqlite:///"))
    if path.exists():
        return Store.open(url)
    path.write_bytes(_made(fill))
    return Store(url)
