"""Fixtures of the shim's tests (workers by fork, and the supervisor's side of their protocol) and of the store's."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import stand_in
from hypothesis import settings
from worker_harness import Control, Start, Zygote

import slurm_elastic.trainer_shim as elastic

if TYPE_CHECKING:
    from slurm_elastic.db.store import Store

# A commit waits for the disk, which is slow where several test at once. What is tested is that it's asked to.
_MEMORY = Path("/dev/shm")
if _MEMORY.is_dir() and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC and shutil.disk_usage(_MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# How long an example takes is the machine's business, and whatever else runs on it. `make test`, which a change has to
# pass, tries the same examples each time; `make check` and the long runs draw others.
settings.register_profile("selastic", deadline=None, derandomize=True)
settings.register_profile("others", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=int(os.environ.get("SELASTIC_FUZZ_EXAMPLES", "3000")))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "selastic"))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws in this process does not depend on the tests before it."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(1)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """With SELASTIC_ON_STAND_IN its workers have the stand-in for a GPU and NCCL (tests/nccl_standin)."""
    given = "SELASTIC_ON_STAND_IN" in os.environ
    zygote = Zygote("standin", **stand_in.environment(here=True)) if given else Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def start(zygote: Zygote, tmp_path: Path) -> Iterator[Start]:
    controls: list[Control] = []

    def make(*args: str, directory: Path = tmp_path) -> Control:
        controls.append(Control(zygote, directory, list(args)))
        return controls[-1]

    yield make
    for control in controls:
        control.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'selastic.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store with one job. What it takes is imported here: the shim's tests run where there is no database library."""
    from fresh_store import fresh_store
    from store_records import one_job

    with fresh_store(url, one_job) as opened:
        yield opened


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[elastic.Job]]:
    """Jobs that a test makes in this process; closed after it."""
    for name in ("SELASTIC_CONTROL", "SELASTIC_JOB_DIR", "SELASTIC_AUDIT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    jobs: list[elastic.Job] = []
    yield jobs
    for job in jobs:
        job.close()
