"""For torchrun alone, as PyTorch's tutorials have it: converts completely."""

import json
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

best_loss = 1e9


def main():
    global best_loss
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    batch_size = 16
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    model = DDP(model, device_ids=[local_rank])
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    train_dataset = TensorDataset(torch.randn(200, 4), torch.randint(0, 3, (200,)))
    train_sampler = DistributedSampler(train_dataset)
    train_loader = DataLoader(
        train_dataset, batch_size=batch_size // world_size, sampler=train_sampler, num_workers=0, shuffle=False
    )
    val_loader = DataLoader(train_dataset, batch_size=50, shuffle=False)
    for epoch in range(0, 3):
        train_sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer)
        loss = validate(val_loader, model, criterion)
        scheduler.step()
        best_loss = min(loss, best_loss)
        if rank == 0:
            torch.save(model.module.state_dict(), "model.pt")
            with open("said", "a") as file:
                file.write(json.dumps([epoch, scheduler.get_last_lr()[0]]) + "\n")  # as it was
    dist.destroy_process_group()


def train(train_loader, model, criterion, optimizer):
    model.train()
    for i, (x, y) in enumerate(train_loader):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 5 == 0:
            print(f"{i}/{len(train_loader)} {loss.item():.3f}")


def validate(val_loader, model, criterion):
    with torch.no_grad():
        return sum(criterion(model(x), y).item() for x, y in val_loader)


if __name__ == "__main__":
    main()
