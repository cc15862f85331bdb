"""What ranks tell each other arrives as it was; what a stranger sends is not looked at."""

from __future__ import annotations

import base64
import collections
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.trainer_shim.control import job_key
from slurm_elastic.trainer_shim.state.packed_tensors import Slot, pack
from slurm_elastic.trainer_shim.world import objects
from slurm_elastic.trainer_shim.world.objects import decode, encode
from slurm_elastic.trainer_shim.world.stores import Forged

KEYS = st.none() | st.booleans() | st.integers() | st.text()
PLAIN = st.recursive(
    KEYS | st.floats(allow_nan=False) | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
)
NO_PICKLE = {"model": {"w": Slot(0, (2, 3), torch.bfloat16, "cuda"), 3: (1, -2.5e300, "\ud800")}, (1, 2): torch.int8}


@given(PLAIN)
def test_values_arrive_as_they_were(value: Any) -> None:
    """With the type of every part: a tuple is no list, 1 is not True, and a key may be a number."""
    assert repr(decode(encode(value))) == repr(value)


def test_what_a_script_hands_out_arrives_too() -> None:
    """Subclasses, tensors, arrays, random states: as pickle has them."""
    value = [collections.Counter("aab"), numpy.float32(0.5), random.getstate(), Path("x"), 1 << 9000]
    assert decode(encode(value)) == value
    assert torch.equal(decode(encode({"t": torch.arange(3)}))["t"], torch.arange(3))


def test_a_hand_over_pickles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a model and of its optimizer, apart from the tensors, and what is agreed on."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    skeleton = pack({"m": model.state_dict(), "o": optimizer.state_dict()}, [])
    monkeypatch.setattr(objects, "pickle", None)
    for value in (skeleton, NO_PICKLE, [((0, 3), (2, 4)), None], (True, {"loss": 0.5})):
        assert decode(encode(value)) == value


def test_what_a_stranger_sends_is_not_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It would run a command of theirs: not sealed, sealed with another key, and with our seal of something else."""
    monkeypatch.setattr(job_key, "_held", "key")
    sealed = encode({"a": 1})
    command = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()"
    evil = json.dumps([objects.OTHER, base64.b85encode(pickle.dumps(_Run(command))).decode()]).encode()
    monkeypatch.setattr(job_key, "_held", "other")
    theirs = objects._seal(evil) + evil
    monkeypatch.setattr(job_key, "_held", "key")
    for forged in (evil, theirs, sealed[: objects.SEAL] + evil, b"", sealed[:-1]):
        with pytest.raises(Forged, match="somebody else sends to it"):
            decode(forged)
    assert not (tmp_path / "ran").exists()
    decode(objects._seal(evil) + evil)
    assert (tmp_path / "ran").exists(), "the test's own pickle does what it is meant to"


class _Run:
    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> Any:
        return exec, (self._command,)
