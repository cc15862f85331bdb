"""A script whose loop stays its own: over iterations, with batches drawn by hand, accumulation, clipping, a schedule by
hand, an evaluation and a checkpoint of its own every few iterations. With the knobs that the shim's tests turn."""

from __future__ import annotations

import json
import math
import os
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
    return x, y, starts.tolist()


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
model = Model().double()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", enabled=False)
model = job.replicate(model)
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
    master_process = job.rank == 0
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % args.evaluate_every == 0 and master_process:
        val_loss = estimate_loss()
        note(said, iteration=iter_num, loss=float(val_loss))
        if val_loss < best_val_loss:
            best_val_loss = val_loss
            torch.save({"model": model.state_dict(), "iter_num": iter_num}, out / f"own-{args.name}.pt")
    for micro_step in (micros := job.share(args.accumulation)):
        x, y, starts = get_batch()
        note(drawn, iteration=iter_num, micro=micro_step, starts=starts)
        loss = model(x, y) / len(micros)
        if iter_num == args.die and job.rank == 1 and job.generation == 1 and micro_step == micros.positions[-1]:
            loss.register_hook(lambda _: os.kill(os.getpid(), 9))
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num >= args.iterations:
        break
if job.rank == 0:
    kept = {"iter_num": iter_num, "best_val_loss": float(best_val_loss), "lr": optimizer.param_groups[0]["lr"]}
    torch.save({"model": model.state_dict(), "global_step": job.global_step, **kept}, out / f"{args.name}.pt")
