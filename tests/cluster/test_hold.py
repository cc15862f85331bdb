"""`selastic hold` on a real Slurm with a real selasticd: nodes join, go, are lost and are given back, as the daemon
decides it for all jobs together."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kill_targets
import pytest
from free_ports import free_port
from live_daemon import Selasticd, live_daemon
from training_job import NAMESPACE, SlurmJob, TrainingJob
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox

SELASTIC = f"{shlex.quote(sys.executable)} -m slurm_elastic.client.main"
JOIN = 'echo "$CUDA_VISIBLE_DEVICES on $SELASTIC_HEAD" >"joined.$SELASTIC_NODE"; exec sleep 1000'
LEAVE = 'echo "${lost:-goes} $SELASTIC_LEAVING" >>left'
SMALL = "gpus=4-8,step=4"
STAY = "while [ ! -e end ]; do sleep 0.2; done; exit 3"

Hold = Callable[..., SlurmJob]


@pytest.fixture
def selasticd(empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Selasticd]:
    with live_daemon(empty_sandbox, monkeypatch) as daemon:
        yield daemon


@pytest.fixture
def hold(selasticd: Selasticd, tmp_path: Path) -> Hold:
    """Submits a job of one node and four GPUs that runs `selastic hold` in a folder of its own."""

    def submit(*words: str, request: str = "gpus=4-12,step=4,speedup=linear", join: str = JOIN, leave: str = LEAVE,
               own: str = STAY) -> SlurmJob:  # fmt: skip
        command = shlex.join(["--join", join, "--leave", leave, *words, "--", "/bin/bash", "-c", own])
        variables = {"PYTHONPATH": NAMESPACE, "SELASTIC": SELASTIC, **selasticd.found}
        exports = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in variables.items())
        folder = tmp_path / f"job{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "job.sh").write_text(f"#!/bin/bash\n{exports}\nexec {SELASTIC} hold {command}\n")
        job = SlurmJob(selasticd.sandbox, folder)
        options = ("-N1", "--gres=gpu:a100:4", "--time=30", f"--comment=elastic:{request}")
        job.sbatch(*options, str(folder / "job.sh"))
        return job

    return submit


def explained(selasticd: Selasticd, job: SlurmJob) -> str:
    return " ".join(selasticd.selastic("explain", str(job.id)).stdout.split())


def status(selasticd: Selasticd, job: SlurmJob) -> str:
    return " ".join(selasticd.selastic("status", "-j", str(job.id), "-o", "Samples/s").stdout.split())


def test_nodes_join_give_way_and_are_lost(selasticd: Selasticd, hold: Hold) -> None:
    """The story: it grows to what it may have, gives way to a rigid job, takes it back without the daemon's life
    mattering, loses a node, and ends with its command's exit code, leaving nothing."""
    job = hold()
    selasticd.settles_at(job.id, 12)

    def joined() -> list[Path]:
        """Nodes whose join command has said that it has four GPUs."""
        found = sorted(job.folder.glob("joined.*"))
        return [path for path in found if path.read_text().split(" on ")[0].count(",") == 3]

    wait_until(lambda: len(joined()) == 2, 40, job.text)
    rigid = selasticd.rigid(7)
    wait_until(lambda: selasticd.jobs()[rigid].running, 40, selasticd.log)
    selasticd.settles_at(job.id, 4)
    said = [line.split() for line in (job.folder / "left").read_text().splitlines()]
    assert {word for word, _ in said} == {"goes"}
    assert sorted(",".join(names for _, names in said).split(",")) == [path.suffix[1:] for path in joined()]
    selasticd.sandbox.run(["scancel", str(rigid)])
    selasticd.settles_at(job.id, 12)
    selasticd.kill(signal.SIGKILL)
    [*_, lost] = [one for one in selasticd.companions() if one.running]
    os.kill(kill_targets.agents(selasticd.sandbox, lost.job_id)[0], signal.SIGKILL)  # without the notice of a scancel
    wait_until(lambda: "1 n" in (job.folder / "left").read_text(), 40, job.text)
    selasticd.start()
    selasticd.settles_at(job.id, 12)
    (job.folder / "end").touch()
    job.comes_to("FAILED")
    assert job.field("ExitCode") == "3:0"
    job.gives_back()


def test_what_does_not_join_is_given_back_and_explained(selasticd: Selasticd, hold: Hold) -> None:
    """Its nodes go back to Slurm, it is not tried again at once, and `explain` says which command failed."""
    job = hold("--ready-s", "20", join='[ -e good ] && $SELASTIC tell ready && exec sleep 1000; echo "no port"; exit 5')
    wait_until(lambda: "ended with exit code 5: no port" in explained(selasticd, job), 60, selasticd.log)
    job.gives_back()
    (job.folder / "good").touch()
    selasticd.settles_at(job.id, 12)


def test_without_any_speed_it_gets_only_what_would_be_idle(selasticd: Selasticd, hold: Hold) -> None:
    """It grows while nobody else wants the nodes; of two jobs the one that scales gets them."""
    idle = hold(request="gpus=4-32,step=4")
    selasticd.settles_at(idle.id, 32)
    scales = hold(request="gpus=4-28,step=4,speedup=linear")
    selasticd.settles_at(scales.id, 28, 90)
    selasticd.settles_at(idle.id, 4)


def test_speeds_reach_the_models(selasticd: Selasticd, hold: Hold) -> None:
    """From a file, an address of Prometheus, and `selastic tell`: `status` shows each in its unit, and what is foretold
    of the job's size is the speed that was said."""
    port = free_port()
    serve = (
        'mkdir srv; printf "done{of=\\"a\\"} 6\\ndone{of=\\"b\\"} 4.5\\n" >srv/metrics; '
        f"{shlex.quote(sys.executable)} -m http.server --bind 127.0.0.1 --directory srv {port} & "
    )
    tell = f"while [ ! -e end ]; do {SELASTIC} tell samples=25 seconds=2; sleep 0.3; done"
    metric = f"http://127.0.0.1:{port}/metrics#done"
    jobs = {
        "tasks": (14.5, hold("--speed", "speed", "--unit", "tasks", request=SMALL, own=f"echo 14.5 >speed; {STAY}")),
        "rows": (10.5, hold("--speed", metric, "--unit", "rows", request=SMALL, own=serve + STAY)),
        "frames": (12.5, hold("--unit", "frames", request=SMALL, own=tell)),
    }
    for unit, (speed, job) in jobs.items():
        selasticd.settles_at(job.id, 8)
        shown = f"{speed} {unit}"
        wait_until(lambda job=job, shown=shown: shown in status(selasticd, job), 60, selasticd.log)
        foretold = json.loads(selasticd.selastic("predict", str(job.id), "--gpus", "8", "--json").stdout)["sizes"]
        assert foretold[0]["samples_per_s"] == pytest.approx(speed, rel=0.1)


def test_rigid_jobs_wait_no_longer_than_for_a_training(selasticd: Selasticd, hold: Hold, tmp_path: Path) -> None:
    """Beside a job of `selastic hold`, then beside one of `selastic run` of the same sizes (pytest -s: how long)."""

    def trains() -> SlurmJob:
        options = "-N1 --gres=gpu:a100:4 --time=30 --comment=elastic:gpus=4-8,step=4,batch=240-3840"
        return TrainingJob(selasticd.sandbox, tmp_path / "trains", options, 400_000, env=selasticd.found)

    for name, start in {"hold": lambda: hold(request="gpus=4-8,step=4,speedup=linear"), "run": trains}.items():
        job = start()
        selasticd.settles_at(job.id, 8, 90)
        began = time.monotonic()
        rigid = selasticd.rigid(7)
        wait_until(lambda rigid=rigid: selasticd.jobs()[rigid].running, 40, selasticd.log)
        print(f"beside selastic {name} a rigid job started after {time.monotonic() - began:.1f} s")
        assert selasticd.held(job.id) == 4
        selasticd.sandbox.run(["scancel", str(rigid), str(job.id)])
        wait_until(lambda: not selasticd.jobs(), 60, selasticd.log)


def test_kills(selasticd: Selasticd, hold: Hold) -> None:
    """A hold that is killed takes its command, and what has joined, with it; a leave command that hangs holds no
    node; SIGTERM is the command's to answer."""
    job = hold("--drain-s", "3", leave="exec sleep 1000", own=f"trap 'exit 9' TERM; echo $$ >pid; {STAY}")
    selasticd.settles_at(job.id, 12)
    rigid = selasticd.rigid(7)
    wait_until(lambda: selasticd.jobs()[rigid].running, 40, selasticd.log)
    selasticd.sandbox.run(["scancel", str(rigid)])
    selasticd.settles_at(job.id, 12)
    own = int((job.folder / "pid").read_text())
    parent = int(Path(f"/proc/{own}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    job.comes_to("FAILED")
    job.gives_back()
    assert not Path(f"/proc/{own}").exists()
    job = hold(own=f"trap 'exit 9' TERM; {STAY}")
    selasticd.settles_at(job.id, 12)
    job.slurm("scancel", "--batch", "--signal=TERM", str(job.id))
    job.comes_to("FAILED")
    assert job.field("ExitCode") == "9:0"
