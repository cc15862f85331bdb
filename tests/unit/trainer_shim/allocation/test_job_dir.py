"""The job directory: whose it is, and which one a job goes on in."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slurm_elastic.protocol.errors import ConfigError
from slurm_elastic.trainer_shim.allocation import job_dir, start


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
def test_a_job_directory_made_by_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """Job ids can be guessed: its record is not read, another directory is taken, and one that is asked for refused."""
    env = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "a"}
    planted = tmp_path / ".selastic" / "7"
    planted.mkdir(parents=True)
    job_dir.write(planted, job_dir.Run(("train.py",), "a", 900))
    os.chown(planted, 65534, 65534)
    assert job_dir.choose(env, ("train.py",), None, str(tmp_path)).name == "7-2"
    with pytest.raises(ConfigError, match="belongs to uid 65534; accepted: --job-dir that you alone can write to"):
        job_dir.create(planted)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2775)
    job_dir.create(tmp_path / "shared")  # what a umask gave to a group is taken back
    assert (tmp_path / "shared").stat().st_mode & 0o7777 == 0o2755


def test_a_job_directory_whose_mode_cannot_be_set_is_taken_where_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal says by which variable, which agents and workers are told, too."""
    tmp_path.chmod(0o777)
    monkeypatch.setattr(Path, "chmod", lambda path, mode: None)
    with pytest.raises(ConfigError, match=f"mode 777.*that you alone can write to.*SELASTIC_TRUSTED_DIRS={tmp_path}, "):
        job_dir.create(tmp_path)
    monkeypatch.setenv("SELASTIC_TRUSTED_DIRS", str(tmp_path))
    job_dir.create(tmp_path)
    assert (tmp_path / "checkpoints").is_dir()
    assert start._agent_env(dict(os.environ), in_slurm=True)["SELASTIC_TRUSTED_DIRS"] == str(tmp_path)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
@pytest.mark.parametrize("before", [None, 0o775, 0o777])
def test_what_lies_in_a_job_directory_is_its_owners_alone(tmp_path: Path, umask: int, before: int | None) -> None:
    """Whatever the umask, and what an earlier part of the run left open: torch loads code from there."""
    names = ("logs", "checkpoints", "compiled")
    for name in names if before is not None else ():
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(before or 0)
    own = os.umask(umask)
    try:
        job_dir.create(tmp_path)
        job_dir.write(tmp_path, job_dir.Run(("train.py",), "a"))
    finally:
        os.umask(own)
    assert not (tmp_path / job_dir.RECORD).stat().st_mode & 0o022
    assert [(tmp_path / name).stat().st_mode & 0o7777 for name in names] == [0o700] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
@pytest.mark.parametrize("name", ["logs", "checkpoints", "compiled"])
@pytest.mark.parametrize("linked", [False, True])
def test_what_somebody_else_has_put_into_a_job_directory_is_refused(tmp_path: Path, name: str, linked: bool) -> None:
    """A folder of another user's, or a link to one's own."""
    place = tmp_path / "job"
    place.mkdir()
    if linked:
        (tmp_path / "elsewhere").mkdir()
        (place / name).symlink_to(tmp_path / "elsewhere")
    else:
        (place / name).mkdir()
        os.chown(place / name, 65534, 65534)
    why = "is a symbolic link" if linked else "belongs to uid 65534"
    with pytest.raises(ConfigError, match=f"{name} {why}; accepted: a directory of your own, or none"):
        job_dir.create(place)


def test_job_directory_of_a_requeued_job_is_found_again(tmp_path: Path) -> None:
    """Same job, same command: same directory. Another command or another cluster: one of its own."""
    env = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "a"}
    first = job_dir.choose(env, ("train.py",), None, str(tmp_path))
    assert first == tmp_path / ".selastic" / "7"
    job_dir.create(first)
    job_dir.write(first, job_dir.Run(("train.py",), "a", 3))
    assert job_dir.choose(env, ("train.py",), None, str(tmp_path)) == first
    assert job_dir.choose(env, ("eval.py",), None, str(tmp_path)).name == "7-2"
    assert job_dir.choose({**env, "SLURM_CLUSTER_NAME": "b"}, ("train.py",), None, str(tmp_path)).name == "7-2"
    assert job_dir.read(first) == job_dir.Run(("train.py",), "a", 3)


def test_a_directory_of_an_earlier_slurms_job_of_this_number_is_left_alone(tmp_path: Path) -> None:
    """Ids begin anew with a new Slurm, the same command of the same user would go on with a training of last year. What
    tells them apart, the submit time, changes when Slurm puts a job back: then the last directory is the job's."""
    env, command = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "a"}, ("train.py",)

    def chosen(submitted: str, restarts: int = 0) -> str:
        return job_dir.choose(env, command, None, str(tmp_path), submitted, restarts).name

    def write(name: str, submitted: str) -> Path:
        place = tmp_path / ".selastic" / name
        job_dir.create(place)
        job_dir.write(place, job_dir.Run(command, "a", 3, submitted))
        return place

    write("7", "2025-01-01T00:00:00")
    assert chosen("2026-11-26T10:00:00") == "7-2"
    write("7-2", "2026-11-26T10:00:00")
    assert chosen("2026-11-26T10:00:00") == "7-2"  # its supervisor was killed, or a second command like the first
    assert chosen("2026-11-26T12:00:00", restarts=1) == "7-2"
    assert chosen("2026-11-26T12:00:00") == "7-3"
    older = write("7-3", "")  # by a build that noted no time
    assert chosen(time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 60))) == "7-3"
    os.utime(older / job_dir.RECORD, (0, 0))
    assert chosen("2026-11-26T12:00:00") == "7-4"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
def test_what_is_kept_of_a_program_is_of_this_run_and_of_this_user(tmp_path: Path) -> None:
    """A requeued job finds it again; not a new job in the same directory, nor a training that begins anew."""
    kept = tmp_path / "program" / "0-train.py"
    for run, fresh, owner, stays in (
        ("a 7", False, 0, True),
        ("a 8", False, 0, False),
        ("a 8", True, 0, False),
        ("a 8", False, 65534, False),
    ):
        kept.parent.mkdir(exist_ok=True)
        if run == "a 7":
            job_dir.begin_program(tmp_path, run, fresh=True)
        kept.write_text("1")
        os.chown(kept, owner, owner)
        job_dir.begin_program(tmp_path, run, fresh)
        assert kept.exists() is stays, (run, fresh, owner)
        assert kept.parent.stat().st_mode & 0o777 == 0o700


def test_newest_step_counts_complete_checkpoints_only(tmp_path: Path) -> None:
    """A directory without its index is a write that was cut short."""
    assert job_dir.newest_step(tmp_path) is None
    for step, complete in ((5, True), (9, True), (12, False)):
        place = tmp_path / "checkpoints" / f"step-{step:012d}"
        place.mkdir(parents=True)
        if complete:
            (place / "checkpoint.json").write_text("{}")
    assert job_dir.newest_step(tmp_path) == 9


def test_job_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """One sentence names the directory and the way out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--job-dir"):
        job_dir.create(tmp_path / "file" / "x")
