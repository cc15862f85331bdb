"""Checks before the training: what of Lightning cannot be elastic, and whether it has what its adapter uses."""

from __future__ import annotations

from typing import Any

from lightning import __version__ as version
from lightning.fabric.utilities import distributed
from lightning.pytorch.loops import loop as loops
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.model_helpers import is_overridden

from slurm_elastic.protocol.errors import TrainingError

from .loop import check_parts, refuse

TRIED = "2.6"
PRIVATE: list[tuple[Any, str]] = [
    (distributed, "_all_gather_ddp_if_available"),
    (distributed, "_sync_ddp_if_available"),
    (loops, "_Loop"),
    (call, "_call_callbacks_on_load_checkpoint"),
    (call, "_call_callbacks_load_state_dict"),
    (call, "_call_lightning_module_hook"),
]
"""What the adapter uses beside the public interface; TRAINER and FIT_LOOP: of a Trainer, before it trains."""
TRAINER = ("_checkpoint_connector", "fit_loop", "val_check_batch", "val_check_interval", "enable_validation")
FIT_LOOP = ("_data_fetcher", "epoch_loop", "max_batches", "_restarting")


def check_library() -> None:
    """Raise TrainingError when this Lightning lacks what the adapter uses."""
    check_parts("lightning", version, TRIED, PRIVATE)


def no_skips(module: Any) -> None:
    """on_train_batch_start() may return -1, to skip the rest of an epoch: this rank's samples would be lost."""
    hook = module.on_train_batch_start

    def asked(*args: Any, **kwargs: Any) -> Any:
        answer = hook(*args, **kwargs)
        if answer == -1:
            raise TrainingError("on_train_batch_start() returned -1, which skips the rest of an epoch; accepted: None")
        return answer

    if is_overridden("on_train_batch_start", module):
        module.on_train_batch_start = asked


def check(trainer: Any) -> None:
    """Raise TrainingError for a Trainer or a module that cannot be trained elastically."""
    module = trainer.lightning_module
    check_parts("lightning", version, TRIED, [(trainer, name) for name in TRAINER])
    check_parts("lightning", version, TRIED, [(trainer.fit_loop, name) for name in FIT_LOOP])
    wrong = [
        (not module.automatic_optimization, "manual optimization", "automatic_optimization = True"),
        (is_overridden("backward", module), "LightningModule.backward()", "the one of Lightning"),
        (trainer.accumulate_grad_batches != 1, "Trainer(accumulate_grad_batches=)", "ElasticStrategy(micro_batch=)"),
        (trainer.max_steps != -1, "Trainer(max_steps=)", "max_epochs: steps are not of one size"),
        (trainer.max_epochs in (None, -1), "training without an end", "Trainer(max_epochs=)"),
        (trainer.limit_train_batches != 1.0, "Trainer(limit_train_batches=)", "a smaller dataset"),
        (trainer.overfit_batches != 0, "Trainer(overfit_batches=)", "a smaller dataset"),
        (trainer.reload_dataloaders_every_n_epochs != 0, "Trainer(reload_dataloaders_every_n_epochs=)", "0"),
        (trainer.ckpt_path is not None, "fit(ckpt_path=)", "none: an elastic job goes on from its own checkpoints"),
    ]
    refuse("ElasticStrategy", wrong)
