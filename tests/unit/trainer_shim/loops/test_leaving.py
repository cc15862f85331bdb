"""Whether a loop was left by its script, or by an error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from slurm_elastic.trainer_shim.loops.leaving import on_purpose


def numbers(seen: list[bool]) -> Iterator[int]:
    try:
        yield from range(3)
    except GeneratorExit:
        seen.append(on_purpose())
        raise


def shown(numbers: Iterable[int]) -> Iterator[int]:
    """As a progress bar goes over it."""
    for number in numbers:
        yield 2 * number


def breaks(loop: Iterable[Any]) -> None:
    for _ in loop:
        break


def returns_inside(loop: Iterable[Any]) -> Any:
    for found in loop:
        with open("/dev/null"):
            return found
    return None


def breaks_behind_an_error(loop: Iterable[Any]) -> None:
    for _ in loop:
        try:
            {}["none"]
        except KeyError:
            break


def raises(loop: Iterable[Any]) -> None:
    for _ in loop:
        raise ValueError


def raises_below(loop: Iterable[Any]) -> None:
    for _ in loop:
        int("none")


def asserts(loop: Iterable[Any]) -> None:
    for found in loop:
        assert found is None


def exits(loop: Iterable[Any]) -> None:
    for _ in loop:
        with open("/dev/null"):
            raise SystemExit(0)


def catches_outside(loop: Iterable[Any]) -> None:
    try:
        for _ in loop:
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass


@pytest.mark.parametrize("around", [iter, enumerate, shown])
@pytest.mark.parametrize(
    ("leave", "purpose"),
    [
        (breaks, True),
        (returns_inside, True),
        (breaks_behind_an_error, True),
        (raises, False),
        (raises_below, False),
        (asserts, False),
        (exits, False),
        (catches_outside, False),
    ],
)
def test_an_error_is_no_break(
    leave: Callable[[Iterable[Any]], Any], purpose: bool, around: Callable[[Iterable[int]], Iterable[Any]]
) -> None:
    """Python closes the generator for both; also one inside enumerate() or a progress bar's own generator."""
    seen: list[bool] = []

    with contextlib.suppress(ValueError, AssertionError, SystemExit):
        leave(Once(around(numbers(seen))))
    assert seen == [purpose]


class Once:
    """Hands its iterable on and does not keep it, so that the loop over it is all that does."""

    def __init__(self, loop: Iterable[Any]) -> None:
        self._loop: Iterable[Any] | None = loop

    def __iter__(self) -> Iterator[Any]:
        loop, self._loop = self._loop, None
        assert loop is not None
        return iter(loop)
