"""What `selastic run` takes of its command line and of the job it is in."""

from __future__ import annotations

import argparse
import sys

import pytest

from slurm_elastic.protocol import codec
from slurm_elastic.protocol.errors import ConfigError, RequestError
from slurm_elastic.protocol.messages import Registration
from slurm_elastic.trainer_shim.allocation import commands
from slurm_elastic.trainer_shim.allocation.driver import program
from slurm_elastic.trainer_shim.allocation.slurm_job import parse_job
from slurm_elastic.trainer_shim.allocation.start import check_container
from slurm_elastic.trainer_shim.node.agent import gpus
from slurm_elastic.trainer_shim.supervisor.cli import add_arguments, elastic_request, worker_env


def test_a_program_is_told_in_printable_letters() -> None:
    """Whatever its name and its arguments hold, in any locale: else its registration would be refused."""
    told = program(("train.py", "a\nb", "tr\udcc3\udca4in", "\udcff", "x" * 2000))
    assert told.startswith("train.py a?b träin \N{REPLACEMENT CHARACTER} xxx") and len(told) == 1000
    codec.decode(Registration, {"version": 3, "generation": 0, "pieces": [], "batch": 1, "program": told})


def test_the_request_of_the_command_line_counts_first() -> None:
    """Then the comment's, then what the SPANK plugin left; only the command line's is refused on the spot."""
    mine, other, plugin = "gpus=2-4,batch=8", "elastic:gpus=1-2,batch=8", "gpus=1-8,batch=8"
    assert elastic_request(mine, other, plugin) == mine
    assert elastic_request("", other, plugin) == other
    assert elastic_request("", None, plugin) == plugin
    assert elastic_request("", "elastic:gpus=4-2", "") == "elastic:gpus=4-2"
    with pytest.raises(RequestError, match="gpus=4-2"):
        elastic_request("gpus=4-2,batch=8", None, "")
    with pytest.raises(RequestError, match="has no batch="):
        elastic_request("gpus=2-4", None, "")


@pytest.mark.parametrize("asked", ["", "gpus=2-4,batch=8", "gpus=2-4,batch=8,lr=auto", "elastic:gpus=4-2"])
def test_a_request_without_a_rule_leaves_it_to_the_script(asked: str) -> None:
    """lr=auto, none given, and a request that cannot be read: nothing is imposed."""
    assert "SELASTIC_LR" not in worker_env(asked)
    assert worker_env("elastic:gpus=2-4,batch=8,lr=none,combine=adasum,group=2,slice=4") == {
        "SELASTIC_LR": "none",
        "SELASTIC_COMBINE": "adasum",
        "SELASTIC_GROUP": "2",
        "SELASTIC_SLICE": "4",
    }


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_ID": "1"}, ["2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "2,3", "SELASTIC_NPROC": "1"}, ["2"]),
        ({"CUDA_VISIBLE_DEVICES": "2", "SELASTIC_NPROC": "2"}, ["", ""]),
        ({"CUDA_VISIBLE_DEVICES": "2", "SELASTIC_NPROC": "3", "SELASTIC_CUDA_BACKEND": "gloo"}, ["2", "2", "2"]),
        ({"CUDA_VISIBLE_DEVICES": "2,3", "SELASTIC_NPROC": "3", "SELASTIC_CUDA_BACKEND": "gloo"}, ["2", "3", "2"]),
        ({"CUDA_VISIBLE_DEVICES": "2,3", "SELASTIC_NPROC": "1", "SELASTIC_CUDA_BACKEND": "gloo"}, ["2"]),
        ({"SLURM_JOB_ID": "1", "SELASTIC_NPROC": "2", "SELASTIC_CUDA_BACKEND": "gloo"}, ["", ""]),
        ({"SLURM_JOB_ID": "1"}, [""]),
        ({"SLURM_JOB_ID": "1", "SELASTIC_NPROC": "3"}, ["", "", ""]),
    ],
)
def test_devices_of_a_node(env: dict[str, str], expected: list[str]) -> None:
    """Slurm's list is the list; without GPUs there are --nproc CPU workers, at least one; over gloo they share GPUs."""
    assert gpus(env) == expected


def test_a_job_in_a_container_is_refused() -> None:
    """Its workers would start on the nodes' own file systems, without a word."""
    check_container({"SLURM_JOB_ID": "7"})
    with pytest.raises(
        ConfigError,
        match=r"--container=/images/torch of this job .* accepted: .*--srun-options=--container=/images/torch",
    ):
        check_container({"SLURM_JOB_ID": "7", "SLURM_CONTAINER": "/images/torch"})


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([*words, "train.py", "--lr", "1"])


def test_a_container_is_entered_by_the_words_that_the_user_gives() -> None:
    """By what stands before python, or by options of srun's, which change nothing of what is asked of Slurm."""
    assert commands.agent_command(["train.py"])[0] == sys.executable
    given = parsed(
        "--python=apptainer exec --nv 'my image.sif' python3", "--srun-options=--container-image=a --nodes=9"
    )
    agent = commands.agent_command(["train.py"], given.python)
    assert agent[:6] == ["apptainer", "exec", "--nv", "my image.sif", "python3", "-m"] and agent[-1] == "train.py"
    line = "JobId=7 BatchHost=n1 Nodes=n[1-2] CPU_IDs=0-3 Mem=0 GRES=gpu:2"
    job = parse_job(line, 7, lambda names: ("n1", "n2"))
    words = commands.srun(job.piece("base"), job, agent, given.srun_options)
    assert "--container-image=a" in words and words[-len(agent) :] == agent
    assert [word for word in words if word.startswith("--nodes=")][-1] == "--nodes=2"


def test_words_that_no_shell_would_read_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The user is told which, before anything is started."""
    with pytest.raises(SystemExit):
        parsed("--python=apptainer exec 'image python3")
    assert "apptainer exec 'image python3 is not accepted (No closing quotation)" in capsys.readouterr().err
