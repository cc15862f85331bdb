"""What grows while one training is resized again and again: a campaign in which nothing goes wrong, and each round ends
with a sample. `make soak-growth` prints a table of slopes.

Promise: everything that a training of weeks could fill up is measured, in every process that lives on (supervisor,
agent, its log keeper, rank 0 and its loader workers), in the job directory, TMPDIR and /dev/shm; the slope is the
least-squares line behind a warm-up, with its standard error. Memory is a process's anonymous pages, those included that
it still shares with who forked it: what is private to it grows on both sides as either of them writes to such pages.
Of rank 0 it is also counted what Python and malloc have given out. Limit: `selastic run` without Slurm, so companions
are processes of this machine. torch's flight recorder keeps the last 2,000 communications, which take 3 MB in time.
"""

from __future__ import annotations

from pathlib import Path

from growth import Sample, anonymous_kb, names, reserved_kb
from local_run import children, workers_of
from training import on
from training_ground import LocalTraining

from slurm_elastic.protocol.messages import Happening, Piece, Shape

SCRIPT = """
import ctypes, gc, os, sys, time, torch
import slurm_elastic.trainer_shim as elastic

class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo2

def count():
    gc.collect()
    if sum(type(each).__name__ == "ControlServer" for each in gc.get_objects()) > 1:
        return  # a timer of a second holds the stores of the last worlds
    given_out = mallinfo2().uordblks // 1024
    with open("counted.partial", "w") as file:
        print(len(gc.get_objects()), sys.getallocatedblocks(), given_out, file=file)
    os.remove("count")
    os.rename("counted.partial", "counted")

job = elastic.join(batch=24, max_batch=64, lr="none")
if os.environ.get("NEW_GROUPS"):  # as workers of 0.2.0: another batch comes with another group
    client = job._session.membership.client
    send = client.send
    client.send = lambda message: send({key: value for key, value in message.items() if key != "takes_batches"})
torch.manual_seed(0)
x = torch.randn(499, 4)
model = torch.nn.Linear(4, 1)
net = job.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
data = torch.utils.data.TensorDataset(x)
print("a worker begins", flush=True)
for epoch in job.epochs(1_000_000_000):
    for a, in job.loader(data, num_workers=int(sys.argv[1])):
        job.step((net(a) ** 2).mean())
        if os.path.exists("count") and os.environ["SELASTIC_WORKER"].startswith("0."):
            count()
        time.sleep(0.005)
"""
COUNTED = ("rank 0: Python objects", "rank 0: Python blocks", "rank 0: malloc, kB")


class ResizedTraining(LocalTraining):
    """In each round a worker joins, the batch changes so many times, and the worker leaves."""

    script = SCRIPT

    def __init__(self, folder: Path, loader_workers: int = 2, batches: int = 0, **env: str) -> None:
        """env: of the training; NEW_GROUPS: each batch makes a group."""
        super().__init__(folder, 0, "--nproc", "1", "train.py", str(loader_workers), **env, TMPDIR=str(folder / "tmp"))
        self.batches, self.resizes_in_one = batches, 2 + batches
        self.samples: list[Sample] = []

    def begin(self) -> None:
        (self.folder / "tmp").mkdir()
        super().begin()
        self.base = self.training.base()
        self.node = self.base[0].nodes[0]
        self._shm = names(Path("/dev/shm"))

    def provoke(self) -> str:
        grown = self._resize(self.base, on()).pieces
        for number in range(self.batches):
            self._resize(grown, batch=48 if number % 2 else 32)
        self._resize(self.base)
        return ""

    def _resize(self, keep: tuple[Piece, ...], *add: Shape, batch: int = 0) -> Happening:
        ended = self.training.resize(keep, *add, batch=batch, steps=0)
        # The daemon of this test would remember what it was told.
        self.training.daemon.happenings[:-1], self.training.daemon.reports[:] = [], []
        return ended

    def settle(self) -> bool:
        """Who has left has ended, and what is there is measured."""
        self.training.wait_for(self._alone, 180, every=0.01)
        self.samples.append(self._sample())
        return True

    def left_in_tmp(self) -> list[str]:
        """What the training has left in TMPDIR."""
        return sorted(names(self.folder / "tmp"))

    def _alone(self) -> bool:
        """Only the base's agent is there, and of its children one worker with all its loader workers."""
        agents = self.training.agents()
        return len(agents) == 1 and len(workers_of(next(iter(agents.values())))) == 1

    def _sample(self) -> Sample:
        [agent] = self.training.agents().values()
        [rank_0] = workers_of(agent)
        processes = {"supervisor": [self.training.supervisor()], "agent": [agent], "rank 0": [rank_0]}
        processes["log keeper"] = [pid for pid in children(agent) if pid != rank_0]
        processes["loader workers"] = children(rank_0)
        sample: Sample = {}
        for name, pids in processes.items():
            sample[f"{name}: memory, kB"] = sum(map(anonymous_kb, pids))
            sample[f"{name}: reserved, kB"] = sum(map(reserved_kb, pids))
            sample[f"{name}: descriptors"] = sum(len(names(Path(f"/proc/{pid}/fd"))) for pid in pids)
            sample[f"{name}: threads"] = sum(len(names(Path(f"/proc/{pid}/task"))) for pid in pids)
        sample.update(zip(COUNTED, self._counted(), strict=True))
        sample["loader workers: processes"] = len(processes["loader workers"])
        left = [pid for pid in children(self.training.process.pid) if pid != processes["supervisor"][0]]
        sample["left behind: processes"] = len(left)
        job_dir = [path for path in self.training.job_dir.rglob("*") if "checkpoints" not in path.parts]
        sample["job directory: files"] = len(job_dir)
        sample["TMPDIR: files"] = len([*(self.folder / "tmp").rglob("*")])
        sample["/dev/shm: files"] = len(names(Path("/dev/shm")) - self._shm)
        return sample

    def _counted(self) -> list[int]:
        """What rank 0 counts in itself after the step in which no store of an older world is there any more."""
        counted = self.folder / "counted"
        counted.unlink(missing_ok=True)
        (self.folder / "count").touch()
        self.training.wait_for(counted.exists, 180, every=0.01)
        return [int(word) for word in counted.read_text().split()]

    def end(self) -> None:
        self.training.process.terminate()
        self.training.wait(60)
