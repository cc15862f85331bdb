"""What logs a run, and what is done once before the loop, over resizes, a rank 0 that moves, and kills."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from local_jobs import loss_of, refused, wrapped
from waiting import run
from worker_harness import NAMESPACE, SCRIPT, Control, Zygote

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.checkpoint import results

OWN = SCRIPT.with_name("own_loop_train.py")


@pytest.fixture
def control(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    control = Control(zygote, tmp_path, ["--hold-from", "0", "--pace", "0.01"], OWN)
    yield control
    control.close()


def logged(directory: Path) -> list[int]:
    """The steps that TensorBoard would show of the only run: each file's first line discards what older ones have from
    its step on."""
    (run,) = directory.glob("run-*")
    steps: list[int] = []
    for file in sorted(run.iterdir()):
        first, *events = map(json.loads, file.read_text().splitlines())
        steps = [step for step in steps if step < first["purge"]] + [event["step"] for event in events]
    return steps


def test_a_run_is_one_run_over_resizes_and_a_kill(zygote: Zygote, control: Control, tmp_path: Path) -> None:
    """1 -> 3 -> 2 workers, rank 0 replaced, all killed after a checkpoint, two new ones: every step is logged once, in
    one run, by whoever was rank 0; the directory was made once, and the download on this node made once."""
    control.start("a")
    control.resize("a", "b", "c")
    control.resize("b", "c")
    control.send("b", {"type": "checkpoint"})
    saved = control.wait(lambda _, message: message["type"] == "saved")
    for name in "bc":
        control.kill(name)
    control.exits("a", "b", "c", hold=True)
    control.members = []
    control.start("d", "e", source="checkpoint")
    assert control.exits("d", "e") == [0, 0], control.story()
    assert saved["step"] < 60
    assert logged(tmp_path) == list(range(60))
    for kept in ("runs", "downloads"):
        assert len((tmp_path / f"{kept}.jsonl").read_text().splitlines()) == 1


class Writer:
    def __init__(self, step: int) -> None:
        self.step, self.said = step, []

    def add(self, value: int) -> str:
        self.said.append(value)
        return "added"

    def flush(self) -> None:
        self.said.append("flushed")

    def finish(self) -> None:
        self.said.append("finished")


def test_a_tracker_is_opened_when_it_is_used_and_ended_at_the_end(made: list[elastic.Job]) -> None:
    opened: list[Writer] = []

    def open(step: int) -> Writer:
        opened.append(Writer(step))
        return opened[-1]

    job, net, _ = wrapped(made)
    tracker = job.tracker(open)
    assert tracker.add(1) is None and not opened
    data = torch.utils.data.TensorDataset(torch.zeros(8, 3), torch.zeros(8, 1))
    for _ in job.epochs(2):
        for batch in job.loader(data):
            job.step(loss_of(net, batch))
            assert tracker.add(job.global_step) == "added"
    with refused(r"job.tracker\(\) was called after the loop had begun"):
        job.tracker(open)
    job.close()
    (writer,) = opened
    assert writer.step == 1
    assert writer.said == [1, 2, "flushed", "finished"]
    assert tracker.add(3) is None


def test_a_tracker_follows_rank_0(made: list[elastic.Job]) -> None:
    job, *_ = wrapped(made)
    trackers, opened = job._session.trackers, []
    tracker = job.tracker(lambda step: opened.append(Writer(step)) or opened[-1])
    trackers.entered(here=True, steps=4)
    tracker.add(5)
    trackers.leaving(stays=True)
    trackers.entered(here=True, steps=7)
    tracker.add(8)
    trackers.leaving(stays=False)
    trackers.entered(here=False, steps=9)
    tracker.add(10)
    trackers.leaving(stays=False)
    trackers.entered(here=True, steps=12)
    tracker.add(13)
    assert [(writer.step, writer.said) for writer in opened] == [(5, [5, "flushed", 8, "finished"]), (13, [13])]


def test_once_before_the_loop_is_kept_for_the_next_start(made: list[elastic.Job], tmp_path: Path) -> None:
    """A run's id stays; calls are told apart by their order; without checkpoints nothing is kept."""
    calls: list[str] = []

    def new_id(word: str) -> str:
        calls.append(word)
        return f"{word}{len(calls)}"

    for _ in range(2):
        job, *_ = wrapped(made, checkpoints=tmp_path)
        assert [job.once(new_id, "a"), job.once(new_id, "b")] == ["a1", "b2"]
        job.close()
    for number in (3, 4):
        job, *_ = wrapped(made)
        assert job.once(new_id, "c") == f"c{number}"
        job.close()
    job, *_ = wrapped(made, checkpoints=tmp_path / "other")
    with refused("once-1-Path returned a pathlib.*accepted: tensors, numbers, strings"):
        job.once(Path, "a")


def test_others_wait_for_the_first_and_take_over_from_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that takes longer than a dead worker is waited for is not made twice while its maker lives."""
    monkeypatch.setattr(results, "STALE_S", 0.5)
    monkeypatch.setattr(results, "BEAT_S", 0.05)
    begun, go, found = threading.Event(), threading.Event(), []

    def slow() -> int:
        begun.set()
        go.wait(30)
        return 1

    threads = [threading.Thread(target=lambda: found.append(results.once(tmp_path, "x", slow)))]
    threads[0].start()
    assert begun.wait(30)
    threads.append(threading.Thread(target=lambda: found.append(results.once(tmp_path, "x", lambda: 2))))
    threads[1].start()
    threads[1].join(1.0)  # twice as long as a dead one
    assert not found
    go.set()
    for thread in threads:
        thread.join(30)
    assert found == [1, 1]
    (tmp_path / ".y.claim0").touch()  # its maker was killed
    assert results.once(tmp_path, "y", lambda: 3) == 3

    def fails() -> None:
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        results.once(tmp_path, "z", fails)
    monkeypatch.setattr(results, "STALE_S", 1e9)
    assert results.once(tmp_path, "z", lambda: 4) == 4


def test_one_process_of_a_node_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at once; another job, or another temporary directory, does it again."""
    count = tmp_path / "count"
    code = (
        "import sys, slurm_elastic.trainer_shim as elastic\n"
        f"job = elastic.join(batch=8, checkpoints={str(tmp_path / 'kept')!r})\n"
        f"print(job.on_each_node(lambda: open({str(count)!r}, 'a').write('x')))\n"
    )
    environ = dict(os.environ, PYTHONPATH=str(NAMESPACE), TMPDIR=str(tmp_path))
    command = [sys.executable, "-c", code]
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: run(command, env=environ), range(3)))
    assert [one.stdout for one in done] == ["1\n"] * 3, done
    assert count.read_text() == "x"
    (made,) = tmp_path.glob("selastic-*")
    guessed = hashlib.blake2b(f"{(tmp_path / 'kept').resolve()} 0".encode(), digest_size=8).hexdigest()
    assert not made.name.endswith(guessed), "whoever knows the job's directory knows the name"
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert results.once_on_node("another", "once-1-lambda", lambda: 5) == 5
    (open_to_all,) = [
        path
        for path in tmp_path.glob("selastic-*")
        if (path / "once-1-lambda.pt").stat().st_size and torch.load(path / "once-1-lambda.pt") == 5
    ]
    open_to_all.chmod(0o777)
    with pytest.raises(TrainingError, match="can be written by others"):
        results.once_on_node("another", "once-1-lambda", lambda: 6)
