"""Fields of messages: what is accepted can be used for what it is."""

from __future__ import annotations

import datetime
import threading

from hypothesis import example, given
from hypothesis import strategies as st

from slurm_elastic.protocol.json_lines import Malformed
from slurm_elastic.protocol.message_fields import seconds


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
