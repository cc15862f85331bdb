"""What Slurm sends before it ends a job: to the batch script, to every process of its steps, or to both."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import socket_job
from local_run import Run, Start, children, keeps_logs
from malformed import line
from waiting import wait_until

from slurm_elastic.trainer_shim.allocation import driver
from slurm_elastic.trainer_shim.allocation.pieces import events

TRAIN = """
import os, time, torch
import slurm_elastic.trainer_shim as elastic
job = elastic.join(batch=8, lr="none")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
net, iteration = job.replicate(model), 0
job.keep(globals(), "iteration", optimizer=optimizer)
data = torch.utils.data.TensorDataset(torch.randn(4000, 4))
batches = iter(torch.utils.data.DataLoader(data, batch_size=1, num_workers=1))
while job.next():
    for _ in job.share(2):
        net(next(batches)[0]).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    iteration += 1
    if os.path.exists("go"):
        break
    time.sleep(0.02)
"""
SENT = (
    (signal.SIGUSR1, ("steps",)),
    (signal.SIGUSR2, ("steps",)),
    (signal.SIGTERM, ("steps",)),
    (signal.SIGUSR2, ("batch",)),
    (signal.SIGUSR1, ("batch", "steps")),
)


def test_each_signal_before_the_end_is_a_checkpoint_and_nothing_else(start: Start, tmp_path: Path) -> None:
    """Agents, workers and the workers of the script's own loader bear them; the training goes on to its end."""
    (tmp_path / "train.py").write_text(TRAIN)
    run = start("--nproc 2", alone=True)
    run.says("generation 1: 2 workers")
    keepers = _keepers(run)
    for number, targets in SENT:
        saved = run.saved()
        groups = {"batch": [run.process.pid, run.supervisor()], "steps": _below(run.supervisor())}
        for pid in (pid for target in targets for pid in groups[target]):
            os.kill(pid, number)
        wait_until(lambda saved=saved: run.saved() > saved, 30, run.text)
    assert keepers and _keepers(run) == keepers, (keepers, _keepers(run), "the logs go on, too")
    run.go()
    run.ends()
    assert "starting again" not in run.text() and "lost" not in run.text(), run.text()


def test_a_notice_to_the_steps_is_the_jobs() -> None:
    """Of a companion's, too, which it does not end; a SIGTERM there is Slurm's taking it away."""
    with socket_job.job() as made:
        peers = made.trains()
        heard: list[events.Event] = []
        made.supervisor._event = heard.append  # type: ignore[method-assign]
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            made.say(peers["agent"], line(type="notice", signal=number))
        made.until(lambda: len(heard) == 3)
        assert heard == [driver.NOTICE, driver.NOTICE, events.NodeTerminating((1, "n1"))]


def _keepers(run: Run) -> set[int]:
    """Those that live: of a zombie the name is left."""
    return {pid for pid in _below(run.supervisor()) if keeps_logs(pid) and Path(f"/proc/{pid}/cmdline").read_bytes()}


def _below(pid: int) -> list[int]:
    return [found for child in children(pid) for found in (child, *_below(child))]
