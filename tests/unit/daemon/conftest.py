"""A small cluster's story in a real store (tests/support/story.py)."""

from __future__ import annotations

from live_api import daemon as daemon
from live_api import run as run
from story import plain_environment as plain_environment
from story import store as store
from story import story as story
from story import viewer as viewer
