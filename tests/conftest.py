"""What all tests share: the marker `cluster`, and the private real Slurm that such tests run on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# `from waiting import wait_until`: with --import-mode=importlib pytest adds no test directory to the path.
sys.path.insert(0, str(TESTS))

from waiting import wait_until  # noqa: E402

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec  # noqa: E402
from slurm_elastic.daemon.sandbox.host import check  # noqa: E402
from slurm_elastic.trainer_shim.errors import SandboxError  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in tests/cluster and tests/end_to_end runs on a real Slurm."""
    for item in items:
        if item.path.is_relative_to(TESTS / "cluster") or item.path.is_relative_to(TESTS / "end_to_end"):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def can_run_slurm() -> None:
    """Fails where no private Slurm can run; skips instead if SELASTIC_ALLOW_SKIP=1."""
    try:
        check(SandboxSpec())
    except SandboxError as error:
        if os.environ.get("SELASTIC_ALLOW_SKIP") == "1":
            pytest.skip(str(error))
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def sandbox(can_run_slurm: None) -> Iterator[Sandbox]:
    """A private real Slurm for the whole session: 8 nodes n1..n8, 4 a100 and 16 CPUs each, accounting on.

    Partitions of another PriorityTier, made by a test, preempt those below; `main` alone knows nothing of that.
    """
    with Sandbox.up(SandboxSpec(extra_slurm_conf=("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE"))) as up:
        yield up


@pytest.fixture
def empty_sandbox(sandbox: Sandbox) -> Iterator[Sandbox]:
    """The session's sandbox with no job in it; what the test leaves behind is cancelled after it."""
    cancel_all(sandbox)
    yield sandbox
    cancel_all(sandbox)


def cancel_all(sandbox: Sandbox) -> None:
    """Cancel every job and wait until all nodes are idle again."""

    def nothing_left() -> bool:
        # %F: of an array its own id, since scancel does not know the raw ids of its tasks.
        jobs = sorted(set(sandbox.run(["squeue", "-h", "-o", "%F"]).stdout.split()))
        if jobs:
            # A task that ignores SIGTERM would cost each test the whole KillWait. KILL is no way around it: slurmctld
            # takes it for an ordinary cancellation. ALRM ends what does not expect it, without a core file.
            # Of those that run only: over one that waits scancel itself would wait, for a minute.
            running = sandbox.run(["squeue", "-h", "-t", "R", "-o", "%F"]).stdout.split()
            if running:
                sandbox.run(["scancel", "--signal=ALRM", "--full", *sorted(set(running))])
            sandbox.run(["scancel", *jobs])
            return False
        return all(state == "idle" for state in sandbox.status().nodes.values())

    wait_until(nothing_left, 60, lambda: sandbox.run(["squeue"]).stdout + sandbox.run(["sinfo", "-N"]).stdout)
