"""A loop over iterations with micro batches and a branch for torchrun, in nanoGPT's shape: converts completely."""

import json
import os
from contextlib import nullcontext

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

gradient_accumulation_steps = 5
batch_size = 4
max_iters = 12
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="nccl")
    ddp_rank = int(os.environ["RANK"])
    master_process = ddp_rank == 0
    gradient_accumulation_steps //= int(os.environ["WORLD_SIZE"])
else:
    master_process = True
torch.manual_seed(1337)
text = torch.arange(1000)


def get_batch():
    ix = torch.randint(len(text) - 8, (batch_size,))
    return torch.stack([text[i : i + 8] for i in ix]).float()


iter_num = 0
best_val_loss = 1e9
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if ddp:
    model = DDP(model)
X = get_batch()  # the very first batch
raw_model = model.module if ddp else model
while True:
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with nullcontext():
            loss = model(X).square().mean() / gradient_accumulation_steps
        X = get_batch()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if master_process:
        with open("said", "a") as file:
            file.write(json.dumps([iter_num, round(raw_model.weight.sum().item(), 9)]) + "\n")
    iter_num += 1
    if iter_num > max_iters:
        break
if ddp:
    destroy_process_group()
