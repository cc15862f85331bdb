"""`selastic run` while disks are full, read-only or do not answer: the training goes on."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
from broken_disk import BrokenDisk
from local_run import Start
from small_disk import small_disk
from training import TRAIN, on

from slurm_elastic.trainer_shim.supervisor.state_machine.job_end import UNSAVED_CODE

TALKING = TRAIN.replace(
    "        time.sleep(", "        print('step', job.global_step, flush=True)\n        time.sleep("
)
"""Every rank prints a line in every step."""


def test_output_that_cannot_be_written_ends_nothing(start: Start, tmp_path: Path) -> None:
    """The job's own output on a full disk: every sample is trained on; with room again it says what is missing."""
    (tmp_path / "train.py").write_text(TALKING)
    with small_disk(tmp_path / "disk", "1m") as disk:
        disk.fill()
        run = start("--nproc 2", 1600, 1, 0.05, out="disk/out.txt")
        run.wait_for(lambda: any(report.step > 3 for report in run.daemon.reports))
        assert run.text() == ""
        disk.empty()
        run.says("could not be written here (No space left on device)")
        run.says("step ")
        run.finish()
        assert "trained 1600 samples" in run.text()


def test_a_job_directory_that_takes_no_new_file_stops_no_resize(start: Start, tmp_path: Path) -> None:
    """A companion joins though neither the generation can be recorded nor a log be opened, as in a directory that went
    read-only or stale; its log says what is missing when it can be opened."""
    (tmp_path / "train.py").write_text(TALKING)
    run = start("--nproc 1", 3200, 1, 0.05)
    base = run.base()
    (run.job_dir / "logs").rename(run.job_dir / "away")
    (run.job_dir / "logs").touch()
    (run.job_dir / ".run.json.partial").mkdir()
    assert [piece.gpus for piece in run.resize(base, on(), steps=0).pieces] == [1, 1]
    run.says("generation 2 could not be recorded")
    run.wait_for(lambda: any(report.gpus == 2 and report.step > 3 for report in run.daemon.reports))
    (run.job_dir / "logs").unlink()
    log = run.job_dir / "logs" / "1.local1-0.0.log"
    run.wait_for(lambda: log.is_file() and "could not be written here (File exists)" in log.read_text())
    run.finish()
    assert "starting again" not in run.text()


def test_a_disk_that_does_not_answer_holds_up_no_resize(start: Start, tmp_path: Path) -> None:
    """The record and the logs are pipes that nobody reads, so opening them takes for ever: a companion joins all the
    same, and the end comes."""
    (tmp_path / "train.py").write_text(TALKING)
    run = start("--nproc 1", 3200, 1, 0.05)
    base = run.base()
    for name in (".run.json.partial", "logs/agents-1.log", "logs/1.local1-0.0.log"):
        os.mkfifo(run.job_dir / name)
    assert [piece.gpus for piece in run.resize(base, on(), steps=0).pieces] == [1, 1]
    run.finish()


def test_a_last_checkpoint_that_cannot_be_written_is_no_success(start: Start, tmp_path: Path) -> None:
    """The disk is full when the training ends: the script's end runs, the last line says where a rerun begins, the exit
    code is not 0; the rerun with room goes on there."""
    (tmp_path / "train.py").write_text(TRAIN + "print('the end of the script')\n")
    with small_disk(tmp_path / "job", "4m") as disk:
        run = start("--nproc 2", 3200, 1, 0.05, alone=True)
        run.says("generation 1: 2 workers")
        os.kill(run.supervisor(), signal.SIGUSR1)
        step = run.wait_for(run.saved)
        disk.fill()
        (tmp_path / "go").touch()
        assert run.wait() == UNSAVED_CODE, run.text()
        assert "the end of the script" in run.text() and "starting again" not in run.text()
        assert "could not be written: the disk is full" in run.text().splitlines()[-1], run.text()
        assert run.text().splitlines()[-1].endswith(f"run again, this begins at the checkpoint of step {step}")
        disk.empty()
        again = start("--nproc 2", 3200, 1, 0.05, alone=True)
        again.finish()
        assert f"at step {step}" in again.text()


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ESTALE], ids=errno.errorcode.get)
def test_a_quota_or_a_stale_handle_costs_checkpoints_and_lines_and_nothing_else(
    start: Start, tmp_path: Path, number: int
) -> None:
    """The job directory and the job's output are on a file server that refuses what is written: the training goes on,
    through a resize too, says why there is no checkpoint, and writes one when it can again."""
    (tmp_path / "train.py").write_text(TALKING)
    disk = BrokenDisk(tmp_path / "job", tmp_path)
    run = start("--nproc 2 --checkpoint-every 2", 6400, 1, 0.05, env=disk.env, out="job/out.txt")
    base = run.base()
    run.says("generation 1: 2 workers")
    disk.breaks(number)
    kept = run.saved()
    resized = run.resize(base, batch=48, steps=0)
    run.wait_for(lambda: any(report.step > resized.step + 50 for report in run.daemon.reports), 90)
    assert run.saved() <= kept
    disk.breaks(0)
    before = run.saved()
    run.says(f"could not be written here ({os.strerror(number)})")
    run.wait_for(lambda: run.saved() > before)
    run.finish()
    assert "starting again" not in run.text()
    logs = "".join(path.read_text() for path in run.job_dir.glob("logs/*.log"))
    assert f"could not be written here ({os.strerror(number)})" in logs
    assert not list(run.job_dir.glob("checkpoints/.step-*"))
