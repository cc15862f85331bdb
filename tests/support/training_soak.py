"""Random resizes of a real training with random kills, and the proof that nothing was lost: `make soak-training`.

Promise: every sample of every epoch counted once, and parameters equal to a replay of the record by one process, so
that neither a gradient nor the optimizer's state was lost or applied twice. Limit: `selastic run` without Slurm, on
this machine; what is killed and when is drawn from the seed, but the moment that a signal hits is the machine's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch

sys.path.insert(0, str(Path(__file__).parent))

import audited
from fake_daemon import FakeDaemon
from local_run import Run, workers_of
from waiting import wait_until

from slurm_elastic.protocol.messages import Phase, Piece, Shape
from slurm_elastic.trainer_shim.allocation import job_dir
from slurm_elastic.trainer_shim.training import audit

T = TypeVar("T")
SAMPLES = 499
RATE, MOMENTUM = 0.02, 0.9
TERMINAL = ("running", "failed", "withdrawn")
KINDS = ("worker", "agent", "piece")
MOST_GPUS = 6
PATIENCE_S = 180.0
MODEL = """
def make(samples):
    torch.manual_seed(0)
    x = torch.randn(samples, 4, dtype=torch.float64)
    return torch.nn.Linear(4, 1).double(), x, torch.sin(x.sum(1, keepdim=True))
"""
SCRIPT = f"""
import os, sys, time, torch
import slurm_elastic.trainer_shim as elastic
{MODEL}
nap = float(sys.argv[1])
job = elastic.join(batch=24, max_batch=64, lr="none")
model, x, y = make({SAMPLES})
net = job.wrap(model, torch.optim.SGD(model.parameters(), lr={RATE}, momentum={MOMENTUM}))
for epoch in job.epochs(1_000_000):
    for a, b in job.loader(torch.utils.data.TensorDataset(x, y)):
        job.step(((net(a) - b) ** 2).mean())
        time.sleep(0 if os.path.exists("stop") else nap)
    if job.once(os.path.exists, "stop"):
        job.stop()
if job.rank == 0:
    torch.save(model.state_dict(), "final.pt")
"""


@dataclass
class Told:
    """What a soak did, for its last line."""

    resizes: int = 0
    refused: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    pauses: list[float] = field(default_factory=list)


class Soak:
    """One training under random orders and kills. Use `run`, then `proof`."""

    def __init__(self, folder: Path, seed: int, nap: float = 0.01, grows: float = 0.5) -> None:
        self.folder, self.nap, self.grows = folder, nap, grows
        self.chance = random.Random(seed)
        self.told = Told()
        self._ids = itertools.count(1)

    def run(self, resizes: int, kills: int) -> None:
        """So many resizes done and so many kills, spread among them; then let the training end."""
        (self.folder / "train.py").write_text(SCRIPT)
        doomed = set(self.chance.sample(range(resizes), kills))
        with FakeDaemon() as self.daemon:
            words = ("--nproc", "2", "--audit", "audit", "train.py", str(self.nap))
            self.process = Run(self.folder, *words, env=self.daemon.env(self.folder))
            try:
                self.daemon.wait_registered(PATIENCE_S)
                while self.told.resizes < resizes:
                    self._one(doomed)
                (self.folder / "stop").touch()
                assert self.process.wait(PATIENCE_S) == 0, self._story()
            finally:
                if self.process.process.poll() is None:
                    self.process.process.kill()
                    self.process.process.wait()
                self.process.out.close()

    def _one(self, doomed: set[int]) -> None:
        number = self.told.resizes
        victim = number in doomed
        doomed.discard(number)
        before = victim and self.chance.random() < 0.4
        if before:
            self._kill()
        pieces = self._pieces()
        keep, add = self._draw(pieces)
        resize_id = next(self._ids)
        self.daemon.order(resize_id, 0, keep, add, batch=self.chance.choice((24, 31, 48, 64)))
        if victim and not before:
            # Somewhere between the order and the new world's first step: nobody waits for this length of time.
            time.sleep(self.chance.random() * (3.0 if add else 0.1))
            self._kill()
        ended = self._wait(lambda: next((p for p in self._phases(resize_id) if p.phase in TERMINAL), None), "an end")
        if ended.phase == "running":
            self.told.resizes += 1
            self.told.pauses.append(ended.pause_s)
        else:
            self.told.refused += 1

    def _draw(self, pieces: tuple[Piece, ...]) -> tuple[tuple[Piece, ...], tuple[Shape, ...]]:
        """What to keep of these pieces, and what to add; the batch host stays."""
        keep = [pieces[0]]
        for piece in pieces[1:]:
            nodes = tuple(node for node in piece.nodes if self.chance.random() < 0.6)
            keep += [replace(piece, nodes=nodes)] if nodes else []
        shape = Shape(self.chance.choice((1, 1, 2)), self.chance.choice((1, 1, 2)))
        room = MOST_GPUS - sum(piece.gpus for piece in keep)
        grow = self.chance.random() < self.grows and shape.gpus <= room
        return tuple(keep), (shape,) if grow else ()

    def _kill(self) -> None:
        """SIGKILL something that is there, and wait until the training has got beyond what it had saved."""
        saved = job_dir.newest_step(self.process.job_dir) or 0
        kind, pids = self._victims()
        self.told.kills[kind] += 1
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Failures that follow each other without progress are the supervisor's to give up on, and rightly so.
        self._wait(lambda: (job_dir.newest_step(self.process.job_dir) or 0) > saved, f"progress after a {kind}'s death")

    def _victims(self) -> tuple[str, list[int]]:
        kind = self.chance.choice(KINDS)
        agents = self._wait(self.process.agents, "an agent")
        if kind == "worker" and (workers := [pid for agent in agents.values() for pid in workers_of(agent)]):
            return kind, [self.chance.choice(sorted(workers))]
        companions = sorted({name.partition(".")[0] for name in agents} - {"0"})
        if kind == "piece" and companions:
            chosen = self.chance.choice(companions)
            return kind, [pid for name, pid in agents.items() if name.partition(".")[0] == chosen]
        return "agent", [agents[self.chance.choice(sorted(agents))]]

    def _pieces(self) -> tuple[Piece, ...]:
        return self._wait(
            lambda: next((p.pieces for p in reversed(self.daemon.phases) if p.phase == "running"), ()), ""
        )

    def _phases(self, resize_id: int) -> list[Phase]:
        return [phase for phase in list(self.daemon.phases) if phase.resize == resize_id]

    def _wait(self, predicate: Callable[[], T], what: str) -> T:
        def looked() -> T:
            assert self.process.process.poll() is None, f"the run has ended\n{self._story()}"
            return predicate()

        return wait_until(looked, PATIENCE_S, lambda: f"{what}\n{self._story()}")

    def _story(self) -> str:
        return f"{self.told}\n{self.process.text()[-6000:]}\n{self.daemon.told()[-12:]}"

    def proof(self) -> audited.AuditResult:
        """Check the record of samples, and the parameters against a replay of it. AssertionError names what is off."""
        lines = list(audit.read(self.folder / "audit"))
        epochs = 1 + max(int(entry["epoch"]) for entry in lines if "epoch" in entry)
        result = audited.check(self.folder / "audit", SAMPLES, epochs)
        assert result.ok, result
        off = replay(audit.effective(lines), torch.load(self.folder / "final.pt"))
        assert off < 1e-12, f"parameters differ from the replay's by {off}"
        return result


def replay(lines: list[audit.Line], final: dict[str, torch.Tensor]) -> float:
    """Take the recorded steps in one process; the largest difference from the final parameters."""
    steps: dict[int, list[int]] = {}
    for entry in lines:
        steps.setdefault(int(entry["step"]), []).extend(entry["indices"])
    space: dict[str, object] = {"torch": torch}
    exec(MODEL, space)
    model, x, y = space["make"](SAMPLES)  # type: ignore[operator]
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    for step in sorted(steps):
        optimizer.zero_grad()
        ((model(x[steps[step]]) - y[steps[step]]) ** 2).mean().backward()
        optimizer.step()
    return max(float((value - final[name]).abs().max()) for name, value in model.state_dict().items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resizes", type=int, default=100)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="selastic-soak-") as folder:
        soak = Soak(Path(folder), args.seed)
        begun = time.monotonic()
        print(f"seed {args.seed}: {args.resizes} resizes, {args.kills} kills", flush=True)
        soak.run(args.resizes, args.kills)
        result, told = soak.proof(), soak.told
    kills = ", ".join(f"{count} of {kind}s" for kind, count in sorted(told.kills.items()))
    print(
        f"{told.resizes} resizes done, {told.refused} given up, kills: {kills}; {result.restarts} restarts\n"
        f"{result.epochs_seen} epochs, {result.steps} steps, {result.worlds} worlds: every sample of every epoch once, "
        f"parameters as in a replay; {time.monotonic() - begun:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
