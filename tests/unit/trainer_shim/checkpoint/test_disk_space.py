"""Checkpoints on a disk that is too small for them: nothing is left behind, and the older one gives way."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from made_worlds import made_world
from small_disk import small_disk

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.checkpoint import disk_space, files, sharded
from slurm_elastic.trainer_shim.checkpoint.files import Writer, load_newest, write
from slurm_elastic.trainer_shim.state.packed_tensors import pack

SIZE = 1 << 20


def captured(step: int) -> dict[str, Any]:
    """A capture of one megabyte."""
    weights = torch.full((SIZE // 4,), float(step))
    return {"format": 1, "progress": {"step": step, "samples": step, "finished": False}, "parts": {"Model": weights}}


def steps(directory: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in files.all_of(directory)]


def written(directory: Path, step: int, parts: Any) -> None:
    if not parts:
        write(directory, captured(step))
        return
    tensors: list[torch.Tensor] = []
    skeleton = pack(captured(step), tensors)
    sharded.write(directory, skeleton, tensors, parts)


@pytest.fixture(params=[False, True], ids=["whole", "parts"])
def parts(request: pytest.FixtureRequest) -> Any:
    """The group of ranks that write parts: here of a single one; None: they do not."""
    if not request.param:
        yield None
        return
    with made_world() as world:
        yield world.group


def test_room_for_less_than_three_is_enough(tmp_path: Path, parts: bool) -> None:
    """With room for 2.6 of them each one is written: the older of the two before is removed first."""
    with small_disk(tmp_path / "disk", str(int(2.6 * SIZE))) as disk:
        for step in range(1, 6):
            written(disk.path, step, parts)
            assert steps(disk.path) == [step, step - 1][: 2 if step > 1 else 1]
        assert sorted(path.name for path in disk.path.iterdir()) == ["step-000000000004", "step-000000000005"]


def _rank(rank: int, place: str, said: Any) -> None:
    """One of two ranks that write parts. The second has lost the file system before it knows what to write."""
    store = dist.FileStore(f"{place}/store", 2)

    def lost(*_: Any) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    if rank == 1:
        sharded.FileSystemWriter.prepare_local_plan = lost  # type: ignore[method-assign, assignment]
    with made_world(rank, 2, store=store) as world:
        try:
            written(Path(place) / "checkpoints", 1, parts=world.group)
        except OSError as error:
            said.put((rank, str(error)))


def test_a_rank_without_its_file_system_makes_no_other_wait(tmp_path: Path) -> None:
    """All of them hear of it, and nothing is left behind."""
    (tmp_path / "checkpoints").mkdir()
    spawn = multiprocessing.get_context("spawn")
    said = spawn.Queue()
    ranks = [spawn.Process(target=_rank, args=(rank, str(tmp_path), said)) for rank in range(2)]
    for process in ranks:
        process.start()
    told = sorted(said.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    assert [rank for rank, _ in told] == [0, 1] and all("Stale file handle" in words for _, words in told)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_what_fails_leaves_nothing_behind(tmp_path: Path, parts: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """With room for one and a half, the first one stays, and is the only thing there; the reason is a full disk, not
    torch's words; with room again the next one is written."""
    with small_disk(tmp_path / "disk", str(int(2.6 * SIZE))) as disk:
        disk.fill(but=int(1.5 * SIZE))
        written(disk.path, 1, parts)
        problems: list[str] = []
        writer = Writer(disk.path, lambda saved: None)
        writer.on_failed = problems.append
        writer.put_parts(lambda: written(disk.path, 2, parts))  # type: ignore[func-returns-value]
        assert writer.wait(60)
        assert problems == [writer.problem] == ["the disk is full (No space left on device)"]
        assert "the disk is full" in capsys.readouterr().err
        assert sorted(path.name for path in disk.path.iterdir()) == ["filler", "step-000000000001"]
        disk.empty()
        writer.put_parts(lambda: written(disk.path, 3, parts))  # type: ignore[func-returns-value]
        assert writer.wait(60)
        assert writer.problem == "" and steps(disk.path) == [3, 1]


def test_leftovers_of_a_killed_writer_go_first(tmp_path: Path) -> None:
    """They hold the space that the next checkpoint needs."""
    with small_disk(tmp_path / "disk", str(int(2.6 * SIZE))) as disk:
        written(disk.path, 1, parts=False)
        (disk.path / ".step-000000000002.77.partial").mkdir()
        (disk.path / ".step-000000000002.77.partial" / "state.pt").write_bytes(b"x" * SIZE)
        written(disk.path, 3, parts=False)
        assert sorted(path.name for path in disk.path.iterdir()) == ["step-000000000001", "step-000000000003"]


def test_the_only_good_checkpoint_is_never_given_up(tmp_path: Path) -> None:
    """The newer of two is damaged: the older one is not removed for a third."""
    with small_disk(tmp_path / "disk", str(int(2.6 * SIZE))) as disk:
        written(disk.path, 1, parts=False)
        written(disk.path, 2, parts=False)
        (disk.path / "step-000000000002" / "state.pt").write_bytes(b"x" * SIZE)
        with pytest.raises(OSError, match="No space left"):
            written(disk.path, 3, parts=False)
        found = load_newest(disk.path)
        assert found is not None and found[0].step == 1


def test_missing_room_is_told(tmp_path: Path) -> None:
    """What is kept already counts as room; three have to fit."""
    with small_disk(tmp_path / "disk", str(int(3.5 * SIZE))) as disk:
        assert disk_space.missing(disk.path / "checkpoints", SIZE) == ""
        written(disk.path, 1, parts=False)
        assert disk_space.missing(disk.path, SIZE) == ""
        disk.fill(but=SIZE // 2)
        told = disk_space.missing(disk.path, SIZE)
        assert told.startswith("a checkpoint takes 1.05 MB") and "has room for 1.5 of them; 3 are needed" in told


def test_a_disk_that_does_not_say_its_room_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale handle of a file server, at the moment when the training looks."""

    def stale(path: Path) -> os.statvfs_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "statvfs", stale)
    assert disk_space.missing(tmp_path, SIZE) == ""


def test_a_checkpoint_that_is_skipped_is_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one that has lost its index."""
    for step in (1, 2):
        written(tmp_path, step, parts=False)
    (tmp_path / "step-000000000002" / files.INDEX).unlink()
    found = load_newest(tmp_path)
    assert found is not None and found[0].step == 1
    assert "step-000000000002 is skipped: it has no checkpoint.json" in capsys.readouterr().err


def test_the_words_of_an_error_that_is_no_full_disk_stay() -> None:
    """Anything else is told as it is."""
    assert disk_space.said(TrainingError("damaged")) == "damaged"
    assert disk_space.said(PermissionError(13, "Permission denied")) == "[Errno 13] Permission denied"
