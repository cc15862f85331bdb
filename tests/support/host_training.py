"""Trainings on several hosts: a real batch job of `selastic run`, with a selasticd that a test speaks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon
from sandbox_of_hosts.names import HEAD, address
from sandbox_of_hosts.sandbox import HostsSandbox
from training_job import TrainingJob
from waiting import wait_until

from slurm_elastic.protocol.messages import Shape
from slurm_elastic.trainer_shim.training import audit

SAMPLES = 20000
TRAIN = f"""
import os, time, torch
import slurm_elastic.trainer_shim as elastic
while os.path.exists("cold"):
    time.sleep(0.1)
job = elastic.join(batch=16, max_batch=64, lr="none")
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn({SAMPLES}, 4), torch.randint(0, 3, ({SAMPLES},)))
model = torch.nn.Linear(4, 3)
net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
for epoch in job.epochs(1):
    for x, y in job.loader(data):
        while os.path.exists("stuck") and job.rank == 0:
            time.sleep(0.1)
        job.step(torch.nn.functional.cross_entropy(net(x), y))
        if not os.path.exists("go"):
            time.sleep(0.1 if job.samples < {SAMPLES} / 2 else 2)  # it does not end before the test is done with it
"""


class HostTraining(TrainingJob):
    """One such job; its selasticd listens on slurmctld's host, where this process has its network."""

    samples = SAMPLES

    def __init__(self, hosts: HostsSandbox, folder: Path, *options: str, words: str, env: dict[str, str]) -> None:
        folder.mkdir()
        self.daemon = FakeDaemon(host=address(HEAD))
        variables = {**self.daemon.env(folder), **env}
        super().__init__(hosts, folder, " ".join(options), f"{words} train.py", variables, train=TRAIN)

    def shape(self, node: str, gpus: int = 1) -> Shape:
        """A companion on this node."""
        return Shape(1, gpus, node_list=(node,))

    def trained(self) -> int:
        """The last step that any rank has contributed to."""
        return max((int(row["step"]) for row in audit.read(self.folder / "audit") if "indices" in row), default=0)

    def trains_past(self, step: int, timeout: float = 120) -> None:
        wait_until(lambda: self.trained() > step, timeout, self.text)


@contextmanager
def there_is(job: TrainingJob, name: str) -> Iterator[None]:
    """While this file is in the job's folder; its workers look for it."""
    (job.folder / name).touch()
    yield
    (job.folder / name).unlink()


@pytest.fixture
def start(hosts: HostsSandbox) -> Iterator[Callable[..., HostTraining]]:
    """start("-N2", "--gres=gpu:1") -> a submitted job, whose folder every host sees. words: more options of `run`."""
    jobs: list[HostTraining] = []

    def submit(*options: str, words: str = "", env: dict[str, str] | None = None) -> HostTraining:
        folder = hosts.home / f"training{len(list(hosts.home.iterdir()))}"
        jobs.append(HostTraining(hosts, folder, *options, words=words, env=env or {}))
        return jobs[-1]

    yield submit
    for job in jobs:
        job.daemon.close()
