"""Fixtures of the tests on a private real Slurm. `sandbox` and `empty_sandbox` are in tests/conftest.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from slurm_backends import cluster as cluster

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
