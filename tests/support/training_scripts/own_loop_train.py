"""A script whose loop stays its own: over iterations, with batches drawn by hand, accumulation, clipping, a schedule by
hand, an evaluation and a checkpoint of its own every few iterations. With the knobs that the shim's tests turn."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import torch
from script_options import Pace, knobs

import slurm_elastic.trainer_shim as elastic

parser = knobs()
parser.add_argument("--iterations", type=int, default=60)
parser.add_argument("--accumulation", type=int, default=7, help="micro batches of one iteration, over all ranks")
parser.add_argument("--size", type=int, default=4, help="samples of one micro batch")
parser.add_argument("--evaluate-every", type=int, default=5)
parser.add_argument("--limit", action="store_true", help="end by job.next(steps=...), not by break")
parser.add_argument("--die", type=int, default=-1, help="iteration in whose backward pass rank 1 is killed, once")
parser.add_argument("--odd", type=int, default=-1, help="world in which rank 1 asks for another total")
parser.add_argument("--sharded", action="store_true", help="made on the meta device, by a function of the script's own")
parser.add_argument("--mixed", action="store_true", help="of a sharded model: computed in single precision")
args = parser.parse_args()
out = Path(args.out)
block, letters = 8, 17

job = elastic.join(batch=args.accumulation * args.size, micro_batch=args.size)
torch.manual_seed(1337)
text = torch.randint(letters, (2000,), generator=torch.Generator().manual_seed(5))
drawn, said = (
    out / f"drawn-{args.name}.{os.environ.get('SELASTIC_WORKER', 'alone')}.jsonl",
    out / f"said-{args.name}.jsonl",
)


def note(path: Path, **line: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def get_batch() -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    starts = torch.randint(len(text) - block, (args.size,))
    x = torch.stack([text[start : start + block] for start in starts])
    y = torch.stack([text[start + 1 : start + 1 + block] for start in starts])
    return x.to(job.device), y.to(job.device), starts.tolist()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(letters, 12)
        self.body = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Tanh(), torch.nn.Dropout(0.1))
        self.head = torch.nn.Linear(24, letters)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.body(self.embed(x)))
        return torch.nn.functional.cross_entropy(logits.view(-1, letters), y.view(-1))


iter_num = 0
best_val_loss = 1e9
with torch.device("meta" if args.sharded else job.device):
    model = Model().double()
if args.sharded:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model.body = checkpoint_wrapper(model.body)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", enabled=False)
if args.sharded:
    # As a script does that knows of no worlds, but for where fully_shard comes from.
    from torch.distributed.fsdp import MixedPrecisionPolicy

    kinds = (torch.float32, torch.float64) if args.mixed else (None, None)
    policy = MixedPrecisionPolicy(*kinds)
    for part in (model.embed, model.body, model.head):
        elastic.fully_shard(part, reshard_after_forward=part is model.embed, mp_policy=policy)
    elastic.fully_shard(model, mp_policy=policy)
    model.embed.set_modules_to_forward_prefetch([model.body])
    model.head.set_modules_to_backward_prefetch([model.body])
    model.to_empty(device=job.device)
    model = job.shard(model)
else:
    model = job.replicate(model)


class Events:
    """As a SummaryWriter writes: a file for each that is opened; what is not flushed is lost with the process."""

    def __init__(self, step: int) -> None:
        self.path = Path(run) / f"{time.monotonic_ns()}-{os.environ.get('SELASTIC_WORKER')}.jsonl"
        self.lines = [{"purge": step}]

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.lines.append({name: value, "step": step})

    def flush(self) -> None:
        for line in self.lines:
            note(self.path, **line)
        self.lines.clear()

    close = flush


def new_run() -> str:
    note(out / "runs.jsonl", worker=os.environ.get("SELASTIC_WORKER"))
    run = out / f"run-{time.monotonic_ns()}"
    run.mkdir()
    return str(run)


def download() -> None:
    note(out / "downloads.jsonl", worker=os.environ.get("SELASTIC_WORKER"))


run = job.once(new_run)
job.on_each_node(download)
tracker = job.tracker(Events)
job.keep(globals(), "iter_num", "best_val_loss", optimizer=optimizer, scaler=scaler)


@torch.no_grad()
def estimate_loss() -> torch.Tensor:
    model.eval()
    losses = torch.zeros(3)
    for k in range(3):
        x, y, _ = get_batch()
        losses[k] = model(x, y).item()
    model.train()
    return losses.mean()


def get_lr(iteration: int) -> float:
    return 1e-3 + 0.5 * 9e-3 * (1 + math.cos(math.pi * iteration / args.iterations))


pace = Pace(args)
while job.next(args.iterations if args.limit else None):
    pace()
    if args.sharded:
        model.unshard()
    master_process = job.rank == 0
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % args.evaluate_every == 0 and (master_process or args.sharded):
        val_loss = estimate_loss()
        if master_process:
            note(said, iteration=iter_num, loss=float(val_loss))
        if val_loss < best_val_loss:
            best_val_loss = val_loss
            job.save(out / f"own-{args.name}.pt") if args.sharded else torch.save(
                model.state_dict(), out / f"own-{args.name}.pt"
            )
    for micro_step in (micros := job.share(args.accumulation + (job.generation == args.odd and job.rank == 1))):
        x, y, starts = get_batch()
        note(drawn, iteration=iter_num, micro=micro_step, starts=starts)
        loss = model(x, y) / len(micros)
        if iter_num == args.die and job.rank == 1 and job.generation == 1 and micro_step == micros.positions[-1]:
            loss.register_hook(lambda _: os.kill(os.getpid(), 9))
        scaler.scale(loss).backward()
    tracker.add_scalar("position", micros.positions.start, iter_num)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num >= args.iterations:
        break
whole = job.full_state()
if job.rank == 0:
    kept = {"iter_num": iter_num, "best_val_loss": float(best_val_loss), "lr": optimizer.param_groups[0]["lr"]}
    torch.save({"model": whole, "global_step": job.global_step, **kept}, out / f"{args.name}.pt")
