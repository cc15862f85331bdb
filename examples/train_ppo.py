"""PPO: environments that are acted in and learned from in turn, in a loop of its own.

An environment is a point that is to be steered to the origin. Each rank plays its part of the environments, and keeps
what they brought for the optimizer's steps of the same iteration. All noise is drawn before the first share, the same
on every rank. The eight lines marked `elastic` are what it takes.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.distributions import Normal

import slurm_elastic.trainer_shim as elastic  # elastic

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--iterations", type=int, default=60)
parser.add_argument("--environments", type=int, default=48)
parser.add_argument("--horizon", type=int, default=24, help="actions in each environment")
parser.add_argument("--passes", type=int, default=3, help="steps of the optimizer with what was played")
parser.add_argument("--print-every", type=int, default=5)
args = parser.parse_args()
clip, discount = 0.2, 0.95


def act(state: torch.Tensor, push: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The state (position, speed) after a push, and what it is worth."""
    speed = 0.9 * state[:, 2:] + 0.1 * push.clamp(-2, 2)
    place = state[:, :2] + 0.2 * speed
    return torch.cat([place, speed], dim=1), -place.square().sum(1)


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.actor(state), self.critic(state).squeeze(-1)


def play(model: nn.Module, state: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Play each environment to its end: states, pushes, their log-probabilities, rewards, returns, advantages."""
    states, pushes, rewards = [], [], []
    for step_noise in noise:
        states.append(state)
        pushes.append(model(state)[0] + 0.5 * step_noise)
        state, reward = act(state, pushes[-1])
        rewards.append(reward)
    returns, ahead = [], torch.zeros_like(rewards[0])
    for reward in reversed(rewards):
        ahead = reward + discount * ahead
        returns.insert(0, ahead)
    played, pushed, gained = torch.stack(states), torch.stack(pushes), torch.stack(returns)
    means, values = model(played)
    return played, pushed, Normal(means, 0.5).log_prob(pushed).sum(-1), torch.stack(rewards), gained, gained - values


job = elastic.join(args.environments)  # elastic
torch.manual_seed(0)
model = ActorCritic().to(job.device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
iteration = 0
net = job.replicate(model)  # elastic
job.keep(globals(), "iteration", optimizer=optimizer)  # elastic

while job.next(args.iterations):  # elastic: instead of for
    start = torch.cat([torch.randn(args.environments, 2), torch.zeros(args.environments, 2)], dim=1).to(job.device)
    noise = torch.randn(args.horizon, args.environments, 2, device=job.device)
    for number in range(args.passes):
        mine = job.share(args.environments).positions  # elastic: this rank's part of the environments
        if number == 0:
            own = slice(mine.start, mine.stop)  # elastic
            with torch.no_grad():
                states, pushes, before, _, returns, advantages = play(model, start[own], noise[:, own])
        means, values = net(states)
        ratio = (Normal(means, 0.5).log_prob(pushes).sum(-1) - before).exp()
        gain = torch.min(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages).mean()
        loss = 0.5 * nn.functional.mse_loss(values, returns) - gain
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    if iteration % args.print_every == 0 and job.rank == 0:  # elastic
        with torch.no_grad():
            rewards = play(model, start, torch.zeros_like(noise))[3]
        print(f"iteration {iteration}: loss {-rewards.sum(0).mean().item():.6f}", flush=True)
    iteration += 1
