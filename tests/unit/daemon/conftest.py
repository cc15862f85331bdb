"""A small cluster's story in a real store (tests/support/story.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from daemon_harness import World
from live_api import daemon as daemon
from live_api import run as run
from story import plain_environment as plain_environment
from story import store as store
from story import story as story
from story import viewer as viewer


@pytest.fixture
def world() -> Iterator[World]:
    """A cluster of eight nodes, and a daemon that acts."""
    made = World.in_memory()
    yield made
    made.close()
