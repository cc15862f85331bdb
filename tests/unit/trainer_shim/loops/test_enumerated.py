"""A count goes on where a worker joins in a pass, by a place in memory that is proven first: on every Python that this
runs on (`make test-torch` has the oldest one)."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from slurm_elastic.trainer_shim.loops import enumerated
from slurm_elastic.trainer_shim.loops.enumerated import Enumerated


def bar(batches: Iterable[Any]) -> Iterator[Any]:
    """As a progress bar does it."""
    yield from batches


WRAPPED: list[Callable[[Any], Any]] = [
    lambda batches: batches,
    lambda batches: map(str.upper, batches),
    bar,
    lambda batches: bar(map(str.upper, bar(batches))),
]


@pytest.mark.parametrize("around", WRAPPED)
def test_it_counts_on(monkeypatch: pytest.MonkeyPatch, around: Callable[[Any], Any]) -> None:
    """From the batches that are done, with nothing said."""
    monkeypatch.setattr(enumerated, "INSTALLED", re.compile(__file__))
    said: list[str] = []
    assert [number for number, _ in enumerate(around(Enumerated(iter("abc"), 5, False, said.append)))] == [5, 6, 7]
    assert not said


@pytest.mark.parametrize("name", ["cpython", "pypy"])
def test_where_a_python_has_it_elsewhere(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A field that happens to be zero, as the count is at first, is not written to; it is named."""
    field, said = ctypes.c_ssize_t(0), list[str]()
    monkeypatch.setattr(enumerated, "_place_of", lambda _: field)
    monkeypatch.setattr("sys.implementation.name", name)
    assert [number for number, _ in enumerate(Enumerated(iter("abc"), 5, False, said.append))] == [0, 1, 2]
    assert field.value == 0 and said[0].startswith("enumerate() stands between the loop and the loader")
