"""A character-level transformer that learns to write Python from the text of Python's own standard library."""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import torch
from fake_gpu import FakeGpu
from torch import nn

import slurm_elastic.trainer_shim as elastic

VOCABULARY = 128
MORE = 1000
"""Epochs, at most, while the spectators still need the job."""


class Windows(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Every window of `length` characters of the text, without overlap; the target is the text one further on."""

    def __init__(self, samples: int, length: int) -> None:
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        text, needed = b"", samples * length + 1
        for file in files:
            text += file.read_bytes()
            if len(text) >= needed:
                break
        codes = torch.frombuffer(bytearray(text[:needed]), dtype=torch.uint8).long().clamp_(max=VOCABULARY - 1)
        self.inputs = codes[:-1].view(samples, length)
        self.targets = codes[1:].view(samples, length)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.targets[index]


class CharTransformer(nn.Module):
    def __init__(self, length: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.embed(codes) + self.place, mask=self.mask, is_causal=True)
        out: torch.Tensor = self.head(hidden)
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--ms-per-sample", type=float, default=0.0, help="see fake_gpu.py")
    parser.add_argument("--hold", type=Path, default=Path("hold"), help="a file: while it is there, train on")
    args = parser.parse_args()

    job = elastic.join(batch=64, max_batch=512, lr="auto")
    torch.manual_seed(0)
    data, gpu = Windows(args.samples, args.length), FakeGpu(args.ms_per_sample)
    model = CharTransformer(args.length).to(job.device)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=job.steps(epochs=args.epochs, samples=len(data)))
    net = job.wrap(model, opt, sched)
    for epoch in job.epochs(args.epochs + MORE):
        loss = torch.zeros(())
        for x, y in job.loader(data):
            gpu.start()
            loss = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
            gpu.computed(len(x))
            job.step(loss)
        job.log(f"epoch {epoch}: loss {loss.item():.3f} after {job.samples} samples")
        if epoch + 1 >= args.epochs and not job.once(args.hold.exists):
            job.stop()


if __name__ == "__main__":
    main()
