"""Fixtures of the shim's tests (workers by fork, and the supervisor's side of their protocol) and of the store's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from shim_harness import Control, Start, Zygote
from stored import store as store
from stored import url as url


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def start(zygote: Zygote, tmp_path: Path) -> Iterator[Start]:
    controls: list[Control] = []

    def make(*args: str, directory: Path = tmp_path) -> Control:
        controls.append(Control(zygote, directory, list(args)))
        return controls[-1]

    yield make
    for control in controls:
        control.close()
