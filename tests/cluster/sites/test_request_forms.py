"""Every way in which sbatch lets a job ask for nodes, tasks, processors and GPUs, on a real Slurm with hyperthreads and
a GPU type that begins with a digit: the job's record is read right, and Slurm takes the step that is made of it.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_sandbox import OwnSandbox
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.daemon.slurm import CommandClient, Size

ROOT = Path(__file__).parents[3]
LAUNCH = """
import json, os, subprocess
from slurm_elastic.trainer_shim.allocation import (commands)
from slurm_elastic.trainer_shim.allocation.slurm_job import parse_job

def call(words):
    env = commands.scrubbed(os.environ)
    return subprocess.run(words, capture_output=True, text=True, env=env)

job_id = int(os.environ["SLURM_JOB_ID"])
names = lambda text: tuple(call(commands.show_hostnames(text)).stdout.split())
job = parse_job(call(commands.show_job(job_id)).stdout, job_id, names)
found = {"nodes": len(job.nodes), "gpus": job.gpus, "type": job.gpu_type}
try:
    piece = job.piece("base", 1)
except ValueError as error:
    found["refused"] = str(error)
else:
    words = ["sh", "-c", "echo $SLURM_PROCID ${CUDA_VISIBLE_DEVICES:-none}"]
    done = call(commands.srun(piece, job, words))
    found |= {"code": done.returncode, "said": done.stderr}
    found["seen"] = sorted(line.split()[1].count(",") + 1 for line in done.stdout.splitlines() if "none" not in line)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def threaded(can_run_slurm: None) -> Iterator[Sandbox]:
    """Two nodes of 8 cores with two threads each and four GPUs of type 2080ti."""
    with OwnSandbox.up(SandboxSpec(nodes=2, threads_per_core=2, gpu_type="2080ti")) as sandbox:
        yield sandbox


def launched(sandbox: Sandbox, folder: Path, options: str) -> dict[str, object]:
    """What a job that asks like this finds, and how its step went; its numbers as the daemon sees them are the same."""
    folder.chmod(0o755)
    (folder / "launch.py").write_text(LAUNCH)
    run = f"PYTHONPATH={ROOT / 'packaging/namespace'} {shlex.quote(sys.executable)} launch.py > out.json.new"
    script = f"{run} && mv out.json.new out.json; while ! test -e go; do sleep 0.1; done"
    command = ["sbatch", "--parsable", f"--chdir={folder}", "--output=out.txt", *options.split(), "--wrap", script]
    answer = sandbox.run(command)
    assert answer.returncode == 0, answer.stderr
    out = folder / "out.json"

    def story() -> str:
        said = folder / "out.txt"
        return (said.read_text() if said.exists() else "") + sandbox.run(["scontrol", "show", "job"]).stdout

    wait_until(out.exists, 60, story)
    found: dict[str, object] = json.loads(out.read_text())
    seen = CommandClient(sandbox.env["SLURM_CONF"]).snapshot().jobs[int(answer.stdout)]
    (folder / "go").touch()
    assert (len(seen.nodes), seen.gpus, seen.gpu_type) == (found["nodes"], sum(found["gpus"]), found["type"])  # type: ignore[call-overload]
    return found


@pytest.mark.parametrize(
    "options, nodes, gpus_per_node",
    [
        ("-N1 --gres=gpu:2", 1, 2),
        ("-N1 --gres=gpu:2080ti:2", 1, 2),
        ("-N1 --gres=gpu", 1, 1),
        ("-N2 --gres=gpu:2080ti:1", 2, 1),
        ("-N2 --gpus-per-node=2", 2, 2),
        ("-N2 --gpus-per-node=2080ti:2", 2, 2),
        ("-N1 --gpus=3", 1, 3),
        ("--gpus=2", 1, 2),
        ("--gpus=2080ti:2", 1, 2),
        ("-N2 --gpus=8", 2, 4),
        ("-N2 -n4 --gpus-per-task=2", 2, 4),
        ("-n2 --ntasks-per-node=2 --gpus-per-task=1", 1, 2),
        ("-N2 --ntasks-per-gpu=1 --gpus=4 --gpus-per-node=2", 2, 2),
        ("-N2 --sockets-per-node=1 --gpus-per-socket=2", 2, 2),
        ("-N2 --gres=gpu:2 --hint=nomultithread", 2, 2),
        ("-N2 --gres=gpu:2 --hint=multithread", 2, 2),
        ("-N2 --gres=gpu:2 --threads-per-core=1", 2, 2),
        ("-N2 --gres=gpu:2 --threads-per-core=1 -c3", 2, 2),
        ("-N1 --gres=gpu:2 --hint=nomultithread -c5", 1, 2),
        ("-N1 --gres=gpu:2 --ntasks-per-core=1 -n3", 1, 2),
        ("-N2 --gres=gpu:1 -n3", 2, 1),
        ("-N2 --gres=gpu:4 --exclusive", 2, 4),
        ("-N1 --gres=gpu:1 --exclusive", 1, 4),
        ("-N1 --gres=gpu:1 --exclusive --threads-per-core=1", 1, 4),
        ("-N2 --gres=gpu:2 --mem=0", 2, 2),
        ("-N2 --gres=gpu:2 --mem-per-gpu=1G", 2, 2),
        ("-N2 --gres=gpu:2 --cpus-per-gpu=3", 2, 2),
        ("-N2 --gpus-per-node=2 --gpu-bind=closest", 2, 2),
        ("-N2 --gpus-per-node=2 --gpu-bind=single:1", 2, 2),
        ("-N2 --gres=gpu:2 --cores-per-socket=4", 2, 2),
        ("-N2 --gres=gpu:2 -B1:2:2", 2, 2),
        ("-N2 --gres=gpu:2 --core-spec=2", 2, 2),
        ("-N2 --gres=gpu:2 --spread-job", 2, 2),
        ("-N1-2 --gres=gpu:2", 2, 2),
        ("-N2 --gres=gpu:2 --distribution=cyclic", 2, 2),
    ],
)
def test_a_form_of_request(threaded: Sandbox, tmp_path: Path, options: str, nodes: int, gpus_per_node: int) -> None:
    """The numbers are read right, and one task on each node sees its GPUs."""
    found = launched(threaded, tmp_path, options)
    assert (found["nodes"], found["gpus"], found["type"]) == (nodes, [gpus_per_node] * nodes, "2080ti")
    assert (found["code"], found["seen"]) == (0, [gpus_per_node] * nodes), found


@pytest.mark.parametrize("options", ["-N2 -c2", "-n3", "-N1 --hint=nomultithread", "-N2 --threads-per-core=1 -c3"])
def test_a_request_without_gpus(threaded: Sandbox, tmp_path: Path, options: str) -> None:
    """A task on each node starts, and sees none."""
    found = launched(threaded, tmp_path, options)
    assert (found["code"], found["seen"], set(found["gpus"])) == (0, [], {0}), found  # type: ignore[call-overload]


def test_unequal_gpus_are_refused_in_one_sentence(threaded: Sandbox, tmp_path: Path) -> None:
    """A world has the same number of ranks on each node; the sentence names the nodes and what is accepted."""
    found = launched(threaded, tmp_path, "-N2 --gpus=6")
    assert sorted(found["gpus"]) == [2, 4]  # type: ignore[call-overload]
    assert "unequal GPUs per node (n1: " in str(found["refused"]) and "accepted: --gpus-per-node" in str(
        found["refused"]
    )


@pytest.mark.parametrize("options", ["--gres=gpu:2080ti:2", "--gres=gpu:2", "--gpus-per-node=2080ti:2"])
def test_a_waiting_job_gets_another_size(threaded: Sandbox, options: str) -> None:
    """Slurm takes the GPUs in the form in which they were asked for, with their type or without."""
    command = ["sbatch", "--parsable", "--hold", "--output=/dev/null", options, "--wrap", "true"]
    job = int(threaded.run(command).stdout)
    client = CommandClient(threaded.env["SLURM_CONF"])
    assert client.asked_size(job).gpus_per_node == 2
    client.resize_waiting(job, Size(1, 1))
    assert client.asked_size(job).gpus_per_node == 1
    client.cancel(job)
