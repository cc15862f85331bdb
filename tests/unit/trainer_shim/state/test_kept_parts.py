"""What survives, and how it lies on disk."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.checkpoint import files
from slurm_elastic.trainer_shim.checkpoint.files import Writer, load_newest, write
from slurm_elastic.trainer_shim.state.kept_parts import State
from slurm_elastic.trainer_shim.state.packed_tensors import pack, unpack
from slurm_elastic.trainer_shim.state.progress import TrainingProgress


def trained(steps: int = 3) -> tuple[State, torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(steps)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
    state = State()
    state.keep("Model", model)
    state.keep("Optimizer0", optimizer)
    state.progress = TrainingProgress(epoch=1, cursor=40, step=steps, samples=steps * 10, batch=10, once={0: 0.5})
    return state, model, optimizer


def flat(value: Any) -> list[Any]:
    tensors: list[torch.Tensor] = []
    skeleton = pack(value, tensors)
    return [repr(skeleton), *[tensor.tolist() for tensor in tensors]]


def pointers(value: Any) -> set[int]:
    tensors: list[torch.Tensor] = []
    pack(value, tensors)
    return {tensor.data_ptr() for tensor in tensors}


def test_pack_and_unpack_are_inverse() -> None:
    """Any nesting of dicts, lists and tuples keeps its form, tensors apart."""
    value = {"a": [torch.ones(2), (1, torch.zeros(3, dtype=torch.int64))], "b": {"c": None, 3: "x"}}
    tensors: list[torch.Tensor] = []
    back = unpack(pack(value, tensors), tensors)
    assert len(tensors) == 2
    assert flat(back) == flat(value)


def test_a_snapshot_is_not_changed_by_later_steps() -> None:
    """The copy taken at a boundary stays what it was while training goes on."""
    state, model, optimizer = trained()
    snapshot = state.snapshot()
    before = flat(snapshot)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    state.progress.step += 1
    assert flat(snapshot) == before
    assert flat(state.capture()) != before


def test_a_snapshot_restores_everything_elsewhere() -> None:
    """Another process's fresh model and optimizer end up equal, empty optimizer state included."""
    for steps in (0, 3):
        state, _, _ = trained(steps)
        other, _, _ = trained(1 if steps == 0 else 0)
        if steps == 0:
            other, _, _ = trained(0)
        other.restore(state.snapshot())
        assert flat(other.capture()) == flat(state.capture())


def test_what_does_not_fit_is_named() -> None:
    """Another model, or another set of kept parts, is refused by name."""
    state, _, _ = trained()
    other = State()
    other.keep("Model", torch.nn.Linear(2, 2))
    with pytest.raises(TrainingError, match="Optimizer0"):
        other.restore(state.snapshot())
    other.keep("Optimizer0", torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0))
    with pytest.raises(TrainingError, match="'Model' does not fit"):
        other.restore(state.snapshot())


def test_only_what_can_be_saved_is_kept() -> None:
    """keep() refuses an object without state_dict, and a name given twice."""
    state = State()
    with pytest.raises(TrainingError, match="without state_dict"):
        state.keep("counter", 3)
    state.keep("model", torch.nn.Linear(1, 1))
    with pytest.raises(TrainingError, match="kept already"):
        state.keep("model", torch.nn.Linear(1, 1))


def test_checkpoints_come_back_and_the_last_two_are_kept(tmp_path: Path) -> None:
    """The newest is loaded with everything in it; only two remain on disk and nothing unfinished."""
    for steps in (1, 2, 3):
        state, _, _ = trained(steps)
        saved = write(tmp_path, state.snapshot())
        assert (saved.step, saved.samples) == (steps, steps * 10)
    assert [path.name for path in files.all_of(tmp_path)] == ["step-000000000003", "step-000000000002"]
    assert len(list(tmp_path.iterdir())) == 2
    found = load_newest(tmp_path)
    assert found is not None
    assert flat(found[1]) == flat(state.capture())


@pytest.mark.parametrize("harm", ["flip", "truncate", "index", "missing"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_older(tmp_path: Path, harm: str) -> None:
    """One flipped byte, a short file, a torn index or a missing file: the one before is used, the damaged set aside."""
    for steps in (1, 2):
        write(tmp_path, trained(steps)[0].snapshot())
    newest = tmp_path / "step-000000000002"
    content = bytearray((newest / "state.pt").read_bytes())
    if harm == "flip":
        content[len(content) // 2] ^= 1
        (newest / "state.pt").write_bytes(content)
    elif harm == "truncate":
        (newest / "state.pt").write_bytes(content[:-10])
    elif harm == "index":
        (newest / "checkpoint.json").write_text('{"format": 1')
    else:
        (newest / "state.pt").unlink()
    found = load_newest(tmp_path)
    assert found is not None and found[0].step == 1
    write(tmp_path, trained(3)[0].snapshot())
    assert [path.name[-1] for path in files.all_of(tmp_path)] == ["3", "1"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
@pytest.mark.parametrize("way", ["all of it", "one file", "an open directory"])
def test_a_checkpoint_that_somebody_else_can_write_is_not_loaded(tmp_path: Path, way: str) -> None:
    """The one before is used, and without one the job says why it does not start."""
    write(tmp_path, trained(1)[0].snapshot())
    planted = write(tmp_path, trained(2)[0].snapshot()).path
    if way == "an open directory":
        planted.chmod(0o777)
    else:
        for path in [planted / "state.pt", *([planted] if way == "all of it" else [])]:
            os.chown(path, 65534, 65534)
    found = load_newest(tmp_path)
    assert found is not None and found[0].step == 1
    (tmp_path / "step-000000000001").chmod(0o777)
    with pytest.raises(TrainingError, match=r"can be written by others \(mode 777\)"):
        load_newest(tmp_path)


def test_a_groups_umask_does_not_open_checkpoints(tmp_path: Path) -> None:
    """With umask 002, as many sites have it, what is written can be loaded all the same."""
    before = os.umask(0o002)
    try:
        saved = write(tmp_path, trained(1)[0].snapshot())
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o022) for path in (saved.path, *saved.path.iterdir())} == {"0o0"}
    assert load_newest(tmp_path) is not None


def test_no_readable_checkpoint_is_an_error_not_a_new_start(tmp_path: Path) -> None:
    """With checkpoints that all fail, the work done is not thrown away silently; without any, None."""
    assert load_newest(tmp_path) is None
    assert load_newest(tmp_path / "absent") is None
    write(tmp_path, trained(1)[0].snapshot())
    (tmp_path / "step-000000000001" / "state.pt").write_bytes(b"")
    with pytest.raises(TrainingError, match="remove them to start over"):
        load_newest(tmp_path)


def test_a_crash_while_writing_leaves_the_older_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped at any call that touches the disk, the directory still loads the complete checkpoint before."""
    write(tmp_path, trained(1)[0].snapshot())
    for function in ("save", "fsync", "rename"):
        with monkeypatch.context() as patch:

            def crash(*_: Any, **__: Any) -> None:
                raise KeyboardInterrupt

            target = {"save": torch, "fsync": files.os, "rename": Path}[function]
            patch.setattr(target, function, crash)
            with pytest.raises(KeyboardInterrupt):
                write(tmp_path, trained(2)[0].snapshot())
        found = load_newest(tmp_path)
        assert found is not None and found[0].step == 1, function
    assert write(tmp_path, trained(2)[0].snapshot()).step == 2


def test_the_same_step_may_be_written_again(tmp_path: Path) -> None:
    """The end of the training marks its last checkpoint as finished, under the same name."""
    state, _, _ = trained(2)
    write(tmp_path, state.snapshot())
    state.progress.finished = True
    write(tmp_path, state.snapshot())
    found = load_newest(tmp_path)
    assert found is not None and found[1]["progress"]["finished"]


def test_the_writer_keeps_the_newest_and_outlives_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While one checkpoint is written a newer replaces one that waits; a failed write is told and the next works."""
    saved: list[int] = []
    go, begun = threading.Event(), threading.Event()
    real = files.write

    def slow(directory: Path, captured: dict[str, Any], safe: Any) -> Any:
        begun.set()
        assert go.wait(30)
        if captured["progress"]["step"] == 3:
            raise OSError(28, "No space left on device")
        return real(directory, captured, safe)

    monkeypatch.setattr(files, "write", slow)
    writer = Writer(tmp_path, lambda done: saved.append(done.step))
    writer.put(trained(1)[0].snapshot())
    assert begun.wait(30) and writer.busy
    writer.put(trained(2)[0].snapshot())
    writer.put(trained(3)[0].snapshot())
    go.set()
    assert writer.wait(30)
    assert saved == [1] and "No space" in capsys.readouterr().err
    writer.put(trained(4)[0].snapshot())
    assert writer.wait(30)
    assert saved == [1, 4] and not capsys.readouterr().err


def test_the_index_names_step_and_digests(tmp_path: Path) -> None:
    """What a supervisor reads without torch: step, samples, finished, and a digest for each file."""
    saved = write(tmp_path, trained(2)[0].snapshot())
    index = json.loads((saved.path / "checkpoint.json").read_text())
    assert (index["step"], index["samples"], index["finished"]) == (2, 20, False)
    assert set(index["files"]) == {"state.pt"}
    shutil.rmtree(saved.path)


def test_memory_of_written_snapshots_is_used_again(tmp_path: Path) -> None:
    """The next snapshot lies where the last one lay, with the new values; what is still being written is left alone."""
    state, model, optimizer = trained()
    first = state.snapshot()
    assert first is not None
    waiting = state.snapshot()
    places = pointers(first)
    before = flat(waiting)
    state.recycle(first)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    second = state.snapshot()
    assert second is not None
    assert pointers(second) == places and not pointers(waiting) & places
    assert flat(second) == flat(state.capture())
    assert flat(waiting) == before


def test_optimizer_state_lies_in_memory_as_its_parameters_do() -> None:
    """channels_last weights: a fused optimizer goes through weight and state in the order of memory, so state that was
    copied in another order would step other elements than it belongs to."""

    def made() -> tuple[State, torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        state = State()
        state.keep("Model", model)
        state.keep("Optimizer0", optimizer)
        return state, model, optimizer

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        optimizer.zero_grad()
        x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
        model(x.to(memory_format=torch.channels_last)).square().sum().backward()
        optimizer.step()

    state, model, optimizer = made()
    step(model, optimizer, 1)
    other, again, restored = made()
    other.restore(state.snapshot())
    assert restored.state[again.weight]["exp_avg"].stride() == again.weight.stride()
    for network, stepped in ((model, optimizer), (again, restored)):
        step(network, stepped, 2)
    assert torch.equal(model.weight, again.weight)


@pytest.mark.parametrize(
    ("numel", "pinned"),
    [(2048 * 2048, True), (4096 * 3000, True), (4096 * 2100, False), (1 << 40, False), (0, False)],
)
def test_a_gpus_state_is_copied_into_pinned_memory(monkeypatch: pytest.MonkeyPatch, numel: int, pinned: bool) -> None:
    """Where torch, which rounds up to powers of two, does not take half as much again, and the host has plenty."""
    asked: list[bool] = []
    monkeypatch.setattr(torch, "empty", lambda shape, pin_memory=False, **_: asked.append(pin_memory))
    like: Any = SimpleNamespace(
        shape=torch.Size([numel]), dtype=torch.float32, is_cuda=True, numel=lambda: numel, element_size=lambda: 4
    )
    State()._place(like)
    assert asked == [pinned]


def test_a_host_that_pins_no_more_keeps_snapshots_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of locked memory is no error, and is met once only."""
    asked: list[bool] = []

    def empty(shape: torch.Size, pin_memory: bool = False, **_: object) -> None:
        asked.append(pin_memory)
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty", empty)
    like: Any = SimpleNamespace(
        shape=torch.Size([64]), dtype=torch.float32, is_cuda=True, numel=lambda: 64, element_size=lambda: 4
    )
    state = State()
    state._place(like)
    state._place(like)
    assert asked == [True, False, False]


def test_what_is_hashed_beside_writing_is_what_is_on_disk(tmp_path: Path) -> None:
    """Large pieces and small ones, in their order."""
    entry = files.dump(
        tmp_path / "state.pt", [torch.randn(3), torch.randn(1 << 20), torch.randn(5), torch.randn(1 << 19)]
    )
    assert entry == files.digest_of(tmp_path / "state.pt")
