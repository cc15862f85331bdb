"""Fields of messages: what is accepted can be used for what it is."""

from __future__ import annotations

import datetime
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_elastic.protocol.json_lines import Malformed, seconds, variables


@given(st.floats() | st.integers())
@example(1e15)
@example(float("inf"))
def test_every_accepted_time_can_be_waited_for(value: float) -> None:
    """As a timedelta, which torch's stores and groups take, and as the timeout of a condition."""
    try:
        time_s = seconds({"timeout_s": value}, "timeout_s")
    except Malformed:
        return
    assert datetime.timedelta(seconds=time_s).total_seconds() >= 0
    assert time_s <= threading.TIMEOUT_MAX


@pytest.mark.parametrize("value", ["träin.py", "tr\udcc3\udca4in.py", ""])
def test_a_variable_may_hold_what_is_no_text_in_the_locale(value: str) -> None:
    """Python holds such bytes as lone surrogates of one range."""
    assert variables({"env": {"A": value}}, "env") == {"A": value}


@pytest.mark.parametrize("value", ["\ud800", "a\0b", 3])
def test_a_variable_that_no_environment_takes_is_malformed(value: object) -> None:
    """Setting it would raise in the agent."""
    with pytest.raises(Malformed):
        variables({"env": {"A": value}}, "env")
