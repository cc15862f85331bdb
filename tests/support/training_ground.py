"""One training without Slurm as the ground of a campaign: random resizes with random kills, and the proof that nothing
was lost: `make soak-training`.

Promise: every sample of every epoch counted once, and parameters equal to a replay of the record by one process, so
that neither a gradient nor the optimizer's state was lost or applied twice. Limit: `selastic run` without Slurm, on
this machine; what is killed and when is drawn from the seed, but the moment that a signal hits is the machine's.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import audited
import torch
from campaign import Ground
from fake_daemon import FakeDaemon
from local_run import Run, kill, workers_of

from slurm_elastic.protocol.messages import Piece, Shape
from slurm_elastic.trainer_shim.training import audit

SAMPLES = 499
RATE, MOMENTUM = 0.02, 0.9
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
model.to(job.device)
net = job.wrap(model, torch.optim.SGD(model.parameters(), lr={RATE}, momentum={MOMENTUM}))
for epoch in job.epochs(1_000_000):
    for a, b in job.loader(torch.utils.data.TensorDataset(x, y)):
        job.step(((net(a) - b) ** 2).mean())
        time.sleep(0 if os.path.exists("go") else nap)
    if job.once(os.path.exists, "go"):
        job.stop()
if job.rank == 0:
    torch.save({{name: value.cpu() for name, value in model.state_dict().items()}}, "final.pt")
"""


class LocalTraining(Ground):
    """A training that the test resizes, in a folder of its own; the subclasses say how."""

    script = SCRIPT
    training: Run

    def __init__(self, folder: Path, seed: int, *words: str, **env: str) -> None:
        """words: of `selastic run`, the script's own behind it included. env: of the training."""
        super().__init__(seed)
        self.folder, self.words, self.env = folder, words, env

    def begin(self) -> None:
        (self.folder / "train.py").write_text(self.script)
        self.training = Run(self.folder, *self.words, env=self.env, daemon=FakeDaemon())
        self.training.base()
        self.training.wait_for(lambda: self.training.daemon.happenings, PATIENCE_S)

    def close(self) -> None:
        if hasattr(self, "training"):
            self.training.close()
            self.training.daemon.close()


class KilledTraining(LocalTraining):
    """Use `campaign.run`, then `proof`. A resize that is refused makes no round that counts."""

    kinds = ("kill",)

    def __init__(
        self,
        folder: Path,
        seed: int,
        resizes: int,
        kills: int,
        nap: float = 0.01,
        grows: float = 0.5,
        gpus: dict[str, str] | None = None,
    ) -> None:
        """resizes, kills: so many resizes done, and kills spread among them. gpus: what the stand-in for a GPU and NCCL
        is to be like (stand_in.environment); None: on CPUs."""
        words = [*(["--preload", "standin"] if gpus is not None else []), "--audit", "audit", "train.py", str(nap)]
        super().__init__(folder, seed, "--nproc", "2", *words, **(gpus or {}))
        self.grows = grows
        self.doomed = set(self.chance.sample(range(resizes), kills))
        self.refused = 0
        self.victim = self.before = False
        self.ordered = 0

    def told(self) -> str:
        return f"{super().told()}; {self.refused} resizes given up"

    def choose(self, kinds: tuple[str, ...], most: int) -> list[str]:
        self.victim = self.rounds in self.doomed
        self.doomed.discard(self.rounds)
        self.before = self.victim and self.chance.random() < 0.4
        return list(kinds) if self.victim else []

    def provoke(self) -> str:
        """Somewhere between the order and the new world's first step, or before the order: nobody waits for this length
        of time."""
        if self.before:
            return "rest"
        grows = self.order()
        if self.victim:
            time.sleep(self.chance.random() * (3.0 if grows else 0.1))
        return self.training.daemon.happenings[-1].what

    def order(self) -> bool:
        """A resize; whether something joins."""
        keep, add = self._draw(self._pieces())
        self.ordered = self.training.order(keep, *add, batch=self.chance.choice((24, 31, 48, 64)), wait=60)
        return bool(add)

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

    def _pieces(self) -> tuple[Piece, ...]:
        phases = self.training.daemon.happenings
        return self.training.wait_for(
            lambda: next((p.pieces for p in reversed(phases) if p.what == "running"), ()), PATIENCE_S
        )

    def kill(self) -> None:
        """SIGKILL something that is there, and wait until the training has got beyond what it had saved."""
        saved = self.training.saved()
        kind, pids = self._victims()
        self.happened[kind] += 1
        kill(*pids)
        # Failures that follow each other without progress are the supervisor's to give up on, and rightly so.
        self.training.wait_for(lambda: self.training.saved() > saved, PATIENCE_S)

    def _victims(self) -> tuple[str, list[int]]:
        kind = self.chance.choice(KINDS)
        agents = self.training.wait_for(self.training.agents, PATIENCE_S)
        if kind == "worker" and (workers := [pid for agent in agents.values() for pid in workers_of(agent)]):
            return kind, [self.chance.choice(sorted(workers))]
        companions = sorted({name.partition(".")[0] for name in agents} - {"0"})
        if kind == "piece" and companions:
            chosen = self.chance.choice(companions)
            return kind, [pid for name, pid in agents.items() if name.partition(".")[0] == chosen]
        return "agent", [agents[self.chance.choice(sorted(agents))]]

    def settle(self) -> bool:
        if self.before:
            self.order()
        done = self.training.over(self.ordered).what == "running"
        self.refused += not done
        return done

    def end(self) -> None:
        self.training.go()
        self.training.ends(PATIENCE_S)

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
