"""`selastic hold` on a real Slurm with a real selasticd: nodes join, go, are lost and are given back, as the daemon
decides it for all jobs together."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import kill_targets
import pytest
from live_daemon import Selasticd, live_daemon
from training_job import NAMESPACE, SlurmJob
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox

SELASTIC = f"{shlex.quote(sys.executable)} -m slurm_elastic.client.main"
JOIN = 'echo "$CUDA_VISIBLE_DEVICES on $SELASTIC_HEAD" >"joined.$SELASTIC_NODE"; exec sleep 1000'
LEAVE = 'echo "${lost:-goes} $SELASTIC_LEAVING" >>left'
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


def test_nodes_join_give_way_and_are_lost(selasticd: Selasticd, hold: Hold) -> None:
    """The story: it grows to what it may have, gives way to a rigid job, takes it back without the daemon's life
    mattering, loses a node, and ends with its command's exit code, leaving nothing."""
    job = hold()
    selasticd.settles_at(job.id, 12)
    joined = sorted(job.folder.glob("joined.*"))
    assert len(joined) == 2
    assert all(path.read_text().split(" on ")[0].count(",") == 3 for path in joined)
    rigid = selasticd.rigid(7)
    wait_until(lambda: selasticd.jobs()[rigid].running, 40, selasticd.log)
    selasticd.settles_at(job.id, 4)
    said = [line.split() for line in (job.folder / "left").read_text().splitlines()]
    assert {word for word, _ in said} == {"goes"}
    assert sorted(",".join(names for _, names in said).split(",")) == [path.suffix[1:] for path in joined]
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
