"""An Accelerate script as a user would write one, with the knobs that the tests turn."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from script_options import Average, Pace, knobs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slurm_elastic.trainer_shim.accelerate import elastic

parser = knobs()
parser.add_argument("--strategy", default="ddp")
args = parser.parse_args()


class Events(GeneralTracker):
    """A tracker as Accelerate has them: each that is made is a file."""

    name = "events"
    requires_logging_directory = False

    def __init__(self, project_name: str) -> None:
        super().__init__()
        self.path = Path(args.out) / f"{project_name}-{time.monotonic_ns()}.jsonl"
        self.path.touch()

    @property
    def tracker(self) -> Path:
        return self.path

    def store_init_configuration(self, values: dict[str, int]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def log(self, values: dict[str, float], step: int | None = None, **_: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({**values, "step": step}) + "\n")


torch.manual_seed(0)
x = torch.randn(args.samples, 6, dtype=torch.float64)
data = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).double()
adam = torch.optim.AdamW(net.parameters(), lr=1e-2, eps=1e-4)
accelerator = Accelerator(cpu=not torch.cuda.is_available())
LOGGER_TYPE_TO_CLASS["events"] = Events
accelerator.log_with = ["events"]
job = elastic(accelerator, batch=20, max_batch=80, lr=args.lr, micro_batch=args.micro, strategy=args.strategy)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=job.steps(args.epochs, args.samples))
shuffled = DataLoader(data, batch_size=20, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(net, adam, shuffled, cosine)
held_out = accelerator.prepare(DataLoader(TensorDataset(*data[:20]), batch_size=20))
accelerator.init_trackers("events", config={"size": 20})
average, pace = Average(), Pace(args)
accelerator.register_for_checkpointing(average)
evaluated: list[int] = []
val_loss = 0.0
for epoch in job.epochs(args.epochs):
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            pace()
            loss = nn.functional.mse_loss(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                average.steps += 1
                accelerator.log({"mean": average.steps}, step=average.steps)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        val_loss = sum(float(nn.functional.mse_loss(model(inputs), labels)) for inputs, labels in held_out)
    model.train()
    evaluated.append(epoch)
accelerator.wait_for_everyone()
accelerator.end_training()
state = accelerator.get_state_dict(model)
if accelerator.is_main_process:
    facts = {
        "model": state,
        "lr": scheduler.get_last_lr(),
        "evaluated": evaluated[-1:],
        "steps": average.steps,
        "epoch": job.epoch,
        "global_step": job.global_step,
        "val_loss": val_loss,
    }
    torch.save(facts, Path(args.out) / f"{args.name}.pt")
