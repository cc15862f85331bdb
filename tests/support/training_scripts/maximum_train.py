"""A reduction that is none of the product's: of each element the largest of the ranks' gradients. And, with --by-hand
RANKS, the same training in one process without a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from script_options import Pace, knobs

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.parallel import choice
from slurm_elastic.trainer_shim.parallel.reduction.base import Bucket, ByBucket, Combined


class Maximum(ByBucket):
    def combine(self, bucket: Bucket, share: float, group: Any) -> Combined:
        flat = bucket.buffer()
        if not share:
            flat.fill_(-torch.inf)
        work: Any = dist.all_reduce(flat, dist.ReduceOp.MAX, group=group, async_op=True)
        combined: Combined = work.get_future()
        return combined


choice.REDUCTIONS["maximum"] = Maximum
choice.TOGETHER += (choice.Row("maximum", choice.DDP),)

BATCH = 8
parser = knobs(samples=41)
parser.add_argument("--by-hand", type=int, default=0)
args = parser.parse_args()
generator = torch.Generator().manual_seed(3)
x, y = (torch.randn(args.samples, width, generator=generator, dtype=torch.float64) for width in (5, 1))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

if args.by_hand:
    # As many steps as a job takes, which leaves no single sample to the last one; of two, one rank has both.
    steps = [range(0, 8), range(8, 16), range(16, 24), range(24, 32), range(32, 39), range(39, 41)]
    for rows in steps * args.epochs:
        cut = -(-len(rows) // args.by_hand) if len(rows) > 2 else 2
        parts = [rows[first : first + cut] for first in range(0, len(rows), cut)]
        losses = [torch.nn.functional.mse_loss(model(x[part]), y[part]) for part in parts]
        of_ranks = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
        for parameter, grads in zip(model.parameters(), zip(*of_ranks, strict=True), strict=True):
            parameter.grad = torch.stack(grads).amax(0)
        optimizer.step()
else:
    job = elastic.join(batch=BATCH, lr="none", micro_batch=args.micro, combine="maximum")
    pace = Pace(args)
    net = job.wrap(model, optimizer)
    for _ in job.epochs(args.epochs):
        for a, b in job.loader(torch.utils.data.TensorDataset(x, y), shuffle=False):
            pace()
            job.step(torch.nn.functional.mse_loss(net(a), b))
torch.save({"model": model.state_dict()}, Path(args.out) / f"{args.name}.pt")
