"""What all tests share: the marker `cluster`, and the private real Slurm that such tests run on."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_sandbox import OwnSandbox
from sandbox_jobs import cancel_all

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.daemon.sandbox.host import check
from slurm_elastic.protocol.errors import SandboxError

TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in tests/cluster, tests/end_to_end and tests/scripts runs on a real Slurm."""
    for item in items:
        if any(item.path.is_relative_to(TESTS / folder) for folder in ("cluster", "end_to_end", "scripts")):
            item.add_marker(pytest.mark.cluster)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why a test needed a second go, else nobody sees it where the second one passes; and what each module took."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"first go of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
    seconds = Counter[str]()
    for report in (one for some in terminalreporter.stats.values() for one in some):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section(f"seconds by module; those under a second are left out of {len(seconds)}")
    for module, took in seconds.most_common():
        if took >= 1:
            terminalreporter.write_line(f"{took:8.1f} {module}")


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
    with OwnSandbox.up(
        SandboxSpec(extra_slurm_conf=("PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE"))
    ) as up:
        yield up


@pytest.fixture
def empty_sandbox(sandbox: Sandbox) -> Iterator[Sandbox]:
    """The session's sandbox with no job in it; what the test leaves behind is cancelled after it."""
    cancel_all(sandbox)
    yield sandbox
    cancel_all(sandbox)
