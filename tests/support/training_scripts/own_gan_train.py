"""Two models trained against each other in a loop of their own: a critic with two backward passes before each of its
two steps, and a generator with one, of a batch that is taken at once. With the knobs that the shim's tests turn."""

from __future__ import annotations

import types
from pathlib import Path

import torch
from script_options import Pace, knobs

import slurm_elastic.trainer_shim as elastic

parser = knobs()
parser.add_argument("--iterations", type=int, default=40)
parser.add_argument("--batch", type=int, default=10)
parser.add_argument("--sharded", action="store_true")
args = parser.parse_args()
torch.set_default_dtype(torch.float64)


def train() -> None:
    job = elastic.join(batch=args.batch)
    data = torch.randn(300, 6, generator=torch.Generator().manual_seed(3))
    generator = torch.nn.Sequential(torch.nn.Linear(4, 12), torch.nn.Tanh(), torch.nn.Linear(12, 6))
    critic = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-2)
    opt_d = torch.optim.Adam(critic.parameters(), lr=1e-2)
    spread = job.shard if args.sharded else job.replicate
    net_g, net_d = spread(generator), spread(critic)
    seen = types.SimpleNamespace(steps=0)
    job.keep(vars(seen), "steps", opt_g=opt_g, opt_d=opt_d)
    criterion = torch.nn.BCEWithLogitsLoss()
    pace = Pace(args)
    while job.next(args.iterations):
        pace()
        # Before the first share of an iteration: the same on every rank.
        chosen, noises = torch.randint(len(data), (2, args.batch)), torch.randn(2, args.batch, 4)
        for critic_step in range(2):
            mine = job.share(args.batch).positions
            real = data[chosen[critic_step, mine.start : mine.stop]]
            noise = noises[critic_step, mine.start : mine.stop]
            opt_d.zero_grad()
            criterion(net_d(real), torch.ones(len(real), 1)).backward()
            fake = net_g(noise)
            criterion(net_d(fake.detach()), torch.zeros(len(real), 1)).backward()
            opt_d.step()
        opt_g.zero_grad()
        criterion(net_d(fake), torch.ones(len(real), 1)).backward()
        opt_g.step()
        seen.steps += 3
    both = job.full_state()
    if job.rank == 0:
        torch.save({"model": both, "steps": seen.steps}, Path(args.out) / f"{args.name}.pt")


train()
