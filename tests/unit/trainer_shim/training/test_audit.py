"""The audit finds every kind of loss; a check that cannot fail would prove nothing."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audited import check

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.training import audit
from slurm_elastic.trainer_shim.training.audit import Recorder, read

Lines = dict[str, list[dict[str, Any]]]


def sound() -> Lines:
    """Two epochs over six samples, in steps of 4 and 2, by two ranks."""
    lines: Lines = {"a": [{"restored_from_step": 0, "generation": 1}], "b": []}
    for step, (epoch, samples) in enumerate([(0, [3, 1, 5, 0]), (0, [2, 4]), (1, [0, 1, 2, 3]), (1, [4, 5])], 1):
        half = len(samples) // 2
        for rank, (worker, own) in enumerate([("a", samples[:half]), ("b", samples[half:])]):
            lines[worker].append(
                {
                    "generation": 1,
                    "step": step,
                    "epoch": epoch,
                    "batch": len(samples),
                    "rank": rank,
                    "size": 2,
                    "indices": own,
                }
            )
    return lines


def written(directory: Path, lines: Lines) -> Path:
    for worker, entries in lines.items():
        recorder = Recorder(str(directory), worker)
        for entry in entries:
            recorder.write(entry)
    return directory


def test_a_sound_record_passes(tmp_path: Path) -> None:
    """Every sample once per epoch, every step from every rank."""
    found = check(written(tmp_path, sound()), samples=6, epochs=2)
    assert found.ok and (found.steps, found.epochs_seen, found.worlds, found.restarts) == (4, 2, 1, 0)


@pytest.mark.parametrize(
    ("harm", "field"),
    [
        (lambda lines: lines["b"][1]["indices"].pop(), "missing"),
        (lambda lines: lines["b"][1]["indices"].append(3), "repeated"),
        (lambda lines: lines["b"].pop(2), "steps_lost"),
        (lambda lines: lines["b"].append({**lines["b"][3], "generation": 2, "rank": 0, "size": 1}), "steps_repeated"),
    ],
)
def test_each_kind_of_loss_is_found(tmp_path: Path, harm: Callable[[Lines], Any], field: str) -> None:
    """One sample gone or trained on twice, one rank's step gone, one step taken in two worlds."""
    lines = sound()
    harm(lines)
    found = check(written(tmp_path, lines), samples=6, epochs=2)
    assert not found.ok and getattr(found, field) > 0


def test_missing_epochs_and_strange_samples_are_found(tmp_path: Path) -> None:
    """An epoch that was never trained, and an index outside the dataset."""
    directory = written(tmp_path, sound())
    assert check(directory, samples=6, epochs=3).missing == 6
    assert not check(directory, samples=5, epochs=2).ok


def test_a_restart_supersedes_what_it_set_back(tmp_path: Path) -> None:
    """Steps beyond the restored one, in older worlds, do not count; repeating them is right."""
    lines = sound()
    lines["c"] = [{"restored_from_step": 2, "generation": 2}]
    for step in (3, 4):
        merged = sorted(index for worker in "ab" for index in _step(lines[worker], step)["indices"])
        lines["c"].append({**_step(lines["a"], step), "generation": 2, "rank": 0, "size": 1, "indices": merged})
    found = check(written(tmp_path, lines), samples=6, epochs=2)
    assert found.ok and found.restarts == 1 and found.worlds == 2
    lines["c"][0]["restored_from_step"] = 3
    assert not check(written(tmp_path / "wrong", lines), samples=6, epochs=2).ok


def test_a_line_torn_by_a_kill_is_left_out(tmp_path: Path) -> None:
    """The half line of a killed worker's last write does not break the check."""
    written(tmp_path, sound())
    with open(tmp_path / "b.jsonl", "a") as file:
        file.write(json.dumps({"generation": 1, "step": 5})[:-4])
    assert check(tmp_path, samples=6, epochs=2).ok


def test_no_record_is_an_error(tmp_path: Path) -> None:
    """An empty directory is not a proof."""
    with pytest.raises(TrainingError, match="no audit record"):
        check(tmp_path, samples=6, epochs=2)


def _step(entries: list[dict[str, Any]], step: int) -> dict[str, Any]:
    return next(entry for entry in entries if entry.get("step") == step)


def test_a_full_disk_ends_no_training_and_is_found_by_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that is not written, or half of it, is missing; those after it are there, and it is told once."""
    lines, write, calls = sound(), os.write, [0]

    def full(file: int, data: bytes) -> int:
        calls[0] += 1
        if calls[0] in (3, 4):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[: len(data) // 2] if calls[0] == 2 else data)

    monkeypatch.setattr(audit.os, "write", full)
    written(tmp_path, lines)
    assert capsys.readouterr().err.count("No space left on device") == 1
    found = check(tmp_path, samples=6, epochs=2)
    assert not found.ok and found.steps_lost == 3
    assert [line["step"] for line in read(tmp_path) if line.get("rank") == 0] == [4]


def test_a_record_that_cannot_be_begun_ends_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its directory cannot be made."""
    (tmp_path / "file").write_text("")
    Recorder(str(tmp_path / "file" / "audit"), "a").write({"step": 1})
    assert "lacks steps from here on (Not a directory)" in capsys.readouterr().err
