"""The training that bench_resize.py resizes: a small perceptron, or one whose state is 280 MB.

It notes on rank 0 when each step ended (CLOCK_MONOTONIC, one for all processes of a host) and, where SELASTIC_CONTROL
names a supervisor, how long each part of a switch took. Run without one it is the cold restart: the same script, made
anew by RANK and WORLD_SIZE, from the checkpoint that SIGTERM made the old processes write.
"""

from __future__ import annotations

import time

BEGUN = time.monotonic()

import argparse  # noqa: E402
import functools  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
from collections import Counter  # noqa: E402
from itertools import pairwise  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

import slurm_elastic.trainer_shim as elastic  # noqa: E402

WIDTHS = {"small": (64, 512, 640, 64), "large": (1024, 3072, 3072, 3072, 512)}
"""0.4 million parameters, 5 MB with AdamW's two moments; 23.6 million, 283 MB."""
IMPORTED = time.monotonic()


def perceptron(size: str) -> nn.Module:
    """Layers of these widths."""
    widths = WIDTHS[size]
    layers = [nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(widths)]
    return nn.Sequential(*layers)


class Stopwatch:
    """Adds up what some functions take during a switch; what is called inside another one counts there only."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._depth = 0

    def watch(self, owner: Any, name: str, phase: str, first: bool = False) -> None:
        """From now on, calls of owner.name count as `phase`; with the `first` one a switch begins, and nothing counts
        that was spent before, on a checkpoint for one."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if first:
                self.spent.clear()
            begun = time.monotonic()
            self._depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.spent[phase] += time.monotonic() - begun

        setattr(owner, name, timed)

    def taken(self) -> dict[str, float]:
        """What was spent since the last call."""
        spent, self.spent = self.spent, Counter()
        return dict(spent)


def watched(job: elastic.Job) -> Stopwatch:
    """The parts of a switch, in their order."""
    from slurm_elastic.trainer_shim.training import switch
    from slurm_elastic.trainer_shim.world import groups, objects, p2p, process_group, rendezvous, state_transfer

    session, watch = job._session, Stopwatch()
    model, state = session.model(), session.state
    watch.watch(session.reporting, "leaving", "last report", first=True)
    watch.watch(session.snapshots, "begin", "begin a copy")
    for name in ("__init__", "arrive", "wait_open"):
        watch.watch(rendezvous.Gate, name, "all arrive")
    watch.watch(process_group, "gather", "agree, who has state")
    watch.watch(model, "disconnect", "drop old model")
    watch.watch(groups.Groups, "leave", "leave group")
    watch.watch(process_group, "form", "form group")
    watch.watch(model, "connect", "wrap model")
    watch.watch(state_transfer, "rescue", "leavers' parts")
    watch.watch(objects, "send", "what there is")
    watch.watch(objects, "gather", "who has what")
    watch.watch(p2p, "move", "send state")
    watch.watch(state, "restore", "take state over")
    watch.watch(switch.WorldSwitch, "settle", "all have done it")
    watch.watch(session.snapshots, "hold", "end of the copy")
    watch.watch(session, "take_batch", "batch, slices")
    return watch


def as_before(job: elastic.Job) -> None:
    """As in 0.2.0: another batch comes with another process group."""
    client = job._session.membership.client
    assert client is not None
    send = client.send
    client.send = lambda message: send(  # type: ignore[method-assign]
        {name: value for name, value in message.items() if name != "takes_batches"}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=tuple(WIDTHS), default="small")
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--checkpoints", help="directory, for the cold restart")
    parser.add_argument("--out", required=True, help="file that rank 0 appends to")
    args = parser.parse_args()
    job = elastic.join(batch=32, max_batch=64, lr="none", checkpoints=args.checkpoints)
    if "NEW_GROUPS" in os.environ:
        as_before(job)
    torch.manual_seed(0)
    widths = WIDTHS[args.size]
    data = torch.utils.data.TensorDataset(torch.randn(4096, widths[0]), torch.randn(4096, widths[-1]))
    model = perceptron(args.size).to(job.device)
    net = job.wrap(model, torch.optim.AdamW(model.parameters()), strategy=args.strategy)
    watch = watched(job) if "SELASTIC_CONTROL" in os.environ else Stopwatch()
    made = time.monotonic()
    out = os.open(Path(args.out), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    generation = None
    for _ in job.epochs(1_000_000):
        for x, y in job.loader(data):
            begun = time.monotonic()
            job.step(((net(x) - y) ** 2).mean())
            ended = time.monotonic()
            if job.rank != 0:
                continue
            line: dict[str, Any] = {"at": ended, "world": job.generation, "size": job.world_size, "batch": job.batch}
            if (job.generation, job.world_size) != generation:
                generation = (job.generation, job.world_size)
                line |= {"phases": watch.taken(), "begun": begun, "process": [BEGUN, IMPORTED, made]}
            os.write(out, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    main()
