"""How many random instances the solver's tests try: a quarter of them in every run, all in `make test-exact`."""

from __future__ import annotations

import os

SHARE = 1 if os.environ.get("SELASTIC_ALL_INSTANCES") else 4


def instances(all_of_them: int) -> range:
    return range(all_of_them // SHARE)
