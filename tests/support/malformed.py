"""What may come over a socket of the shim: messages of every type with values of every kind, and what is no message."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

TYPES = (
    *("hello", "ready", "store", "quiesced", "running", "saved", "unsaved", "called_off", "failed", "done", "report"),
    *("pace", "exit", "output", "notice", "spawn", "kill", "follow", "quit", "world", "abort", "dismiss"),
    *("report_every", "checkpoint", "hurry", "of a newer build"),
)
FIELDS = (
    *("kind", "agent", "worker", "secret", "slurm_job_id", "node", "gpus", "generation", "host", "port", "batch"),
    *("step", "samples", "pause_s", "error", "survived", "finished", "unsaved", "pace", "unit", "micro_batch"),
    *("code", "signal", "raised", "tail", "text", "env", "follow", "rank", "size", "leave", "source", "timeout_s"),
    *("forming_s", "first_step_s", "report_s", "end_s", "lost", "seconds", "stop", "deadline_s", "joiners"),
)
RIGHT = st.sampled_from((0, 1, 2, 9, 0.5, True, "", "n1", "1.n1", "1.n1.0", ["0", "1"], {"A": "b"}, {"rank": 0}))
TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
"""Lone surrogates and NUL included."""
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from((10**400, -(10**400), 2**63, 10**15, -1)))
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXT, RIGHT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=6,
)
MESSAGES: st.SearchStrategy[dict[str, Any]] = st.builds(
    lambda kind, fields: {"type": kind, **fields},
    st.one_of(st.sampled_from(TYPES), st.sampled_from(TYPES), ANYTHING),
    st.dictionaries(st.sampled_from(FIELDS), st.one_of(RIGHT, ANYTHING), max_size=8),
)
DEEP = b'{"type":"store","generation":1,"host":' + b"[" * 900 + b"]" * 900 + b"}\n"
LINES = st.one_of(
    MESSAGES.map(lambda message: json.dumps(message).encode() + b"\n"),
    MESSAGES.map(lambda message: json.dumps(message).encode() + b"\n"),
    ANYTHING.map(lambda value: json.dumps(value).encode() + b"\n"),
    st.binary(max_size=60).map(lambda data: data + b"\n"),
    st.just(DEEP),
)


def line(**message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"
