"""A training whose ranks' gradients, or own steps, are combined by adaptive summation. And, with --replay, the same
steps in one process without a job, from the record of which rank had which samples."""

from __future__ import annotations

from copy import deepcopy
from itertools import groupby
from pathlib import Path

import torch
from script_options import Pace, knobs

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.parallel.reduction.adasum import weights_of
from slurm_elastic.trainer_shim.training.audit import effective, read

CLIP = 0.5
parser = knobs(samples=41)
parser.add_argument("--replay", action="store_true")
parser.add_argument("--optimizer", default="sgd")
parser.add_argument("--scaler", action="store_true")
parser.add_argument("--combine", default="adasum")
parser.add_argument("--rate", type=float, default=0.05)
args = parser.parse_args()
generator = torch.Generator().manual_seed(3)
x, y = (torch.randn(args.samples, width, generator=generator, dtype=torch.float64) for width in (5, 1))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
optimizer: torch.optim.Optimizer = {
    "sgd": lambda: torch.optim.SGD(model.parameters(), lr=args.rate),
    "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=args.rate / 5),
}[args.optimizer]()


def combined(of_ranks: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Layer by layer."""
    found = []
    for layer in zip(*of_ranks, strict=True):
        rows = torch.stack([entry.reshape(-1) for entry in layer])
        ranks = len(rows)
        weights = weights_of((rows @ rows.T)[None], torch.ones(ranks, dtype=torch.float64), range(ranks))
        found.append((weights[0] @ rows).view_as(layer[0]))
    return found


def gradients(rows: list[int]) -> list[torch.Tensor]:
    loss = torch.nn.functional.mse_loss(model(x[rows]), y[rows])
    return list(torch.autograd.grad(loss, list(model.parameters())))


def replay() -> None:
    """Without momentum gradients are combined and clipped; else each rank clips and steps by itself."""
    lines = sorted(effective(list(read(Path(args.out) / "audit"))), key=lambda line: (line["step"], line["rank"]))
    parameters = list(model.parameters())
    for _, of_step in groupby(lines, key=lambda line: line["step"]):
        ranks = [line["indices"] for line in of_step if line["indices"]]
        shares = [len(rows) / sum(map(len, ranks)) for rows in ranks]
        of_ranks = [gradients(rows) for rows in ranks]
        before = [entry.detach().clone() for entry in parameters]
        states = optimizer.state_dict()
        ends, after = [], []
        for grads in [combined(of_ranks)] if args.optimizer == "sgd" else of_ranks:
            optimizer.load_state_dict(deepcopy(states))
            for entry, start, grad in zip(parameters, before, grads, strict=True):
                entry.data.copy_(start)
                entry.grad = grad
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            ends.append([entry.detach() - start for entry, start in zip(parameters, before, strict=True)])
            after.append([{**optimizer.state[entry]} for entry in parameters])
        for number, entry in enumerate(parameters):
            entry.data.copy_(before[number] + combined(ends)[number])
            for name in after[0][number]:
                means = (state[number][name].double() * share for state, share in zip(after, shares, strict=True))
                mean = sum(means).to(after[0][number][name].dtype)
                optimizer.state[entry][name] = mean


noise = (0.0, 0.0, 0.0)
if args.replay:
    replay()
else:
    job = elastic.join(batch=8, micro_batch=args.micro, combine=args.combine)
    pace = Pace(args)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if args.scaler else None
    net = job.wrap(model, optimizer, scaler=scaler)
    for _ in job.epochs(args.epochs):
        for a, b in job.loader(torch.utils.data.TensorDataset(x, y), shuffle=False):
            pace()
            job.step(torch.nn.functional.mse_loss(net(a), b), clip_norm=CLIP)
    noise = job._session.state.progress.noise
torch.save({"model": model.state_dict(), "noise": noise}, Path(args.out) / f"{args.name}.pt")
