"""Models whose state, gradients or turns are unusual, each with a loop as its users write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from script_options import Pace, knobs
from torch import nn
from torch.nn import functional

import slurm_elastic.trainer_shim as elastic

parser = knobs(samples=240)
parser.add_argument("--kind", choices=["factors", "critic", "half a critic", "words", "thaw"])
parser.add_argument("--strategy", default="ddp")
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(3)
BATCH = 12
X, Y = torch.randn(args.samples, 4), torch.randn(args.samples, 1)
WORDS = torch.randint(0, 40, (args.samples, 5))


class Scaled(nn.Linear):
    """Keeps the last factors that it has scaled by, which are no tensors, as layers of 8 bits do. A step's micro
    batches count once."""

    factors: list[float]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, factor = getattr(self, "factors", [1.0]), float(self.weight.detach().abs().max())
        self.factors = before if before[-1] == factor else [*before, factor][-4:]
        return super().forward(x) / max(self.factors)

    def get_extra_state(self) -> Any:
        return {"factors": list(getattr(self, "factors", [1.0]))}

    def set_extra_state(self, state: Any) -> None:
        self.factors = list(state["factors"])


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(40, 6, sparse=True), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.table(x).mean(1))
        return found


def finish(job: elastic.Job, *models: nn.Module) -> None:
    kept: dict[str, torch.Tensor] = {}
    for number, model in enumerate(models):
        whole = job.full_state() if args.strategy == "fsdp" else model.state_dict()
        kept |= {f"{number}.{name}": value for name, value in whole.items() if isinstance(value, torch.Tensor)}
    if job.rank == 0:
        torch.save({"model": kept}, Path(args.out) / f"{args.name}.pt")


def wrapped(model: nn.Module, optimizers: list[torch.optim.Optimizer], inputs: torch.Tensor) -> None:
    """The loop is the job's."""
    job, pace = elastic.join(batch=BATCH, lr="none"), Pace(args)
    net = job.wrap(model.to(job.device), optimizers, strategy=args.strategy)
    for _ in job.epochs(3):
        for x, y in job.loader(torch.utils.data.TensorDataset(inputs, Y), shuffle=False):
            pace()
            job.step(functional.mse_loss(net(x), y))
    finish(job, model)


def by_turns(first: int) -> None:
    """A critic with a gradient penalty and its generator: the critic's parameters, or all but the first ones, are
    switched off in the generator's turn, and stay so until its own."""
    job, pace = elastic.join(batch=BATCH), Pace(args)
    generator = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    net_g, net_c = job.replicate(generator), job.replicate(critic)
    opt_g, opt_c = (torch.optim.Adam(model.parameters(), 1e-2) for model in (generator, critic))
    job.keep(opt_g=opt_g, opt_c=opt_c)
    while job.next(40):
        pace()
        for _ in range(2):
            for parameter in critic.parameters():
                parameter.requires_grad_(True)
            mine = job.share(BATCH).positions
            real = X[mine.start : mine.stop]
            opt_c.zero_grad()
            with torch.no_grad():
                fake = net_g(real)
            mixed = (real + fake).div(2).requires_grad_(True)
            (slope,) = torch.autograd.grad(net_c(mixed).sum(), mixed, create_graph=True)
            (net_c(fake).mean() - net_c(real).mean() + ((slope.norm(dim=1) - 1) ** 2).mean()).backward()
            opt_c.step()
        for parameter in list(critic.parameters())[first:]:
            parameter.requires_grad_(False)
        mine = job.share(BATCH).positions
        opt_g.zero_grad()
        (-net_c(net_g(X[mine.start : mine.stop])).mean()).backward()
        opt_g.step()
    finish(job, generator, critic)


def thawed() -> None:
    """Of a model that is frozen but for its head more is trained as iterations go by, and less again."""
    job, pace = elastic.join(batch=BATCH), Pace(args)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    for parameter in model[:4].parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    net = job.replicate(model)
    job.keep(optimizer=optimizer)
    while job.next(60):
        pace()
        if job.global_step in (10, 20, 40):
            for parameter in model[0 if job.global_step == 20 else 2].parameters():
                parameter.requires_grad_(job.global_step < 40)
        mine = job.share(BATCH).positions
        functional.mse_loss(net(X[mine.start : mine.stop]), Y[mine.start : mine.stop]).backward()
        optimizer.step()
        optimizer.zero_grad()
    finish(job, model)


if args.kind == "factors":
    layers = nn.Sequential(Scaled(4, 8), nn.Tanh(), Scaled(8, 1))
    wrapped(layers, [torch.optim.SGD(layers.parameters(), lr=0.3)], X)
elif args.kind == "words":
    words = Words()
    rates = torch.optim.SparseAdam(list(words.table.parameters()), lr=0.05), torch.optim.Adam(words.head.parameters())
    wrapped(words, list(rates), WORDS)
elif args.kind == "thaw":
    thawed()
else:
    by_turns(2 if args.kind == "half a critic" else 0)
