"""Fixtures of the tests on a private real Slurm. `sandbox` and `empty_sandbox` are in tests/conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sandbox_of_hosts.names import HEAD, address
from sandbox_of_hosts.sandbox import HostsSandbox
from slurm_backends import cluster as cluster
from training_job import Start, starting

from slurm_elastic.daemon.sandbox import Sandbox

Submit = Callable[..., int]


@pytest.fixture
def submit(empty_sandbox: Sandbox) -> Submit:
    """submit("--gres=gpu:2", "-N2", wrap="sleep 600", user=None) -> job id; asserts that Slurm took it."""

    def sbatch(*options: str, wrap: str = "sleep 600", user: str | None = None) -> int:
        command = ["sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", wrap]
        answer = empty_sandbox.run(command, user=user)
        assert answer.returncode == 0, answer.stderr
        return int(answer.stdout.split(";")[0])

    return sbatch


@pytest.fixture
def trains_on(empty_sandbox: Sandbox) -> Sandbox:
    """The Slurm of `start`; sites/ and hosts/ have theirs."""
    return empty_sandbox


@pytest.fixture
def start(trains_on: Sandbox, tmp_path: Path) -> Iterator[Start]:
    """Starts real trainings, each in a folder of its own that all hosts see."""
    tmp_path.chmod(0o755)
    where = (trains_on.home, address(HEAD)) if isinstance(trains_on, HostsSandbox) else (tmp_path,)
    with starting(trains_on, *where) as start:
        yield start
