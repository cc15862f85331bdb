"""The private Slurm runs jobs as a real cluster does, and leaves nothing behind however it ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from own_sandbox import OwnSandbox
from sandbox_command import NAMESPACE, SUPPORT, sandbox_command
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec, host, registry
from slurm_elastic.protocol.errors import SandboxError

SMALL = SandboxSpec(nodes=2, gpus_per_node=2)


def nothing_left_of(entry: registry.Entry) -> bool:
    """Neither process nor directory nor entry."""
    return (
        not host.members(Path(entry.dir), entry.id)
        and not Path(entry.dir).exists()
        and registry.find(entry.name) is None
    )


def test_every_node_is_idle_once_up_returns(sandbox: Sandbox, record_property: Callable[[str, object], None]) -> None:
    """`up` returns, in under 20 s, a cluster that can take jobs at once, with all its daemons alive."""
    began = time.monotonic()
    with OwnSandbox.up(SandboxSpec()) as other:
        taken = time.monotonic() - began
        record_property("seconds_until_ready", round(taken, 1))
        assert taken < 20
        status = other.status()
        assert status.ready
        assert set(status.nodes) == {f"n{i}" for i in range(1, 9)}
        assert set(status.daemons) >= {"munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd-n8"}


def test_batch_job_sees_its_gpus(empty_sandbox: Sandbox, tmp_path: Path) -> None:
    """A job that asks for two GPUs gets CUDA_VISIBLE_DEVICES with two of them, as on a real GPU node."""
    out = tmp_path / "out"
    empty_sandbox.run(
        ["sbatch", "--wait", "--gres=gpu:2", f"--output={out}", "--wrap", "echo gpus=$CUDA_VISIBLE_DEVICES"]
    )
    assert out.read_text() == "gpus=0,1\n"


def test_jobs_share_a_node_and_its_gpus(empty_sandbox: Sandbox, submit: Callable[..., int]) -> None:
    """Four one-GPU jobs run on one node side by side, each with a GPU of its own."""
    jobs = [submit("--gres=gpu:1", "-w", "n3") for _ in range(4)]
    wait_until(
        lambda: len(empty_sandbox.run(["squeue", "-h", "-t", "R", "-w", "n3", "-o", "%i"]).stdout.split()) == len(jobs),
        30,
        lambda: empty_sandbox.run(["squeue"]).stdout,
    )


def test_accounting_records_jobs_of_both_users(empty_sandbox: Sandbox) -> None:
    """sacct knows a job of an ordinary user, under the account made for tests."""
    job = empty_sandbox.run(
        ["sbatch", "--parsable", "--wait", "--output=/dev/null", "--wrap", "true"], user="games"
    ).stdout.strip()
    command = ["sacct", "-X", "-n", "-P", "-j", job, "-o", "user,account,state"]
    wait_until(
        lambda: empty_sandbox.run(command).stdout.strip() == "games|research|COMPLETED",
        60,
        lambda: empty_sandbox.run(command).stdout,
    )


def test_two_side_by_side_do_not_meet(sandbox: Sandbox) -> None:
    """Two sandboxes have different ports and see only their own jobs; ending one leaves the other running."""
    with OwnSandbox.up(SMALL) as other:
        first, second = sandbox.entry, other.entry
        assert not set(range(first.first_port, first.first_port + first.ports)) & set(
            range(second.first_port, second.first_port + second.ports)
        )
        other.run(["sbatch", "--output=/dev/null", "--job-name=only-here", "--wrap", "sleep 600"])
        assert "only-here" in other.run(["squeue", "-h", "-o", "%j"]).stdout
        assert "only-here" not in sandbox.run(["squeue", "-h", "-o", "%j"]).stdout
    assert nothing_left_of(second)
    assert sandbox.status().ready


def test_down_ends_jobs_and_their_runaways(can_run_slurm: None, tmp_path: Path) -> None:
    """Steps and even processes that a job has detached from itself are gone after `down`; twice `down` is fine."""
    with OwnSandbox.up(SandboxSpec(nodes=2, with_accounting=False)) as up:
        pid_file = tmp_path / "pid"
        script = f"setsid sh -c 'echo $$ > {pid_file}; exec sleep 900' & srun -N2 sleep 900"
        up.run(["sbatch", "-N2", "--output=/dev/null", "--wrap", script])
        wait_until(lambda: pid_file.exists() and pid_file.read_text().strip(), 30, "the job has started")
        runaway = int(pid_file.read_text())
        wait_until(lambda: "0" in up.run(["squeue", "-s", "-h", "-o", "%i"]).stdout, 30, "the step has started")
        up.down()
        assert nothing_left_of(up.entry)
        assert host.started_at(runaway) == 0
        up.down()


def test_a_taken_port_names_slurmctld(can_run_slurm: None) -> None:
    """When a stranger holds the port, the error names the daemon and shows its own words, and nothing is left."""
    with socket.socket() as stranger:
        stranger.bind(("", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with pytest.raises(SandboxError, match=r"(?s)^slurmctld of the sandbox did not start.*bind.*in use"):
            OwnSandbox.up(SandboxSpec(nodes=1, with_accounting=False), name="taken-port", first_port=port)
    assert registry.find("taken-port") is None
    assert not Path("/tmp/selastic-sandbox-taken-port").exists()


@pytest.mark.parametrize("daemon", ["munged", "slurmdbd", "slurmctld", "slurmd"])
def test_a_broken_daemon_names_itself(can_run_slurm: None, tmp_path: Path, daemon: str) -> None:
    """Whichever daemon fails, the error says which one, with its exit status and the last lines it wrote."""
    broken = tmp_path / daemon
    broken.write_text(f'#!/bin/sh\n[ "$1" = -V ] && exec /usr/sbin/{daemon} -V\necho no such luck >&2\nexit 3\n')
    broken.chmod(0o755)
    spec = SandboxSpec(nodes=1, with_accounting=daemon == "slurmdbd", binaries={daemon: str(broken)})
    with pytest.raises(
        SandboxError, match=rf"(?s)^{daemon}\S* of the sandbox did not start \(exit status 3\).*no such luck"
    ):
        OwnSandbox.up(spec, name=f"broken-{daemon}")
    assert registry.find(f"broken-{daemon}") is None
    assert not Path(f"/tmp/selastic-sandbox-broken-{daemon}").exists()


def test_a_directory_with_files_in_it_is_refused_and_kept(can_run_slurm: None) -> None:
    """A sandbox never takes over, and so never removes, a directory that holds something."""
    folder = Path(f"/tmp/selastic-full-{os.getpid()}")
    folder.mkdir()
    try:
        (folder / "thesis.tex").write_text("precious")
        with pytest.raises(SandboxError, match="not empty"):
            OwnSandbox.up(SMALL, name="full", directory=folder)
        assert (folder / "thesis.tex").read_text() == "precious"
        assert registry.find("full") is None
    finally:
        (folder / "thesis.tex").unlink()
        folder.rmdir()


@pytest.mark.parametrize("moment", ["starting", "ready"])
def test_starter_killed_takes_its_sandbox_with_it(can_run_slurm: None, moment: str) -> None:
    """SIGKILL of the process that started a sandbox, while it starts or later, leaves no process and no directory."""
    name = f"orphan-{moment}"
    program = (
        "import sys\nfrom own_sandbox import OwnSandbox\nfrom slurm_elastic.daemon.sandbox import SandboxSpec\n"
        f"OwnSandbox.up(SandboxSpec(nodes=2, with_accounting=False), name={name!r})\n"
        "print('up', flush=True)\nsys.stdin.read()"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{NAMESPACE}:{SUPPORT}"},
    )
    assert starter.stdout is not None and starter.stdin is not None
    with starter.stdout, starter.stdin:
        if moment == "ready":
            assert starter.stdout.readline() == b"up\n"
        entry = wait_until(lambda: registry.find(name), 30, "the sandbox is registered")
        wait_until(lambda: host.members(Path(entry.dir), entry.id), 30, "a daemon runs")
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    wait_until(lambda: nothing_left_of(entry), 30, lambda: host.members(Path(entry.dir), entry.id))


def test_slurmctld_restarts_with_its_jobs(empty_sandbox: Sandbox, submit: Callable[..., int]) -> None:
    """A test may stop slurmctld and start it again; jobs run on, as on a real cluster."""
    job = submit("--gres=gpu:1")
    running = lambda: empty_sandbox.run(["squeue", "-h", "-j", str(job), "-o", "%T"]).stdout.strip() == "RUNNING"  # noqa: E731
    wait_until(running, 30, "the job runs")
    empty_sandbox.daemons.stop("slurmctld")
    assert not empty_sandbox.status().ready
    empty_sandbox.start_daemon("slurmctld")
    wait_until(running, 30, "the job still runs")


def test_command_line_up_status_down(can_run_slurm: None) -> None:
    """`up` outlives its process; `status` and `down` find it by name; a second `up` of the name is refused."""
    name = f"cli-{os.getpid()}"
    try:
        up = sandbox_command("up", "--name", name, "--nodes", "2", "--gpus-per-node", "1", "--no-accounting")
        assert up.returncode == 0, up.stderr
        assert f"export SLURM_CONF=/tmp/selastic-sandbox-{name}/slurm.conf" in up.stdout
        status = sandbox_command("status", "--name", name)
        assert status.returncode == 0
        assert "ready; nodes: 2 idle" in status.stdout
        again = sandbox_command("up", "--name", name, "--nodes", "2")
        assert again.returncode == 1
        assert f"'selastic sandbox down --name {name}' ends it" in again.stderr
    finally:
        entry = registry.find(name)
        down = sandbox_command("down", "--name", name)
    assert down.returncode == 0, down.stderr
    assert entry is not None and nothing_left_of(entry)
    assert sandbox_command("down", "--name", name).returncode == 1


@pytest.fixture
def everyones_copy() -> Iterator[Path]:
    """The package in a folder that every user may read, which a checkout need not be."""
    with tempfile.TemporaryDirectory(prefix="selastic-test-") as folder:
        shutil.copytree(NAMESPACE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "build"))
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        yield Path(folder)


def test_ordinary_user_is_told_to_use_sudo(sandbox: Sandbox, everyones_copy: Path) -> None:
    """Without root there is one sentence, and nothing is started or ended."""
    absent = f"no-root-{os.getpid()}"
    for word, name in (("up", absent), ("down", sandbox.entry.name)):
        # The system's Python: a user may execute it, unlike perhaps the one that runs the tests.
        command = ["/usr/bin/python3", "-B", "-m", "slurm_elastic.client.main", "sandbox", word]
        command += ["--name", name]
        told = subprocess.run(
            ["setpriv", "--reuid=games", "--regid=games", "--clear-groups", *command],
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(everyones_copy)},
            cwd="/",
            check=False,
        )
        assert (told.returncode, told.stdout) == (1, ""), word
        assert re.fullmatch(r".* needs root, .*: run this with sudo\.\n", told.stderr), told.stderr
    assert registry.find(absent) is None
    assert sandbox.status().ready
