"""What checkpoints may hold; what is planted in one runs nothing, and what could not be loaded is not written."""

from __future__ import annotations

import collections
import contextlib
import datetime
import io
import json
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_worlds import made_world
from torch import serialization
from torch.distributed.checkpoint import filesystem, metadata

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.checkpoint import contents, files, sharded
from slurm_elastic.trainer_shim.checkpoint.files import load_newest, write
from slurm_elastic.trainer_shim.state.packed_tensors import pack

Point = collections.namedtuple("Point", "x y")
PLAIN = {
    "counts": [1, -(1 << 200), 2.5, True, None, "\u00fc", b"\x00\xff", b"", bytearray(b"a"), 1j],
    ("a", 1): ({1, 2}, frozenset({"x"}), torch.Size([2, 3]), torch.bfloat16, torch.device("cpu")),
    "numpy": [numpy.float64(0.5), numpy.int32(3), numpy.bool_(True), numpy.datetime64("2026-01-01")],
    "random": random.getstate(),
    "ordered": collections.OrderedDict(a=1),
}
ARRAYS = {
    "float": numpy.arange(6.0).reshape(2, 3),
    "names": numpy.array(["a", "bc"]),
    "pairs": numpy.zeros(2, dtype=[("a", "f4"), ("b", "i8")]),
    "numpy": numpy.random.get_state()[1],
    "torch": torch.get_rng_state(),
    "empty": numpy.zeros(0, dtype=numpy.uint8),
}


class Planted:
    """Unpickled, it runs what whoever wrote it wants."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def captured(**parts: Any) -> dict[str, Any]:
    return {"format": 1, "progress": {"step": 1, "samples": 1, "finished": False, "once": {}}, "parts": parts}


@pytest.fixture
def group() -> Iterator[Any]:
    with made_world() as world:
        yield world.group


def in_parts(directory: Path, group: Any, **parts: Any) -> Path:
    tensors: list[torch.Tensor] = []
    skeleton = pack(captured(**parts), tensors)
    saved = sharded.write(directory, skeleton, tensors, group)
    assert saved is not None
    return saved.path


def believed(path: Path, name: str) -> None:
    """The index has the digest of what was planted: its author can compute it too."""
    index = json.loads((path / files.INDEX).read_text())
    index["files"][name] = files.digest_of(path / name)
    (path / files.INDEX).write_text(json.dumps(index))


def test_plain_values_tensors_and_numpys_come_back(tmp_path: Path) -> None:
    """Each of its own type."""
    write(tmp_path, captured(plain=PLAIN, arrays=ARRAYS))
    found = load_newest(tmp_path)
    assert found is not None
    parts = found[1]["parts"]
    assert repr(parts["plain"]) == repr(PLAIN)
    for name, array in ARRAYS.items():
        assert type(parts["arrays"][name]) is type(array) and parts["arrays"][name].dtype == array.dtype
        assert parts["arrays"][name].tolist() == array.tolist(), name


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"best": [{"at": datetime.date(2026, 1, 1)}]}, "a datetime.date at ['best'][0]['at']"),
        ({"place": Path("x")}, "Path at ['place']"),
        ({Path("x"): 1}, "a pathlib"),
        ({"kind": torch.nn.ReLU}, "a torch.nn.modules.activation.ReLU at ['kind']"),
        ({"call": lambda: 0}, "a builtins.function at ['call']"),
        ({"point": [Point(1, 2)]}, "test_contents.Point at ['point'][0]"),
        ({"objects": numpy.array([Path("x")])}, "a numpy.ndarray at ['objects']"),
    ],
)
def test_what_could_not_be_loaded_is_not_written(tmp_path: Path, group: Any, value: Any, said: str) -> None:
    """The first save says which object and which type, whole or in parts, and nothing is on disk."""
    for save in (lambda: write(tmp_path, captured(tracker=value)), lambda: in_parts(tmp_path, group, tracker=value)):
        with pytest.raises(TrainingError, match=r"the state of 'tracker' has .*safe_globals") as refused:
            save()
        assert said in str(refused.value)
        assert not list(tmp_path.iterdir())


def test_a_type_that_the_script_names_is_written_and_loaded(tmp_path: Path) -> None:
    """By a job that names it; one that does not is told its name, and what it may do."""
    safe = [datetime.date, Point]
    value = {"at": datetime.date(2026, 1, 1), "point": Point(1, 2)}
    write(tmp_path, captured(tracker=value), safe)
    found = load_newest(tmp_path, safe)
    assert found is not None and found[1]["parts"]["tracker"] == value
    with pytest.raises(contents.NotAccepted, match=r"state\.pt holds a \S+(date|Point); accepted: .*safe_globals"):
        load_newest(tmp_path)
    assert (tmp_path / "step-000000000001" / "state.pt").exists(), "it may be the job's own"


def test_what_the_process_takes_for_safe_stays_its_own(tmp_path: Path) -> None:
    """The script's own torch.load() accepts before and after what it accepted; a load beside it changes nothing."""
    serialization.add_safe_globals([datetime.date])
    before = set(serialization.get_safe_globals())
    try:
        write(tmp_path, captured(tracker={"at": datetime.date(2026, 1, 1)}), [Point])
        assert load_newest(tmp_path, [Point]) is not None
        assert set(serialization.get_safe_globals()) == before and Point not in before
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals([*before - {datetime.date}])


def test_a_planted_state_runs_nothing(tmp_path: Path) -> None:
    """Whatever of torch's formats it is in, and however well its index fits it."""
    path = write(tmp_path, captured(part=1)).path
    marker = tmp_path / "marker"
    for zipped in (True, False):
        torch.save({"x": Planted(marker)}, path / files.STATE, _use_new_zipfile_serialization=zipped)
        believed(path, files.STATE)
        with pytest.raises(contents.NotAccepted, match=files.STATE):
            load_newest(tmp_path)
        assert not marker.exists()
    torch.load(path / files.STATE, weights_only=False)
    assert marker.exists(), "what the test plants does what it is meant to"


@pytest.mark.parametrize("planted", ["index", "bytes in the index", "tensors"])
def test_a_planted_checkpoint_in_parts_runs_nothing(tmp_path: Path, group: Any, planted: str) -> None:
    """In torch's own index, in what it would unpickle because that says so, and in a file of tensors."""
    path, marker = in_parts(tmp_path, group, Model={"w": torch.arange(4.0)}), tmp_path / "marker"
    [data] = path.glob("__0_*")
    evil = path / "evil"
    torch.save(Planted(marker), evil)
    name = ".metadata"
    if planted == "index":
        (path / name).write_bytes(pickle.dumps(Planted(marker)))
    elif planted == "tensors":
        data.write_bytes(evil.read_bytes())
        name = data.name
    else:
        where = metadata.MetadataIndex("0")
        place = filesystem._StorageInfo(data.name, 0, evil.stat().st_size)
        data.write_bytes(evil.read_bytes())
        forged = metadata.Metadata({"0": metadata.BytesStorageMetadata()}, storage_data={where: place})
        (path / name).write_bytes(pickle.dumps(forged))
        believed(path, data.name)
    if planted == "tensors":
        index = pickle.loads((path / ".metadata").read_bytes())
        for place in index.storage_data.values():
            place.offset, place.length = 0, evil.stat().st_size
        (path / ".metadata").write_bytes(pickle.dumps(index))
        believed(path, ".metadata")
    believed(path, name)
    found = load_newest(tmp_path)
    assert found is not None
    for read_by in (None, group):
        with pytest.raises(contents.NotAccepted, match="remove"):
            sharded.read(path, found[1], None, read_by)
    assert not marker.exists()
    torch.load(evil, weights_only=False)
    assert marker.exists(), "what the test plants does what it is meant to"


def test_a_checkpoint_that_torch_itself_has_written_is_read(tmp_path: Path, group: Any) -> None:
    """As versions before this one wrote them; and torch reads what this one writes."""
    weights = torch.arange(12.0).reshape(3, 4)
    path = in_parts(tmp_path, group, Model={"w": weights})
    into = {"0": torch.zeros(3, 4)}
    torch.distributed.checkpoint.load(into, checkpoint_id=path)
    assert torch.equal(into["0"], weights)
    for old in [*path.glob("__0_*"), path / ".metadata"]:
        old.unlink()
    torch.distributed.checkpoint.save({"0": weights + 1}, checkpoint_id=path)
    for old in [*path.glob("__0_*"), path / ".metadata"]:
        believed(path, old.name)
    found = load_newest(tmp_path)
    assert found is not None
    assert torch.equal(sharded.read(path, found[1], None, group)["parts"]["Model"]["w"], weights + 1)


def files_with(marker: Path) -> tuple[bytes, bytes, list[bytes]]:
    """A state, an index of parts, and pickles that would make the marker, or a library's object, if they were run."""
    state, index = io.BytesIO(), metadata.Metadata({}, storage_data={})
    torch.save(captured(plain=PLAIN, arrays=ARRAYS), state)
    spliced = [pickle.dumps(Planted(marker), protocol) for protocol in range(6)]
    spliced += [
        b"ccodecs\nencode\n(V\nVutf-8\ntR.",
        b"cbuiltins\neval\n(V1\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    ]
    return state.getvalue(), pickle.dumps(index), spliced


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_the_files_hold_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes changed, cut, or put in: an error of one of the kinds that a restart takes for a damaged checkpoint."""
    marker = tmp_path / "marker"
    state, index, spliced = files_with(marker)
    of_state = data.draw(st.booleans())
    whole = bytearray(state if of_state else index)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(whole) - 1)))
        put = data.draw(st.binary(max_size=8) | st.sampled_from(spliced))
        whole[at : at + data.draw(st.sampled_from([0, 1, len(put)]))] = put
    if data.draw(st.booleans()):
        del whole[data.draw(st.integers(0, len(whole))) :]
    read: Any = contents.load if of_state else contents.index_of_parts
    with contextlib.suppress(TrainingError, OSError, MemoryError):
        read(io.BytesIO(bytes(whole)), Path("state.pt"))
    assert not marker.exists()
