"""A Wasserstein GAN: five steps of the critic, with clipped weights, for each step of the generator.

What an iteration draws is drawn before its first share, the same on every rank; each rank takes its part of it. The
eleven lines marked `elastic` are what it takes.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import slurm_elastic.trainer_shim as elastic  # elastic

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--iterations", type=int, default=300)
parser.add_argument("--critic-steps", type=int, default=5)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--print-every", type=int, default=20)
args = parser.parse_args()
latent = 4

job = elastic.join(args.batch)  # elastic
torch.manual_seed(0)
angle = 6.2832 * torch.rand(4096)
data = torch.stack([angle.cos(), angle.sin()], dim=1).to(job.device)
generator = nn.Sequential(nn.Linear(latent, 64), nn.Tanh(), nn.Linear(64, 2)).to(job.device)
critic = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1)).to(job.device)
opt_g = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
opt_c = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
iteration = 0
net_g = job.replicate(generator)  # elastic
net_c = job.replicate(critic)  # elastic
job.keep(globals(), "iteration", opt_g=opt_g, opt_c=opt_c)  # elastic

while job.next(args.iterations):  # elastic: instead of for
    real = data[torch.randint(len(data), (args.critic_steps, args.batch))]
    noise = torch.randn(args.critic_steps + 1, args.batch, latent, device=job.device)
    for step in range(args.critic_steps):
        mine = job.share(args.batch).positions  # elastic: this rank's part of the batch
        own = slice(mine.start, mine.stop)  # elastic
        with torch.no_grad():
            fake = generator(noise[step, own])
        loss_c = net_c(fake).mean() - net_c(real[step, own]).mean()
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()
        with torch.no_grad():
            for weight in critic.parameters():
                weight.clamp_(-0.1, 0.1)
    mine = job.share(args.batch).positions  # elastic
    loss_g = -net_c(net_g(noise[-1, mine.start : mine.stop])).mean()  # elastic
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    if iteration % args.print_every == 0 and job.rank == 0:  # elastic
        with torch.no_grad():
            distance = critic(data[:512]).mean() - critic(generator(noise.flatten(0, 1))).mean()
        print(f"iteration {iteration}: loss {distance.item():.6f}", flush=True)
    iteration += 1
