"""Messages as lines: put together from any pieces, and nothing else taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.protocol import json_lines

MESSAGES = st.lists(st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=9)), max_size=3))


@given(MESSAGES, st.integers(1, 7))
def test_messages_come_as_they_were_sent(messages: list[dict[str, int | str]], size: int) -> None:
    """However the network cuts them."""
    data = b"".join(json_lines.encode(message) for message in messages)
    reader, got = json_lines.MessageReader(), []
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
        got += list(reader.messages())
    assert got == messages


@pytest.mark.parametrize("line", [b"[1]\n", b"\n", b"{\n", b"\xff\n", b"[" * 200_000 + b"\n", b"x" * (1 << 20) + b"y"])
def test_anything_else_is_malformed(line: bytes) -> None:
    """After what was right, which is still given."""
    reader, got = json_lines.MessageReader(), []
    reader.feed(b'{"a":1}\n' + line)
    with pytest.raises(json_lines.Malformed):
        for message in reader.messages():
            got.append(message)
    assert got == [{"a": 1}]
