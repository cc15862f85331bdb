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
from made_worlds import made_world

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
CALL = "g1 3"
NO_PICKLE = {"model": {"w": Slot(0, (2, 3), torch.bfloat16, "cuda"), 3: (1, -2.5e300, "\ud800")}, (1, 2): torch.int8}


def there_and_back(value: Any) -> Any:
    return decode(encode(value, CALL, 0), CALL, 0)


@given(PLAIN)
def test_values_arrive_as_they_were(value: Any) -> None:
    """With the type of every part: a tuple is no list, 1 is not True, and a key may be a number."""
    assert repr(there_and_back(value)) == repr(value)


def test_what_a_script_hands_out_arrives_too() -> None:
    """Subclasses, tensors, arrays, random states: as pickle has them."""
    value = [collections.Counter("aab"), numpy.float32(0.5), random.getstate(), Path("x"), 1 << 9000]
    assert there_and_back(value) == value
    assert torch.equal(there_and_back({"t": torch.arange(3)})["t"], torch.arange(3))


def test_a_hand_over_pickles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a model and of its optimizer, apart from the tensors, and what is agreed on."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    skeleton = pack({"m": model.state_dict(), "o": optimizer.state_dict()}, [])
    monkeypatch.setattr(objects, "pickle", None)
    for value in (skeleton, NO_PICKLE, [((0, 3), (2, 4)), None], (True, {"loss": 0.5})):
        assert there_and_back(value) == value


def test_values_arrive_where_there_is_no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch does not ask for NumPy, and neither do we: without it Tensor.numpy() raises."""

    def missing(*_: object) -> None:
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(torch.Tensor, "numpy", missing)
    assert decode(objects._taken(objects._tensor(encode({"a": [1, "b"]}, "call", 0))), "call", 0) == {"a": [1, "b"]}


def test_what_a_stranger_sends_is_not_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It would run a command of theirs: not sealed, sealed with another key, and with our seal of something else."""
    monkeypatch.setattr(job_key, "_held", "key")
    sealed = encode({"a": 1}, CALL, 0)
    command = f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()"
    evil = json.dumps([objects.OTHER, base64.b64encode(pickle.dumps(_Run(command))).decode()]).encode()
    monkeypatch.setattr(job_key, "_held", "other")
    theirs = objects._seal(evil, CALL, 0) + evil
    monkeypatch.setattr(job_key, "_held", "key")
    for forged in (evil, theirs, sealed[: objects.SEAL] + evil, b"", sealed[:-1]):
        with pytest.raises(Forged, match="somebody else, or another build, sends to it"):
            decode(forged, CALL, 0)
    assert not (tmp_path / "ran").exists()
    decode(objects._seal(evil, CALL, 0) + evil, CALL, 0)
    assert (tmp_path / "ran").exists(), "the test's own pickle does what it is meant to"


@pytest.mark.parametrize("elsewhere", [("g1 4", 0), ("g2 3", 0), ("g1 0 3", 0), (CALL, 1)])
def test_what_a_rank_has_said_counts_in_one_place_only(elsewhere: tuple[str, int], monkeypatch: Any) -> None:
    """Said again by a stranger: in a later call, in another world or group, or in another rank's name."""
    monkeypatch.setattr(job_key, "_held", "key")
    said = encode({"a": 1}, CALL, 0)
    assert decode(said, CALL, 0) == {"a": 1}
    with pytest.raises(Forged):
        decode(said, *elsewhere)


def test_every_call_of_every_group_of_every_world_has_its_own_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same value, said by the same rank in calls of two groups and two worlds: no seal comes twice."""
    sealed: list[bytes] = []
    real = objects._seal
    monkeypatch.setattr(objects, "_seal", lambda *about: sealed.append(real(*about)) or real(*about))
    for generation in (1, 2):
        with made_world(generation=generation) as world:
            for _ in range(2):
                for group in (world.group, world.owned.beside()):
                    assert objects.gather("x", group) == ["x"]
                    assert objects.share("x", group) == "x"
    gathers = 2 * 2 * 2  # sealed and opened; what is shared with nobody else is sealed only
    assert len(sealed) == 3 * gathers and len(set(sealed)) == 2 * gathers


class _Run:
    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> Any:
        return exec, (self._command,)
