"""Lightning: the Trainer's strategy is the one line that makes it elastic."""

from __future__ import annotations

import argparse
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slurm_elastic.trainer_shim.lightning import ElasticStrategy  # elastic

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=4096)
args = parser.parse_args()


class Sine(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


torch.manual_seed(0)
x = torch.randn(args.samples, 16)
data = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
trainer = pl.Trainer(
    max_epochs=args.epochs,
    strategy=ElasticStrategy(batch=32, max_batch=256),  # elastic: instead of strategy="ddp"
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(Sine(), DataLoader(data, batch_size=32, shuffle=True), DataLoader(data, batch_size=512))
print(f"val_loss {trainer.callback_metrics.get('val_loss', torch.nan):.4f}")
