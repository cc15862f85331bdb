"""Reading a checkpoint runs no code: what it may hold, what is refused, and that this is said before it is written."""

from __future__ import annotations

import collections
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from local_jobs import DATA, loss_of, wrapped
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.checkpoint import files, safe_load, sharded
from slurm_elastic.trainer_shim.checkpoint.safe_load import NotAccepted
from slurm_elastic.trainer_shim.state.kept_parts import State
from slurm_elastic.trainer_shim.state.packed_tensors import Slot


class Planted:
    """Unpickled, it does what whoever wrote it wants."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


class Best:
    """A class of a script's own."""

    def __init__(self, value: float) -> None:
        self.value = value


class Meter:
    """What a script keeps, with an object in its state."""

    def __init__(self) -> None:
        self.history: list[Any] = [1.0, Best(0.5)]

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history = state["history"]


def trained() -> State:
    """A state whose model has parameters, at step 1."""
    state = State()
    state.keep("Model", torch.nn.Linear(2, 2), own=True)
    state.progress.step = 1
    return state


@pytest.fixture
def named() -> Iterator[None]:
    """The script has named its class."""
    torch.serialization.add_safe_globals([Best])
    yield
    torch.serialization.clear_safe_globals()


PLAIN = {
    "generators": (random.getstate(), torch.get_rng_state()),
    "places": Slot(1, (2, 3), torch.bfloat16, "cpu"),
    "counted": collections.Counter("aab"),
    "numbers": [None, True, 1 << 80, 1.5, 2j, "text", b"bytes", range(3), {1, 2}, frozenset([3])],
    "of torch": (torch.float16, torch.Size([2]), torch.device("cpu"), torch.ones(2, dtype=torch.bfloat16)),
}


def test_plain_values_come_back(tmp_path: Path) -> None:
    """With the types that they had."""
    safe_load.check(PLAIN)
    files.dump(tmp_path / "state.pt", PLAIN)
    assert str(safe_load.load(tmp_path / "state.pt")) == str(PLAIN)


def test_numpys_generators_and_arrays_come_back(tmp_path: Path) -> None:
    """Scripts keep them, and torch does not load them by itself."""
    np = pytest.importorskip("numpy")
    state = {"legacy": np.random.get_state(), "own": np.random.default_rng(1).bit_generator.state}
    state |= {
        "arrays": [np.arange(3), np.array(["a"]), np.array([True])],
        "best": np.float32(2),
    }
    safe_load.check(state)
    files.dump(tmp_path / "state.pt", state)
    assert str(safe_load.load(tmp_path / "state.pt")) == str(state)
    with pytest.raises(NotAccepted, match=r"'objects' can be in no checkpoint"):
        safe_load.check({"objects": np.array([Best(1.0)], dtype=object)})


def test_a_planted_file_is_not_run(tmp_path: Path) -> None:
    """Though it verifies, and is the job's own user's. It is neither set aside as damaged nor passed over."""
    marker = tmp_path / "marker"
    files.write(tmp_path, trained().snapshot())
    later = trained()
    later.progress.step = 2
    files.write(tmp_path, {**later.snapshot(), "extra": Planted(marker)})
    with pytest.raises(NotAccepted, match=r"step-000000000002.* is not loaded: it holds a .*; accepted: tens"):
        files.load_newest(tmp_path)
    assert not marker.exists() and len(files.all_of(tmp_path)) == 2


@pytest.mark.parametrize("plant", ["code", "bytes"])
def test_planted_places_of_tensors_are_not_run(tmp_path: Path, plant: str) -> None:
    """In parts: what torch.distributed.checkpoint unpickles itself, and what would have it unpickle more."""
    marker, place = tmp_path / "marker", tmp_path / sharded.METADATA
    bad = Metadata({"0": BytesStorageMetadata()})
    place.write_bytes(pickle.dumps(Planted(marker) if plant == "code" else bad))
    skeleton = {"parts": {"Model": {"weight": Slot(0, (2,), torch.float32, "cpu")}}}
    with pytest.raises(NotAccepted, match=r"is not loaded: it names .*, which has no place there"):
        sharded.read(tmp_path, skeleton, None, None)
    assert not marker.exists()


def test_what_cannot_be_read_again_is_said_after_the_first_step(made: list[elastic.Job], tmp_path: Path) -> None:
    """With its place, its class, and what to do; not when the training is restored from it a week later."""
    job, net, _ = wrapped(made, checkpoints=tmp_path)
    job.keep(meter=Meter())
    says = r"'meter'\['history'\]\[1\] can be in no checkpoint: it holds a .*\.Best; .*add_safe_globals"
    with pytest.raises(NotAccepted, match=says):
        for _ in job.epochs(1):
            for batch in job.loader(DATA):
                job.step(loss_of(net, batch))
    assert job.global_step == 1


def test_a_class_that_the_script_names_is_kept(named: None, made: list[elastic.Job], tmp_path: Path) -> None:
    """As torch.load takes it."""
    job, net, _ = wrapped(made, checkpoints=tmp_path)
    job.keep(meter=Meter())
    for _ in job.epochs(1):
        for batch in job.loader(DATA):
            job.step(loss_of(net, batch))
    job.close()
    found = files.load_newest(tmp_path)
    assert found is not None and found[1]["parts"]["meter"]["history"][1].value == 0.5
