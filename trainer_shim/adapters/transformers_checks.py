"""Checks before the training: what of a Trainer cannot be elastic, and whether it has what its adapter uses."""

from __future__ import annotations

from typing import Any

from transformers import Trainer
from transformers import __version__ as version

from slurm_elastic.protocol.errors import TrainingError

from .loop import check_parts, refuse

TRIED = "5.23"
PRIVATE = (
    "_get_num_items_in_batch", "_prepare_for_training", "_run_epoch", "_save", "_save_optimizer_and_scheduler",
    "_track_num_input_tokens", "_wrap_model", "accelerator", "floating_point_ops", "get_batch_samples",
    "get_train_dataloader", "training_step",
)  # fmt: skip
"""What the adapter changes, or calls, of a Trainer."""


def check(trainer: Any, strategy: str) -> None:
    """Raise TrainingError for a Trainer that cannot be trained elastically, or not with this strategy."""
    if not isinstance(trainer, Trainer):
        raise TrainingError(f"elastic() was given a {type(trainer).__name__}; accepted: a transformers.Trainer")
    check_parts("transformers", version, TRIED, [(trainer, name) for name in PRIVATE])
    check_parts("transformers", version, TRIED, [(trainer.args, "distributed_state"), (trainer, "callback_handler")])
    args = trainer.args
    wrong = [
        (args.max_steps > 0, "max_steps", "num_train_epochs: steps are not of one size"),
        (args.num_train_epochs != int(args.num_train_epochs), "a part of an epoch", "whole num_train_epochs"),
        (bool(args.deepspeed), "deepspeed", "elastic(trainer, strategy='fsdp'), or replicas"),
        (bool(args.fsdp), "TrainingArguments(fsdp=...)", "elastic(trainer, strategy='fsdp')"),
        (
            strategy == "fsdp" and args.load_best_model_at_end,
            "load_best_model_at_end of a sharded model",
            "none, the last model stays",
        ),
        (args.auto_find_batch_size, "auto_find_batch_size", "elastic(micro_batch=...)"),
    ]
    refuse("elastic(trainer)", wrong)
