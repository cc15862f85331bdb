"""Which processes belong to a sandbox, and that no other is ever killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_until

from slurm_elastic.daemon.sandbox import host

SLEEP = shutil.which("sleep") or "/bin/sleep"


@contextmanager
def sleeper(*command: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended after the test if the test has not done it."""
    child = subprocess.Popen(command or (SLEEP, "300"), env={"PATH": os.environ["PATH"], **env})
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def pids(folder: Path, id: str) -> set[int]:
    return {process.pid for process in host.members(folder, id)}


def test_processes_with_the_id_belong_and_their_children_too(tmp_path: Path) -> None:
    """Found by the id in the environment, and what descends from it even with an environment of its own."""
    script = f"env -i {SLEEP} 300 & echo $!; wait"
    child = subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"], host.ID_VARIABLE: "id1"}
    )
    assert child.stdout is not None
    with child.stdout:
        grandchild = int(child.stdout.readline())
    assert pids(tmp_path, "id1") == {child.pid, grandchild}
    assert host.end_all(tmp_path, "id1") == []
    child.wait()
    assert host.started_at(grandchild) == 0


def test_the_users_own_processes_do_not_belong(tmp_path: Path) -> None:
    """A shell with SLURM_CONF set, salloc's shell, or a pager on a log file are left alone."""
    conf = f"{tmp_path}/slurm.conf"
    (tmp_path / "slurmctld.log").touch()
    with ExitStack() as stack:
        stack.enter_context(sleeper(SLURM_CONF=conf))
        stack.enter_context(sleeper(SLURM_CONF=conf, SLURM_JOB_ID="7"))
        stack.enter_context(sleeper("tail", "-f", f"{tmp_path}/slurmctld.log"))
        stack.enter_context(sleeper(**{host.ID_VARIABLE: "another"}))
        assert pids(tmp_path, "id1") == set()


def test_tasks_of_its_jobs_belong(tmp_path: Path) -> None:
    """A process that a job has detached from itself is known by what slurmd put into its environment."""
    env = {"SLURM_CONF": f"{tmp_path}/slurm.conf", "SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7"}
    with sleeper(**env) as task, sleeper(**{**env, "SLURM_CONF": "/etc/slurm/slurm.conf"}):
        assert pids(tmp_path, "id1") == {task.pid}


@pytest.mark.parametrize("how", ["argument", "directory"])
def test_slurm_programs_that_work_in_its_directory_belong(tmp_path: Path, how: str) -> None:
    """slurmd and slurmstepd write over their environment: they are known by arguments and open files."""
    program = tmp_path / "bin" / "slurmd"
    program.parent.mkdir()
    shutil.copy(os.path.realpath(sys.executable), program)
    inside = tmp_path / "box"
    (inside / "spool").mkdir(parents=True)
    code = "import time; time.sleep(300)"
    command = [str(program), "-c", code, *([f"{inside}/slurm.conf"] if how == "argument" else [])]
    child = subprocess.Popen(
        command, cwd=inside / "spool" if how == "directory" else "/", env={"PYTHONHOME": sys.base_prefix}
    )
    try:
        wait_until(lambda: pids(inside, "id1") == {child.pid}, 10, lambda: pids(inside, "id1"))
        assert pids(tmp_path / "other", "id1") == set()
    finally:
        child.kill()
        child.wait()


def test_a_recycled_pid_is_not_killed() -> None:
    """A process that has the pid of one we knew, but another start time, is not signalled."""
    with sleeper() as stranger:
        known = host.Process(stranger.pid, os.getpid(), host.started_at(stranger.pid), "slurmd")
        host.kill(replace(known, started=known.started - 1))
        assert host.started_at(stranger.pid) == known.started
        host.kill(known)
        wait_until(lambda: host.started_at(stranger.pid) == 0, 10, "the right one is killed")


def test_the_dead_have_no_start_time() -> None:
    """An ended process that nobody has collected yet counts as ended."""
    child = subprocess.Popen(["true"])
    wait_until(lambda: host.started_at(child.pid) == 0, 10, "it is a zombie")
    child.wait()
    assert host.started_at(child.pid) == 0
