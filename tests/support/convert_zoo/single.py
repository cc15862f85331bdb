"""One process with most of what scripts have: averaged weights, a scaler, a schedule, a best result: converts completely."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self, samples):
        self.x = torch.randn(samples, 8)
        self.y = self.x.sin().sum(1, keepdim=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def train(loader, model, ema, criterion, optimizer, scaler, epoch):
    model.train()
    total, seen = 0.0, 0
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cpu", enabled=False):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        ema.update_parameters(model)
        total += loss.item() * len(x)
        seen += len(x)
        if i % 10 == 0:
            print(f"epoch {epoch} [{i}/{len(loader)}] loss {total / seen:.4f}")


@torch.no_grad()
def validate(model, data, criterion):
    model.eval()
    return criterion(model(data.x), data.y).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--name", default="final")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(7)
    torch.set_default_dtype(torch.float64)
    data = Waves(203)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=False)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    criterion = nn.MSELoss()
    params = [{"params": model[0].parameters(), "lr": 3e-3}, {"params": model[2].parameters()}]
    optimizer = torch.optim.AdamW(params, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    best = float("inf")
    losses = []
    for epoch in range(1, args.epochs + 1):
        train(loader, model, ema, criterion, optimizer, scaler, epoch)
        loss = validate(model, data, criterion)
        losses.append(loss)
        scheduler.step()
        if loss < best:
            best = loss
    saved = {"model": model.state_dict(), "ema": ema.state_dict(), "best": best, "losses": losses}
    torch.save(saved, args.out / f"{args.name}.pt")


if __name__ == "__main__":
    main()
