"""The stand-in itself: it behaves as a GPU and NCCL do where the product's care begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from free_ports import free_port
from stand_in import HOME
from worker_harness import Zygote, tail

ABORTED = "NCCL communicator was aborted on rank 0."


def _said(zygote: Zygote, folder: Path, name: str, ranks: int = 2, **settings: str) -> tuple[list[str], list[int]]:
    """What each rank says, and how it ended."""
    port, logs = free_port(), [folder / f"{rank}.log" for rank in range(ranks)]
    for rank, log in enumerate(logs):
        zygote.spawn(f"{folder}{rank}", HOME / "checks.py", [name, str(rank), str(port)], settings, log)
    codes = [zygote.wait(f"{folder}{rank}") for rank in range(ranks)]
    return [log.read_text() for log in logs], codes


@pytest.mark.parametrize(
    ("name", "ranks", "settings", "wanted"),
    [
        ("device", 1, {}, ["gradients True", "mixed: Expected all tensors to be on the same device",
                           "host waited False passed False", "took True"]),
        ("memory", 2, {"STANDIN_MEMORY_MB": "100", "STANDIN_COMM_MB": "40"},
         ["full: CUDA out of memory.", "no room: True", "sum 2.0 of communicators 40000000", "of communicators 0"]),
        ("lost", 2, {}, ["sum [2.0, 2.0, 2.0, 2.0]", "hangs True", "data nan", f"then: {ABORTED}"]),
        ("forming", 2, {"STANDIN_FORM_S": "1"}, ["formed late True", "still forms True"]),
        ("switched", 1, {}, ["copied [[3.0, 3.0], [3.0, 3.0]]"]),
        ("copies", 1, {"STANDIN_COPY_MB_S": "20"}, ["host waited False", "both took True and True", "copied True"]),
        ("warmed", 1, {"STANDIN_COMM_MB": "40"},
         ["as before True", "random True computed True", "formed 1 held 0 False {}"]),
        ("times", 1, {}, ["right to 3 % True"]),
        ("fit", 1, {"STANDIN_MEMORY_MB": "600"}, ["fits 1"]),
    ],
)  # fmt: skip
def test_it_does_what_a_gpu_does(
    zygote: Zygote, tmp_path: Path, name: str, ranks: int, settings: dict[str, str], wanted: list[str]
) -> None:
    """Queues, memory that stays reserved, hangs in place of errors, aborts, a forming without a bound; steps
    are as long for the product as for it."""
    (said, *_), codes = _said(zygote, tmp_path, name, ranks, **settings)
    assert codes[0] == 0, tail(said)
    lines = said.splitlines()
    assert [want for want in wanted if not any(line.startswith(want) for line in lines)] == [], tail(said)


def test_state_goes_to_two_ranks_at_one_reading(zygote: Zygote, tmp_path: Path) -> None:
    """And through a few buckets of pinned memory, whatever the sizes and layouts of its tensors."""
    for rank, said in enumerate(_said(zygote, tmp_path, "moved", 3)[0]):
        assert said.splitlines() == ["read once True", "in host memory True", "arrived True"], (rank, tail(said))


def test_its_watchdog_ends_a_process_whose_ranks_do_not_match(zygote: Zygote, tmp_path: Path) -> None:
    """Another size hangs, and when the collective's time is over the process is gone."""
    (said, _), codes = _said(zygote, tmp_path, "mismatch")
    assert "standin: watchdog: a collective has taken longer than its time: the process ends" in said, tail(said)
    assert set(codes) == {-6}
