"""Workers that take the stand-in of tests/nccl_standin for a GPU and NCCL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import stand_in
from worker_harness import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """In place of the one on CPUs, for all tests here."""
    try:
        zygote = Zygote("standin", **stand_in.environment(here=True))
    except stand_in.Missing as missing:
        pytest.skip(str(missing))
    yield zygote
    zygote.close()
