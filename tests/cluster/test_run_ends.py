"""How a job of `selastic run` ends on a real Slurm: at its time limit, by scancel, by failing; arrays; --dry-run."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from fake_daemon import FakeDaemon
from training import TRAIN
from training_job import NAMESPACE, OVER, RUN, SlurmJob, Start, TrainingJob
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.trainer_shim.training import audit


def test_every_way_to_end(start: Start) -> None:
    """At once, for Slurm looks at time limits every half minute only:

    - --signal=B:USR1@N: a checkpoint is on disk long before the end; at the time limit Slurm calls it TIMEOUT;
    - scancel: CANCELLED, and the steps since are in a checkpoint too; before, a signal to its steps, and one to the
      script too, is a checkpoint each and ends nothing;
    - an array: each task trains by itself, in a directory of its own;
    - a script that ends with 7: FAILED with 7:0, and --dry-run: COMPLETED, nothing but text.
    """

    def steps(job: TrainingJob) -> list[Path]:
        return sorted(job.folder.glob(".selastic/*/checkpoints/step-*/checkpoint.json"))

    def over(job: TrainingJob, task: str = "") -> str:
        wait_until(lambda: job.field("JobState", f"{job.id}{task}") in OVER, 150, job.story)
        return job.field("JobState", f"{job.id}{task}")

    timed = start("--gres=gpu:1 --time=5 --signal=B:USR1@600", 100_000, alone=True)
    cancelled = start("--gres=gpu:1", 100_000, alone=True)
    dry = start("-N2 --gres=gpu:2", 1, 1, 0, alone=True, words="--dry-run")
    failing = start("--gres=gpu:1", 32, 1, 0, alone=True, train=TRAIN + "\nsys.exit(7)\n")
    record = "--audit audit.$SLURM_ARRAY_TASK_ID"
    array = start("--gres=gpu:1 --array=1-2 --output=out.%a.txt", 200, 1, 0, alone=True, words=record)

    assert over(dry) == "COMPLETED"
    said = dry.text()
    assert "srun" in said and said.count("\nrank ") == 4, said
    assert not list(dry.folder.glob(".selastic/*"))
    assert over(failing) == "FAILED", failing.story()
    assert failing.field("ExitCode") == "7:0"
    for task in ("1", "2"):
        assert over(array, f"_{task}") == "COMPLETED", array.story()
        array.checked(f"audit.{task}")
    assert len(list(array.folder.glob(".selastic/*/run.json"))) == 2

    cancelled.says("generation 1: 1 workers", 90)
    wait_until(lambda: steps(timed), 120, timed.story)  # USR1's
    wait_until(lambda: len(list(audit.read(cancelled.folder / "audit"))) > 3, 60, cancelled.story)  # it trains
    for options in (["--signal=USR2"], ["--signal=USR1", "--full"]):  # to its steps; to its script too
        before = steps(cancelled)
        cancelled.slurm("scancel", *options, str(cancelled.id))
        wait_until(lambda before=before: steps(cancelled)[-1:] > before[-1:], 60, cancelled.story)
    assert "starting again" not in cancelled.text() and cancelled.state() == "RUNNING", cancelled.story()
    cancelled.slurm("scancel", str(cancelled.id))
    assert over(cancelled) == "CANCELLED"
    assert steps(cancelled), cancelled.story()
    first = steps(timed)[-1]
    timed.slurm("scontrol", "update", f"JobId={timed.id}", "EndTime=now")
    assert over(timed) == "TIMEOUT", timed.story()
    assert steps(timed)[-1] > first, timed.story()


REHEARSED = """
import os, time, torch
import slurm_elastic.trainer_shim as elastic
job = elastic.join(batch=12, lr="none")
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(480, 4))
model = torch.nn.Linear(4, 1)
net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
for epoch in job.epochs(1):
    for (x,) in job.loader(data):
        job.step(net(x).square().mean())
        if job.global_step == 11 and job.generation == 4:
            open("flags/asked", "w").close()
            while not os.path.exists("flags/came"):
                time.sleep(0.05)
"""
"""It waits behind all that a rehearsal does to it."""
HEARS = """import os, signal
def heard(*_):
    open("flags/came", "w").close()
    os._exit(0)
signal.signal(signal.SIGUSR1, heard)
open("flags/listens", "w").close()
signal.pause()
"""
WITHOUT = """import slurm_elastic.trainer_shim.node.worker_process as module
module.NOTICES = ()
"""


def test_a_rehearsal_in_a_job(start: Start) -> None:
    """Of jobs that asked for --signal. What Slurm sends reaches all processes of a job's steps, beside what a rehearsal
    sends them: with agents and workers that bear it all holds, and where they do not that is found."""
    srun = f"srun --overlap --exact --mem=0 -n1 {shlex.quote(sys.executable)}"
    rehearse = f"{srun} -m slurm_elastic.client.main rehearse --steps 12 train.py; echo rehearsed with $?"
    listens = f"mkdir flags; {srun} hears.py & until [ -e flags/listens ]; do sleep 0.1; done"
    options = "-n2 --gres=gpu:1 --time=60 --signal=USR1@600"

    def begun(*lines: str) -> TrainingJob:
        return start(options, alone=True, train=REHEARSED, script="\n".join(lines), name="train.py")

    files = f"cat > hears.py <<'END'\n{HEARS}END\ncat > sitecustomize.py <<'END'\n{WITHOUT}END"
    held = begun(files.partition("cat > site")[0], listens, rehearse)
    found = begun(files, "export PYTHONPATH=$PWD:$PYTHONPATH; mkdir flags; touch flags/came", rehearse)
    wait_until((held.folder / "flags/asked").exists, 90, held.story)
    held.slurm("scontrol", "update", f"JobId={held.id}", "TimeLimit=10")  # due now; Slurm looks every half minute
    held.ends()
    found.ends()
    text = (held.folder / "out.txt").read_text()
    assert "rehearsed with 0" in text and "FAIL" not in text and "ok    USR1 to workers" in text, text
    text = (found.folder / "out.txt").read_text()
    assert "rehearsed with 1" in text and "FAIL  USR1 to workers and agents" in text, text


def test_the_end_of_an_interactive_allocation_is_an_end(empty_sandbox: Sandbox, tmp_path: Path) -> None:
    """Of what salloc holds, which has no batch script that Slurm would tell: all steps but the one under way are in a
    checkpoint, nothing is started again in a job that is dead, and the companion is given back."""
    (tmp_path / "train.py").write_text(TRAIN)
    with FakeDaemon() as daemon, (tmp_path / "out.txt").open("w") as file:
        job = SlurmJob(empty_sandbox, tmp_path, daemon)
        env = {**empty_sandbox.env, **daemon.env(tmp_path), "PYTHONPATH": NAMESPACE}
        command = ["salloc", "-N1", "--gres=gpu:1", *shlex.split(RUN), "train.py", "100000", "1", "0.1"]
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=file, stderr=file)
        try:
            job.id = job.base()[0].slurm_job_id
            job.grow()
            job.trains_past(10)
            job.slurm("scancel", str(job.id))
            wait_until(lambda: process.poll() is not None, 90, job.story)
        finally:
            process.kill()
    assert "again" not in job.text(), job.story()
    assert job.saved() >= job.trained() - 1, job.story()
    wait_until(lambda: empty_sandbox.run(["squeue", "-h"]).stdout == "", 60)
