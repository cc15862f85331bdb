"""Trainings on a Slurm as sites configure it: real batch jobs of `selastic run`, each with a selasticd that a test
speaks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon
from site_cluster import SiteCluster
from training_job import TrainingJob
from waiting import wait_until

from slurm_elastic.protocol.messages import Piece, Shape
from slurm_elastic.trainer_shim.training import audit

TRAIN = """
import os, sys, time, torch
import slurm_elastic.trainer_shim as elastic
job = elastic.join(batch=16, max_batch=64, lr="none")
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(100000, 4), torch.randint(0, 3, (100000,)))
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)).to(job.device)
net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy=sys.argv[1])
for epoch in job.epochs(1):
    for x, y in job.loader(data):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        while os.path.exists("stuck") and job.rank == 0:
            time.sleep(0.1)
        job.step(loss)
        time.sleep(0.1 if job.samples < 50000 else 2)  # it does not end before the test is done with it
"""


class Training(TrainingJob):
    """A batch job of `selastic run` on one GPU, with a selasticd of its own that a test speaks for."""

    def __init__(
        self,
        site: SiteCluster,
        folder: Path,
        options: str = "",
        strategy: str = "ddp",
        run: str = "exec",
        run_options: str = "",
    ) -> None:
        """run: what stands before `selastic run` in the batch script's last line; run_options: what follows it."""
        folder.mkdir()
        self.site, self.daemon = site, FakeDaemon()
        env, words = self.daemon.env(folder), f"{run_options} train.py {strategy}"
        super().__init__(site.sandbox, folder, f"--gres=gpu:1 {options}", words, env, f"{run} {{run}}", TRAIN)

    def grow(self, *nodes: str) -> None:
        """Train on a companion's GPU too, on this node where one is named; on one of each where several are."""
        base = self.daemon.wait_registered(120).pieces
        self.daemon.order(1, self.id, base, (Shape(max(1, len(nodes)), 1, node_list=nodes),), wait=120)

    def grown(self) -> Piece:
        """The companion that trains, once some steps are done with it."""
        running = self.daemon.wait_phase(1, "running", 150)
        wait_until(lambda: self.trained() > running.step + 5, 60, self.text)
        return running.pieces[1]

    def trained(self) -> int:
        """The last step that any rank has contributed to."""
        return max((int(row["step"]) for row in audit.read(self.folder / "audit") if "indices" in row), default=0)

    def trained_once(self) -> None:
        """No step was trained twice."""
        trained: dict[int, set[int]] = {}
        for row in audit.read(self.folder / "audit"):
            if "indices" in row:
                trained.setdefault(row["step"], set()).add(row["generation"])
        assert trained and all(len(generations) == 1 for generations in trained.values()), self.text()

    def saved(self) -> int:
        """The step of the newest checkpoint."""
        found = sorted(self.folder.glob(".selastic/*/checkpoints/step-*/checkpoint.json"))
        return int(found[-1].parent.name.removeprefix("step-")) if found else 0

    def state(self) -> str:
        return self.site.squeue(self.id, "%T")

    def comes_to(self, *states: str) -> None:
        wait_until(lambda: self.state() in states, 60, lambda: self.state() + self.text())

    def text(self) -> str:
        out = self.folder / "out.txt"
        logs = [*self.folder.glob(".selastic/*/logs/*")]
        return (out.read_text() if out.exists() else "no output") + "".join(f"\n--{f}\n{f.read_text()}" for f in logs)


@pytest.fixture
def start(site: SiteCluster, tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """start("name", options="-plow") -> a submitted job that trains until it is ended."""
    tmp_path.chmod(0o755)
    jobs: list[Training] = []

    def submit(name: str, **how: str) -> Training:
        jobs.append(Training(site, tmp_path / name, **how))
        return jobs[-1]

    yield submit
    for job in jobs:
        job.daemon.close()
