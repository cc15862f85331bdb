"""What grows while one training is resized again and again: `make soak-growth` prints a table of slopes.

Promise: everything that a training of weeks could fill up is measured, in every process that lives on (supervisor,
agent, its log keeper, rank 0 and its loader workers), in the job directory, TMPDIR and /dev/shm; the slope is the
least-squares line behind a warm-up, with its standard error. Memory is a process's anonymous pages, those included that
it still shares with who forked it: what is private to it grows on both sides as either of them writes to such pages.
Of rank 0 it is also counted what Python and malloc have given out. Limit: `selastic run` without Slurm, so companions
are processes of this machine. torch's flight recorder keeps the last 2,000 communications, which take 3 MB in time.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parent))

from fake_daemon import FakeDaemon
from local_run import Run, children
from waiting import wait_until

from slurm_elastic.protocol.messages import Phase, Piece, Shape

T = TypeVar("T")
PATIENCE_S = 180.0
WARM_UP = 0.3
"""This part of the resizes is not counted."""
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
Sample = dict[str, float]
Slopes = dict[str, tuple[float, float, float]]
"""Of each measure: its value at the end, its growth per unit behind the warm-up, and the growth's standard error."""


class GrowthSoak:
    """One training, resized up and down. Use `run`, then `slopes`."""

    def __init__(self, folder: Path, loader_workers: int = 2) -> None:
        self.folder, self.loader_workers = folder, loader_workers
        self.samples: list[Sample] = []
        self._ids = itertools.count(1)

    def run(self, cycles: int, batches: int = 0, minutes: float = 1e9, **env: str) -> None:
        """In each cycle a worker joins, the batch changes so many times, and the worker leaves; then a sample. Fewer
        cycles where the time is over before. env: of the training; NEW_GROUPS: each batch makes a group."""
        end = time.monotonic() + 60 * minutes
        self._resizes_in_one = 2 + batches
        (self.folder / "train.py").write_text(SCRIPT)
        (self.folder / "tmp").mkdir()
        with FakeDaemon() as self.daemon:
            env = {**self.daemon.env(self.folder), "TMPDIR": str(self.folder / "tmp"), **env}
            self.process = Run(self.folder, "--nproc", "1", "train.py", str(self.loader_workers), env=env)
            try:
                base = self.daemon.wait_registered(PATIENCE_S).pieces
                self._base = base[0]
                self._wait(lambda: self.daemon.phases, "the first world")
                self._shm = names(Path("/dev/shm"))
                for _ in range(cycles):
                    grown = self._resize(base, (Shape(1, 1),))
                    for number in range(batches):
                        self._resize(grown, batch=48 if number % 2 else 32)
                    self._resize(base)
                    self._wait(self._alone, "the end of who has left")
                    self.samples.append(self._sample())
                    if time.monotonic() > end:
                        break
            finally:
                self.process.process.terminate()
                self.process.process.wait(60)
                self.process.out.close()

    def slopes(self) -> Slopes:
        return slopes(self.samples, self._resizes_in_one)

    def left_in_tmp(self) -> list[str]:
        """What the training has left in TMPDIR."""
        return sorted(names(self.folder / "tmp"))

    def node(self) -> str:
        """The base's."""
        return self._base.nodes[0]

    def _resize(self, keep: tuple[Piece, ...], add: tuple[Shape, ...] = (), batch: int = 0) -> tuple[Piece, ...]:
        number = next(self._ids)
        self.daemon.order(number, 0, keep, add, batch)
        ended = self._wait(lambda: self._ended(number), f"resize {number}")
        assert ended.phase == "running", (ended, self.process.text()[-3000:])
        # The daemon of this test would remember what it was told.
        self.daemon.phases[:-1], self.daemon.reports[:] = [], []
        return ended.pieces

    def _ended(self, number: int) -> Phase | None:
        said = [phase for phase in list(self.daemon.phases) if phase.resize == number]
        return next((phase for phase in said if phase.phase in ("running", "failed", "withdrawn")), None)

    def _alone(self) -> bool:
        """Only the base's agent is there, and of its children one worker with all its loader workers."""
        agents = self.process.agents()
        if len(agents) != 1:
            return False
        return len(self._rank_0(next(iter(agents.values())))) == 1

    def _rank_0(self, agent: int) -> list[int]:
        return [pid for pid in children(agent) if named(pid) != "selastic-log"]

    def _sample(self) -> Sample:
        [agent] = self.process.agents().values()
        [rank_0] = self._rank_0(agent)
        processes = {"supervisor": [self.process.supervisor()], "agent": [agent], "rank 0": [rank_0]}
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
        left = [pid for pid in children(self.process.process.pid) if pid != processes["supervisor"][0]]
        sample["left behind: processes"] = len(left)
        job_dir = [path for path in self.process.job_dir.rglob("*") if "checkpoints" not in path.parts]
        sample["job directory: files"] = len(job_dir)
        sample["TMPDIR: files"] = len([*(self.folder / "tmp").rglob("*")])
        sample["/dev/shm: files"] = len(names(Path("/dev/shm")) - self._shm)
        return sample

    def _counted(self) -> list[int]:
        """What rank 0 counts in itself after its next step."""
        counted = self.folder / "counted"
        counted.unlink(missing_ok=True)
        (self.folder / "count").touch()
        self._wait(counted.exists, "what rank 0 counts")
        return [int(word) for word in counted.read_text().split()]

    def _wait(self, predicate: Callable[[], T], what: str) -> T:
        def looked() -> T:
            assert self.process.process.poll() is None, f"the run has ended\n{self.process.text()[-3000:]}"
            return predicate()

        return wait_until(looked, PATIENCE_S, lambda: f"{what}\n{self.process.text()[-3000:]}", every=0.01)


def named(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def names(folder: Path) -> set[str]:
    """Of what is in it; nothing where it belongs to a process that has just ended."""
    try:
        return {path.name for path in folder.iterdir()}
    except OSError:
        return set()


def anonymous_kb(pid: int) -> int:
    """What this process has in memory that is of no file."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def reserved_kb(pid: int) -> int:
    """What this process may write to without asking for more. Memory that grows within it, as heaps that are there
    already are used to their ends, comes to a halt."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmData:"))


def line(values: list[float]) -> tuple[float, float]:
    """Slope of the least-squares line through equally spaced values, and the slope's standard error."""
    count = len(values)
    middle, mean = (count - 1) / 2, sum(values) / count
    spread = sum((place - middle) ** 2 for place in range(count))
    slope = sum((place - middle) * (value - mean) for place, value in enumerate(values)) / spread
    rest = sum((value - mean - slope * (place - middle)) ** 2 for place, value in enumerate(values))
    return slope, (rest / max(1, count - 2) / spread) ** 0.5


def slopes(samples: list[Sample], units: int, fills: int = 0) -> Slopes:
    """units: resizes, or jobs, between two samples. fills: so many of them at least are the warm-up, where there are
    half as many more behind it."""
    kept = samples[warm_up(len(samples), -(-fills // units)) :]
    found = {}
    for name in kept[-1]:
        values = [sample[name] for sample in kept]
        slope, error = line(values)
        found[name] = (values[-1], slope / units, error / units)
    return found


def warm_up(samples: int, fills: int = 0) -> int:
    """How many of the first samples are not counted."""
    return max(int(samples * WARM_UP), fills if 2 * samples >= 3 * fills else 0)


def print_slopes(found: Slopes, unit: str) -> None:
    print(f"| what | at the end | {unit} | standard error |\n|---|---|---|---|")
    for name, (value, slope, error) in found.items():
        print(f"| {name} | {value:.0f} | {slope:.4f} | {error:.4f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resizes", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=48, help="changes of the batch between a grow and a shrink")
    parser.add_argument("--minutes", type=float, default=1e9, help="end after these, however many there were")
    parser.add_argument("--in-place", action="store_true", help="the batch changes in the group as it is")
    parser.add_argument("--loader-workers", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="selastic-growth-") as folder:
        soak = GrowthSoak(Path(folder), args.loader_workers)
        begun = time.monotonic()
        groups = {} if args.in_place else {"NEW_GROUPS": "1"}
        soak.run(args.resizes // (2 + args.batches), args.batches, args.minutes, **groups)
        resizes = len(soak.samples) * (2 + args.batches)
        print(f"{resizes} resizes of one training in {time.monotonic() - begun:.0f} s\n")
        print_slopes(soak.slopes(), "per resize")
        left = soak.left_in_tmp()
    print(f"\nleft in TMPDIR at the end: {', '.join(left) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
