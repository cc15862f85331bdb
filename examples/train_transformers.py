"""Transformers: one line makes a Trainer elastic. A tiny GPT-2 of its own configuration learns to count."""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from slurm_elastic.trainer_shim.transformers import elastic  # elastic

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=4096)
args = parser.parse_args()


class Counting(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return args.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


torch.manual_seed(0)
size = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 1, "n_head": 2}
trainer = Trainer(
    model=GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0)),
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=32,
        num_train_epochs=args.epochs,
        learning_rate=1e-3,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=Counting(),
)
elastic(trainer, max_batch=256)  # elastic
trainer.train()
