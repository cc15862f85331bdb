"""A small convolutional net on scikit-learn's handwritten digits (1,797 images of 8 x 8)."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from fake_gpu import FakeGpu
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import slurm_elastic.trainer_shim as elastic

MORE = 1000
"""Epochs, at most, while the spectators still need the job."""


def digits() -> TensorDataset:
    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(images, torch.tensor(raw.target))


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    images, targets = data.tensors
    with torch.no_grad():
        hits = (model(images).argmax(dim=1) == targets).float().mean()
    return float(hits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--ms-per-sample", type=float, default=0.0, help="see fake_gpu.py")
    parser.add_argument("--hold", type=Path, default=Path("hold"), help="a file: while it is there, train on")
    args = parser.parse_args()

    job = elastic.join(batch=64, max_batch=256, lr="auto")
    torch.manual_seed(0)
    data, gpu = digits(), FakeGpu(args.ms_per_sample)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(),
        nn.Linear(64, 10),
    ).to(job.device)  # fmt: skip
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    net = job.wrap(model, opt)
    for epoch in job.epochs(args.epochs + MORE):
        for x, y in job.loader(data):
            gpu.start()
            loss = nn.functional.cross_entropy(net(x), y)
            gpu.computed(len(x))
            job.step(loss)
        right = job.once(accuracy, model, data)
        job.log(f"epoch {epoch}: accuracy {right:.3f} after {job.samples} samples")
        if epoch + 1 >= args.epochs and not job.once(args.hold.exists):
            job.stop()


if __name__ == "__main__":
    main()
