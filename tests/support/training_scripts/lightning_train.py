"""A Lightning script as a user would write one, with the knobs that the tests turn."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from script_options import Pace, knobs
from torch.utils.data import DataLoader, TensorDataset

from slurm_elastic.trainer_shim.lightning import ElasticStrategy

args = knobs().parse_args()
pace = Pace(args)
warnings.filterwarnings("ignore")


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters({"activation": torch.nn.Tanh})
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
        self.losses: list[tuple[int, float]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        pace()
        return ((self.net(x) - y) ** 2).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", ((self.net(x) - y) ** 2).mean())

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.losses.append((self.current_epoch, 0.0))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["losses"] = self.losses

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.losses = list(checkpoint["losses"])


torch.manual_seed(0)
module = Module()
generator = torch.Generator().manual_seed(7)
x = torch.randn(args.samples, 8, generator=generator, dtype=torch.float64)
data = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
trainer = pl.Trainer(
    strategy=ElasticStrategy(batch=20, max_batch=80, lr=args.lr, micro_batch=args.micro),
    max_epochs=args.epochs,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, DataLoader(data, batch_size=20, shuffle=True), DataLoader(data, batch_size=100))
if trainer.is_global_zero:
    facts = {
        "model": module.state_dict(),
        "lr": trainer.optimizers[0].param_groups[0]["lr"],
        "evaluated": [epoch for epoch, _ in module.losses],
        "epoch": trainer.current_epoch,
        "global_step": trainer.global_step,
        "val_loss": float(trainer.callback_metrics.get("val_loss", 0.0)),
    }
    torch.save(facts, Path(args.out) / f"{args.name}.pt")
