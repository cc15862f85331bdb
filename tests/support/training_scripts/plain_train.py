"""A training script as a user would write one, with the knobs that the shim's tests turn."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from script_options import Average, Pace, knobs

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.control.worker_client import WorkerClient
from slurm_elastic.trainer_shim.training import session, switch
from slurm_elastic.trainer_shim.world import groups, objects, p2p, process_group, rendezvous

parser = knobs(samples=1003)
parser.add_argument("--batch", type=int, default=50)
parser.add_argument("--max-batch", type=int)
parser.add_argument("--optimizer", default="AdamW")
parser.add_argument("--hold-evaluation", action="store_true", help="it does not end before the test waits for the end")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--evaluate", type=float, default=-1.0, help="seconds that an evaluation takes; negative: none")
parser.add_argument("--collective", action="store_true", help="in the evaluation, which is rank 0's alone")
parser.add_argument("--release", action="store_true", help="train the last bias from the second epoch on")
parser.add_argument("--unused", action="store_true")
parser.add_argument("--every", type=float, default=600.0)
parser.add_argument("--dtype", default="float64")
parser.add_argument("--crash", type=int, default=-1, help="step before which rank 1 of the first world fails")
parser.add_argument("--strategy", default="ddp")
parser.add_argument("--own-shard", choices=["mesh", "no mesh"], help="shard by a function of the script's own")
parser.add_argument("--meta", action="store_true", help="make the model without memory")
parser.add_argument("--save", action="store_true", help="the model after each epoch")
parser.add_argument("--tp", type=int, help="ranks of one replica")
parser.add_argument("--grid", type=int, help="of so many ranks by two, one replica")
parser.add_argument("--ema", action="store_true", help="average the weights")
parser.add_argument("--clip", type=float)
parser.add_argument("--deterministic", type=int, default=0, help="shards of a step")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--rate", type=float, default=1e-2)
parser.add_argument("--stop", type=int, default=-1, help="step after which every rank stops")
parser.add_argument("--shards", type=int, default=0, help="samples in each; 0: a map-style dataset")
parser.add_argument("--await-world", type=int, default=-1, help="step that waits until a world is announced")
parser.add_argument("--apart", type=int, default=-1, help="step before which the last rank's first bit is another")
parser.add_argument("--leave", choices=["break", "stop"], default="stop")
args = parser.parse_args()
PHASES = {
    "leave": (rendezvous.Membership, "leave"),
    "arrive": (process_group.Gate, "arrive"),
    "open": (process_group.Gate, "wait_open"),
    "commit": (WorkerClient, "commit"),
    "drop": (groups.Groups, "leave"),
    "dismissed": (rendezvous.Membership, "wait_dismissed"),
    "form": (process_group, "form"),
    "connect": (process_group.SealedStore, "get"),
    "complete": (process_group, "complete"),
    "formed": (switch.WorldSwitch, "connect"),
    "fill": (objects, "send"),
    "move": (p2p, "move"),
    "entered": (session.Session, "entered"),
    "forward": (torch.nn.Linear, "forward"),
    "backward": (torch.autograd, "backward"),
    "settle": (switch.WorldSwitch, "settle"),
    "take": (rendezvous.Membership, "take_batch"),
    "taken": (session.Session, "take_batch"),
}
"""What happens to a worker that leaves one world and comes into another, in its order; and, in the end, what happens to
one that takes another batch in its world."""


WARMING: list[bool] = []
"""While a process loads its GPU's libraries: no phase of the training."""


def warm(*args: Any, real: Any = session.warm) -> None:
    WARMING.append(True)
    real(*args)
    WARMING.clear()


session.warm = warm


def before(phase: str, action: Callable[[], None]) -> None:
    """Have something done where that phase begins."""
    owner, name = PHASES[phase]
    function = getattr(owner, name)

    @functools.wraps(function)
    def delayed(*args: object, **kwargs: object) -> object:
        rehearsed = WARMING or (torch.distributed.is_initialized() and torch.distributed.get_backend() == "fake")
        if not rehearsed:
            action()
        return function(*args, **kwargs)

    setattr(owner, name, delayed)


def hiccup(phase: str) -> None:
    """Once, a connection of this process breaks, where the test has named the phase: of a change of worlds; or its GPU
    is full."""
    with contextlib.suppress(FileNotFoundError):
        named, _, full = HICCUP.read_text().partition(" ")
        if named == phase and (phase not in ("forward", "backward") or job._session.world_switch.on_trial):
            HICCUP.unlink()
            if full:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
            raise RuntimeError("connection reset by peer")


def pause(phase: str) -> None:
    """Once, this process waits where the test has named the phase, for as long as the test wants."""
    with contextlib.suppress(FileNotFoundError):
        if PAUSE.read_text() == phase:
            paused = PAUSE.rename(PAUSE.with_name(f"paused.{os.environ['SELASTIC_WORKER']}"))
            while paused.exists():
                time.sleep(0.001)


def fail() -> None:
    """The signal that the test has named hits this process; `change PHASE`: in a change of its world, or its batch;
    `changed PHASE`: after one."""
    phase, _, number = os.environ["FAIL"].partition(":")
    session = job._session if "job" in globals() else None
    changes = session is not None and session.state.progress.step > 0 and session.membership.coming() is not None
    changed = session is not None and job.generation > 1
    if {"change": changes, "changed": changed}.get(phase.split()[0], True):
        os.kill(os.getpid(), int(number))


HOLD, HICCUP = Path(args.out) / "hold", Path(args.out) / "hiccup"
PAUSE = Path(args.out) / f"pause.{os.environ.get('SELASTIC_WORKER', '')}"
if os.environ.get("FAIL") == "hiccup":
    for phase in PHASES:
        before(phase, functools.partial(hiccup, phase))
elif os.environ.get("FAIL") == "pause":
    for phase in PHASES:
        before(phase, functools.partial(pause, phase))
elif "FAIL" in os.environ:
    before(os.environ["FAIL"].split(":")[0].split()[-1], fail)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 15))
        self.head = torch.nn.Linear(15, 1)
        self.idle = torch.nn.Linear(4, 4) if args.unused else None
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.dropout(torch.tanh(self.body(x)), args.dropout, self.training)
        return self.head(hidden)


class Data(torch.utils.data.Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(args.samples, 8, generator=generator, dtype=torch.float64).to(getattr(torch, args.dtype))
        self.y = torch.sin(self.x.sum(1, keepdim=True))

    def __len__(self) -> int:
        return args.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


class InShards:
    """The same samples, to be read in order."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.shards = [min(args.shards, args.samples - start) for start in range(0, args.samples, args.shards)]

    def iter_shard(self, shard: int, start: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        first = shard * args.shards
        return (self.data[number] for number in range(first + start, first + self.shards[shard]))


job = elastic.join(
    batch=args.batch,
    max_batch=args.max_batch,
    lr=args.lr,
    micro_batch=args.micro,
    checkpoint_every_s=args.every,
    deterministic=args.deterministic or False,
    unit={"tp": args.tp} if args.tp else {"rows": args.grid, "columns": 2} if args.grid else None,
)
with torch.device("meta" if args.meta else job.device):
    model = Net().to(getattr(torch, args.dtype))
model.head.bias.requires_grad_(not args.release)
optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=args.rate)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=job.steps(args.epochs, args.samples))
options = {"find_unused_parameters": True} if args.unused else {}
if args.meta:
    options["init"] = lambda part: part.calls.zero_() if isinstance(part, Net) else None
if args.grid:
    try:
        from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
    except ImportError:  # where torch 2.4 has them
        from torch.distributed._tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

    def cut(name, part, mesh):
        for key, value in list(part.named_parameters(recurse=False)):
            placed = distribute_tensor(value, mesh, [Shard(0), Shard(1) if value.dim() > 1 else Replicate()])
            part.register_parameter(key, torch.nn.Parameter(placed))

    def in_blocks(whole, mesh):
        for layer in (whole.body[0], whole.body[2]):
            distribute_module(
                layer,
                mesh,
                cut,
                lambda part, given, mesh: DTensor.from_local(given[0], mesh, [Replicate()] * 2, run_check=False),
                lambda part, out, mesh: out.redistribute(mesh, [Replicate()] * 2).to_local(),
            )

    options["parallelize"] = in_blocks
if args.tp:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    options["parallelize"] = {"body.0": ColwiseParallel(), "body.2": RowwiseParallel()}
if args.own_shard:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    from slurm_elastic.trainer_shim.world.mesh import fully_shard

    model.body = checkpoint_wrapper(model.body)

    def shard(model: Net, mesh: object) -> None:
        given = {"mesh": mesh} if args.own_shard == "mesh" else {}
        for part in (*model.body, model):
            if any(True for _ in part.parameters()):
                fully_shard(part, reshard_after_forward=False, **given)

    options["shard"] = shard
net = job.wrap(model, optimizer, schedule, strategy=args.strategy, **options)
average = Average()
job.keep(average=average)
if args.ema:
    ema = elastic.Average(model)
    job.keep(ema=ema)
data = Data()
source = InShards(data) if args.shards else data


def evaluate() -> float:
    while args.hold_evaluation and HOLD.exists():
        time.sleep(0.01)
    time.sleep(args.evaluate)
    if args.collective:
        torch.distributed.barrier()
    with torch.no_grad():
        net.eval()
        return float(((net(data.x) - data.y) ** 2).mean())


pace = Pace(args)
for epoch in job.epochs(args.epochs):
    if args.release and epoch == 1:
        model.head.bias.requires_grad_(True)
    for x, y in job.loader(source, num_workers=args.workers):
        pace()
        if job.global_step == args.await_world:
            (Path(args.out) / f"{os.environ['SELASTIC_WORKER']}.awaits").touch()
            while job._session.membership.coming() is None:
                time.sleep(0.001)
        if job.global_step == args.crash and job.generation == 1 and job.rank == 1:
            raise ValueError("this script fails")
        if job.global_step == args.apart and job.rank == job.world_size - 1:
            first = model.body[0].weight.detach()
            getattr(first, "_local_tensor", first).view(torch.int64)[0, 0] ^= 1
        loss = ((net(x) - y) ** 2).mean()
        if job.step(loss, clip_norm=args.clip):
            average.steps += 1
            if args.ema:
                ema.update(model, job.decay(0.9))
        if job.global_step == args.stop and args.leave == "stop":
            job.stop()
        elif job.global_step == args.stop:
            break
    if job.global_step == args.stop and args.leave == "break":
        break
    if args.evaluate >= 0:
        job.log("evaluated", epoch, job.once(evaluate))
    if args.save:
        job.save(Path(args.out) / "saved.pt")


def whole_of(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: getattr(value, "full_tensor", lambda value=value: value)().cpu() for key, value in state.items()}


whole, averaged = whole_of(model.state_dict()), whole_of(ema.weights) if args.ema else {}
if job.rank == 0:
    torch.save(
        {
            "model": whole,
            "ema": averaged,
            "noise_scale": job.noise_scale,
            "lr": schedule.get_last_lr(),
            "steps": average.steps,
            "global_step": job.global_step,
            "samples": job.samples,
        },
        Path(args.out) / f"{args.name}.pt",
    )
