"""An Accelerate script as a user would write one, with the knobs that the tests turn."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator
from script_options import Average, Pace, knobs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slurm_elastic.trainer_shim.accelerate import elastic

args = knobs().parse_args()
torch.manual_seed(0)
x = torch.randn(args.samples, 6, dtype=torch.float64)
data = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).double()
adam = torch.optim.AdamW(net.parameters(), lr=1e-2, eps=1e-4)
accelerator = Accelerator(cpu=True)
job = elastic(accelerator, batch=20, max_batch=80, lr=args.lr, micro_batch=args.micro)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=job.steps(args.epochs, args.samples))
shuffled = DataLoader(data, batch_size=20, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(net, adam, shuffled, cosine)
held_out = accelerator.prepare(DataLoader(TensorDataset(*data[:20]), batch_size=20))
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
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        val_loss = sum(float(nn.functional.mse_loss(model(inputs), labels)) for inputs, labels in held_out)
    model.train()
    evaluated.append(epoch)
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    facts = {
        "model": accelerator.unwrap_model(model).state_dict(),
        "lr": scheduler.get_last_lr(),
        "evaluated": evaluated[-1:],
        "steps": average.steps,
        "epoch": job.epoch,
        "global_step": job.global_step,
        "val_loss": val_loss,
    }
    torch.save(facts, Path(args.out) / f"{args.name}.pt")
