"""`selastic sbatch`: the request is checked before Slurm sees it, and all else reaches sbatch untouched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_elastic.client.commands.sbatch import sbatch_command
from slurm_elastic.protocol.errors import ConfigError, RequestError

ELASTIC = "--elastic=gpus=2-8,batch=256-1024"
COMMENT = "--comment=elastic:gpus=2-8,batch=256-1024"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A batch script without a word about elasticity."""
    path = tmp_path / "job.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH --nodes=1 --gpus-per-node=4\n\nselastic run train.py\n#SBATCH --nodes=9\n")
    return path


def test_the_request_becomes_the_comment(script: Path) -> None:
    """sbatch gets the request where every supported Slurm carries it, and every other word as given, in order."""
    words = ["-p", "gpu", ELASTIC, "--time", "1:00:00", "-N1", str(script), "--elastic=not-ours", "-x"]
    expected = ["sbatch", COMMENT, "-p", "gpu", "--time", "1:00:00", "-N1", str(script), "--elastic=not-ours", "-x"]
    assert sbatch_command(words, {}) == expected


def test_flags_do_not_swallow_the_script(script: Path) -> None:
    """An option without a value is followed by the next option or the script."""
    words = ["--parsable", "-H", "--hold", "--exclusive=user", "--elastic", "gpus=2-8,batch=256-1024", str(script)]
    assert sbatch_command(words, {})[1:] == [COMMENT, "--parsable", "-H", "--hold", "--exclusive=user", str(script)]


def test_a_comment_of_the_user_is_kept(script: Path) -> None:
    """The user's own comment stands before the request, wherever it was given; the command line wins, as in sbatch."""
    script.write_text("#!/bin/bash\n#SBATCH --comment='in the script'\n")
    assert sbatch_command([ELASTIC, str(script)], {})[1] == f"--comment=in the script {COMMENT[10:]}"
    assert sbatch_command(["--comment", "mine", ELASTIC, str(script)], {})[1] == f"--comment=mine {COMMENT[10:]}"


@pytest.mark.parametrize("where", ["option", "script", "environment"])
def test_a_second_request_in_a_comment_is_refused(where: str, script: Path) -> None:
    """Two requests leave open which one counts: it is refused, naming the one found."""
    other = "elastic:gpus=1-2,batch=64"
    words, environment = [ELASTIC, str(script)], {}
    if where == "option":
        words.insert(0, f"--comment=mine {other}")
    elif where == "script":
        script.write_text(f"#!/bin/bash\n#SBATCH --comment={other}\n")
    else:
        environment = {"SBATCH_COMMENT": other}
    with pytest.raises(RequestError, match="already holds the elastic request 'elastic:gpus=1-2,batch=64'"):
        sbatch_command(words, environment)


def test_a_malformed_request_never_reaches_slurm(script: Path) -> None:
    """The one parser's sentence, not a job that turns out to be an ordinary one."""
    with pytest.raises(RequestError, match="minimum above its maximum"):
        sbatch_command(["--elastic=gpus=8-2,batch=256", str(script)], {})


@pytest.mark.parametrize("words", [[], ["job.sh"], [ELASTIC, ELASTIC, "job.sh"], ["--elastic"]])
def test_one_request_is_needed(words: list[str]) -> None:
    """None, several or an empty one is wrong usage."""
    with pytest.raises(ConfigError, match="accepted: one --elastic="):
        sbatch_command(words, {})


def test_a_request_in_the_script_is_explained(script: Path) -> None:
    """Without the plugin sbatch would refuse the line with an error that helps nobody."""
    script.write_text(f"#!/bin/bash\n#SBATCH {ELASTIC}\n")
    with pytest.raises(ConfigError, match="needs the SPANK plugin"):
        sbatch_command([str(script)], {})


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        (["--gpus-per-node=h100:4", "-N", "3"], 12),
        (["--gpus=16"], 16),
        (["-G", "16"], 16),
        (["--gres=gpu:16"], 16),
        (["--gres", "gres/gpu:h100:16"], 16),
        (["--gpus-per-node=1"], 1),
    ],
)
def test_a_starting_size_outside_the_request_is_refused(options: list[str], gpus: int, tmp_path: Path) -> None:
    """However the starting size is written, one that the request excludes is refused with the nearest one."""
    with pytest.raises(RequestError, match=rf"starts with {gpus} GPUs?\b"):
        sbatch_command([ELASTIC, *options, str(tmp_path / "absent.sh")], {})


@pytest.mark.parametrize("options", [["--gpus-per-node=4", "-N", "1-4"], ["--gpus-per-task=9", "-n", "4"], []])
def test_a_starting_size_that_is_not_plain_is_left_to_the_daemon(options: list[str], tmp_path: Path) -> None:
    """A range of nodes or GPUs per task is not guessed at."""
    assert sbatch_command([ELASTIC, *options, str(tmp_path / "absent.sh")], {})[0] == "sbatch"


def test_the_scripts_options_give_the_starting_size(script: Path) -> None:
    """#SBATCH lines count up to the first command, and the command line overrides them."""
    with pytest.raises(RequestError, match="starts with 4 GPUs"):
        sbatch_command(["--elastic=gpus=8-16,batch=256", str(script)], {})
    assert sbatch_command(["--elastic=gpus=8-16,batch=256", "-N2", str(script)], {})


def test_a_script_from_a_pipe_is_left_to_sbatch(tmp_path: Path) -> None:
    """`sbatch <(made by a command)`: what is read here would be missing there."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDWR), "w+b", buffering=0) as both:
        both.write(b"#!/bin/sh\n")
        assert sbatch_command([ELASTIC, str(pipe)], {})[-1] == str(pipe)
        assert both.read(10) == b"#!/bin/sh\n"


def run_it(words: list[str], path: str) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own."""
    command = [sys.executable, "-m", "slurm_elastic.client.main", "sbatch", *words]
    environment = os.environ | {"PATH": path, "PYTHONPATH": "packaging/namespace"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_sbatch_takes_over_with_its_own_exit_status(tmp_path: Path, script: Path) -> None:
    """What sbatch prints and how it ends is what the user sees; an argument with blanks stays one argument."""
    fake = tmp_path / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nfor word in "$@"; do echo "<$word>"; done\nexit 7\n')
    fake.chmod(0o755)
    ended = run_it([ELASTIC, "-J", "two words", str(script), "-h"], f"{fake.parent}:/usr/bin:/bin")
    assert ended.returncode == 7
    assert ended.stdout.splitlines() == [f"<{word}>" for word in (COMMENT, "-J", "two words", str(script), "-h")]


def test_a_machine_without_slurm_is_told_so(tmp_path: Path, script: Path) -> None:
    """No sbatch is one sentence and exit status 1, and a wrong request exit status 2 before that."""
    missing = run_it([ELASTIC, str(script)], str(tmp_path))
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("selastic: sbatch is not in PATH")
    assert run_it(["--elastic=gpus=1", str(script)], str(tmp_path)).returncode == 2
