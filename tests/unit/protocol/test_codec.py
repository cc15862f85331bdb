"""The messages between supervisors and selasticd."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.protocol import codec, messages

REPORT: dict[str, Any] = {
    "generation": 1, "at": 1.5, "gpus": 4, "nodes": 1, "batch": 64, "micro_batch": 16, "accumulation": 1, "steps": 20,
    "step_time_median_s": 0.1, "step_time_p90_s": 0.2, "samples_per_s": 640.0, "step": 20, "samples": 1280, "epoch": 0,
}  # fmt: skip


def test_a_message_survives_the_wire() -> None:
    """A resize with nested pieces and shapes reads back equal."""
    resize = messages.Resize(
        id=7, job_id=12, keep=(messages.Piece(12, "base", ("n1", "n2"), 4, "a100"),), add=(messages.Shape(1, 4),),
        gpus=12, batch=768, reason="grow_idle", wait_s=60.0,
    )  # fmt: skip
    assert codec.from_json(messages.Resize, codec.to_json(resize)) == resize


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gpus": "4"}, "Report.gpus"),
        ({"gpus": 4.5}, "Report.gpus"),
        ({"gpus": -1}, "Report.gpus"),
        ({"gpus": True}, "Report.gpus"),
        ({"gpus": 10**30}, "Report.gpus"),
        ({"step_time_median_s": float("nan")}, "Report.step_time_median_s"),
        ({"step_time_median_s": float("inf")}, "Report.step_time_median_s"),
        ({"step_time_median_s": None}, "Report.step_time_median_s"),
        *(
            ({name: 0}, rf"Report.{name}: 0 is not accepted; accepted: a whole number, 1 to 1e\+09")
            for name in ("gpus", "nodes", "batch", "micro_batch", "accumulation", "steps")
        ),
        *(
            ({name: value}, rf"Report.{name}: .* a finite number, 1e-06 to 1e\+07")
            for name in ("step_time_median_s", "step_time_p90_s")
            for value in (0, 0.0, 5e-324, 1e8)
        ),
        ({"samples": 1e15}, "Report.samples: .* a whole number, 0 to 1e"),
        ({"at": 10**400}, r"Report.at: 10+\.\.\. is not accepted; accepted: a finite number"),
    ],
)
def test_a_report_with_a_bad_field_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    """No malformed number reaches the store, and the sender learns which field was wrong."""
    body = json.dumps({**REPORT, **change}).encode()
    with pytest.raises(codec.WireError, match=named):
        codec.from_json(messages.Report, body)


def test_a_missing_field_is_named() -> None:
    """A field without a default must be there."""
    with pytest.raises(codec.WireError, match="field samples is missing"):
        codec.decode(messages.Report, {key: value for key, value in REPORT.items() if key != "samples"})


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b'"x"', b"[" * 100_000, b"x" * (codec.MAX_BODY + 1)])
def test_what_is_not_an_object_is_refused(body: bytes) -> None:
    """Neither broken JSON nor depth nor size raises anything but WireError."""
    with pytest.raises(codec.WireError):
        codec.from_json(messages.Report, body)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), lambda inner: (
    st.lists(inner) | st.dictionaries(st.sampled_from([f.name for f in dataclasses.fields(messages.Happening)]), inner)
), max_leaves=20))  # fmt: skip
def test_any_parsed_json_is_either_a_phase_or_refused(data: object) -> None:
    """The decoder has no third outcome."""
    try:
        phase = codec.decode(messages.Happening, data)
    except codec.WireError:
        return
    assert isinstance(phase, messages.Happening)


WRITTEN: dict[str, Any] = json.loads(Path(__file__).with_name("messages_of_version_2.json").read_text())
"""What 0.2.0 wrote, every field of it. It stays as it is until OLDEST is above 2."""
every_message = pytest.mark.parametrize("kind", [getattr(messages, name) for name in WRITTEN])


def written(kind: type[Any]) -> dict[str, Any]:
    """A message of 0.2.0."""
    found: dict[str, Any] = copy.deepcopy(WRITTEN[kind.__name__])
    return found


@every_message
def test_messages_of_version_2_are_understood(kind: type[Any]) -> None:
    """No field of theirs is gone or renamed, and none that they lack is required."""
    message = codec.decode(kind, written(kind))
    assert message.version == 2 >= codec.OLDEST
    assert codec.from_json(kind, codec.to_json(message)) == message


@every_message
@pytest.mark.parametrize("version", [codec.OLDEST, codec.VERSION, codec.VERSION + 1])
def test_fields_that_are_not_known_are_ignored(kind: type[Any], version: int) -> None:
    """In every message of either direction, and in what lies inside, whatever its version."""
    message = codec.decode(kind, written(kind))
    data = written(kind) | {"tomorrow": 1, "version": version}
    for inner in ("pieces", "reports", "keep", "add"):
        for entry in data.get(inner, []):
            entry["tomorrow"] = {"x": 1}
    assert codec.decode(kind, data) == dataclasses.replace(message, version=version)


@every_message
def test_a_version_that_is_not_spoken_any_more_is_refused(kind: type[Any]) -> None:
    """With one sentence, on whichever side: supervisors of 0.1.0 said version 1."""
    with pytest.raises(
        codec.WireError, match="version 1 of the messages is not spoken any more; accepted: 2 and newer"
    ):
        codec.decode(kind, written(kind) | {"version": 1})


@every_message
def test_fields_that_an_older_version_lacks_have_defaults(kind: type[Any]) -> None:
    """Whoever does not know an optional field yet, or has dropped it, is understood."""
    optional = {
        field.name: field.default for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING
    }
    data = {key: value for key, value in written(kind).items() if key not in optional}
    known = {key: value for key, value in optional.items() if key in written(kind)}
    assert codec.decode(kind, data) == dataclasses.replace(codec.decode(kind, written(kind)), **known)


def test_a_phase_without_an_exit_code_is_one_of_zero() -> None:
    """Supervisors that do not know the field yet are understood; a code that is no whole number from 0 is refused."""
    phase = messages.Happening(0, "finished", 3, (), 64, 1.5, exit_code=143)
    assert codec.from_json(messages.Happening, codec.to_json(phase)) == phase
    data = dataclasses.asdict(phase) | {"pieces": [], "unreached": []}
    del data["exit_code"]
    assert codec.decode(messages.Happening, data).exit_code == 0
    for wrong in (-15, 1.5, "1", None):
        with pytest.raises(codec.WireError, match=r"Happening\.exit_code"):
            codec.decode(messages.Happening, {**data, "exit_code": wrong})
