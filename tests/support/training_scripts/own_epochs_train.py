"""A script that goes over a dataset in epochs, and whose backward pass, optimizer step, schedule by epoch, validation,
best result and checkpoint are its own. With the knobs that the shim's tests turn."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from script_options import Pace, knobs

import slurm_elastic.trainer_shim as elastic

parser = knobs(samples=203)
parser.add_argument("--batch", type=int, default=20)
parser.add_argument("--slice", type=int, help="what the script takes in multiples only, as mixup does")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--leave", type=int, default=-1, help="batch of an epoch behind which the loop over it is left")
parser.add_argument("--apart", type=int, default=-1, help="batch of an epoch whose step rank 1 leaves out")
parser.add_argument("--begin", type=int, nargs=3, help="epoch, step and samples of it that a foreign training has done")
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
best_loss = 1e9
validations: list[float] = []


def main() -> None:
    global best_loss
    job = elastic.join(batch=args.batch, slice=args.slice)
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(args.samples, 8, generator=generator)
    data = torch.utils.data.TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model.to(job.device)
    criterion = torch.nn.MSELoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    net = job.replicate(model)
    job.keep(globals(), "best_loss", "validations", optimizer=optimizer, scheduler=scheduler)
    if args.begin:
        job.begin_at(args.begin[0], step=args.begin[1], in_epoch=args.begin[2])
    pace = Pace(args)
    for _ in job.epochs(args.epochs):
        train(job.loader(data, num_workers=args.workers), net, criterion, optimizer, pace, job.rank)
        loss = validate(x.to(job.device), data.tensors[1].to(job.device), net, criterion)
        validations.append(loss)
        scheduler.step()
        best_loss = min(loss, best_loss)
    if job.rank == 0:
        kept = {"best_loss": best_loss, "validations": validations, "lr": scheduler.get_last_lr()}
        counts = {"global_step": job.global_step, "samples": job.samples}
        torch.save({"model": model.state_dict(), **kept, **counts}, Path(args.out) / f"{args.name}.pt")


def train(
    loader: Iterable[Any], net: Any, criterion: Any, optimizer: torch.optim.Optimizer, pace: Pace, rank: int
) -> None:
    net.train()
    for i, (x, y) in enumerate(loader):
        pace()
        if len(x) % (args.slice or 1):
            raise ValueError(f"{len(x)} samples cannot be mixed")
        loss = criterion(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        if i == args.apart and rank == 1:
            optimizer.zero_grad()
            continue
        optimizer.step()
        if i == args.leave:
            break


def validate(x: torch.Tensor, y: torch.Tensor, net: Any, criterion: Any) -> float:
    net.eval()
    with torch.no_grad():
        return float(criterion(net(x), y))


main()
