"""Lightning: `Trainer(strategy=ElasticStrategy(batch=256, max_batch=4096))` instead of `Trainer(strategy="ddp")`.

The Trainer's loop stays Lightning's; what a step trains on, its backward pass, its rate and the worlds are the job's.
To Lightning the whole job is one device: trainer.world_size is 1, and no sampler is put in. Survivors of a resize stay
in their process; loops, callbacks, data module, optimizer and schedulers go to those that join, and into the job's own
checkpoints, from which the same script goes on by itself. "step" schedulers count batches of `batch` samples.

Limits: automatic optimization, data parallel replicas, one training DataLoader, one fit() in a process. Every rank runs
the whole validation. Means that self.log(on_epoch=True) takes over an epoch are over what the present ranks saw. Uses
parts of Lightning that are not its public interface; tested with 2.6.
"""

# mypy: disallow-subclassing-any=False
# Lightning's types are not looked at: it need not be installed.

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning import __version__ as version
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.utilities import distributed
from lightning.fabric.utilities.rank_zero import rank_zero_only as fabric_rank_zero_only
from lightning.pytorch.loops import loop as loops
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from slurm_elastic.protocol.errors import TrainingError

from .adapters.loop import (
    DrivenLoader,
    FrameworkLoop,
    Part,
    check_options,
    check_parts,
    rank_to_show,
    refuse,
    taken_over,
)
from .job import Job, join
from .world import objects

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


class ElasticStrategy(Strategy):
    """See the module. The arguments are those of join(); strategy="ddp" options go into `ddp`."""

    strategy_name = "elastic"
    is_distributed = False

    def __init__(self, batch: int, max_batch: int | None = None, *, ddp: dict[str, Any] | None = None, **options: Any):
        super().__init__()
        check_library()
        check_options(options, "ElasticStrategy")
        self.job: Job = join(batch, max_batch, **options)
        self._ddp = ddp or {}
        self._sigterm = signal.getsignal(signal.SIGTERM)
        # Lightning would take Slurm's variables, or torchrun's, for its own business: requeue, ports, ranks.
        self.cluster_environment = LightningEnvironment()
        self._loader: _Loader | None = None
        self._net: Any = None
        self._parts: list[Part] = []
        self._early: list[tuple[torch.nn.Parameter, torch.Tensor]] = []

    # -- what Lightning asks -------------------------------------------------------------------------------------

    @property
    def root_device(self) -> torch.device:
        return self.job.device

    @property
    def global_rank(self) -> int:
        return rank_to_show(self.job)

    @property
    def local_rank(self) -> int:
        return int(os.environ.get("SELASTIC_LOCAL_RANK") or os.environ.get("LOCAL_RANK") or 0)

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    def model_to_device(self) -> None:
        self.model.to(self.root_device)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        return distributed._sync_ddp_if_available(tensor, group or self._group, reduce_op)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> Any:
        return distributed._all_gather_ddp_if_available(tensor, group or self._group, sync_grads)

    def barrier(self, name: str | None = None) -> None:
        if self._group is not None:
            self._group.allreduce([torch.zeros(())]).wait()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return objects.share(obj, self._group, src) if self._group is not None else obj

    @property
    def _group(self) -> Any:
        """None on the way out of an error, where callbacks may save: the other ranks are elsewhere."""
        world = self.job._session.membership.world
        there = world is not None and world.grouped and not self.lightning_module.trainer.interrupted
        return world.group if world is not None and there else None

    def setup_environment(self) -> None:
        super().setup_environment()
        self._tell_rank()

    def _tell_rank(self) -> None:
        rank_zero_only.rank = fabric_rank_zero_only.rank = self.global_rank

    # -- before the loop -----------------------------------------------------------------------------------------

    def setup(self, trainer: Any) -> None:
        fitting = trainer.state.fn == TrainerFn.FITTING
        if fitting:
            check(trainer)
        super().setup(trainer)
        if not fitting:
            return
        # "step" schedulers count samples from here on; Lightning goes on with those by epoch, or by a metric.
        counted = [config for config in self.lr_scheduler_configs if config.interval == "step"]
        for config in counted:
            if config.reduce_on_plateau or config.frequency != 1:
                raise TrainingError(
                    f"the {type(config.scheduler).__name__} steps every {config.frequency} steps on a metric or not; "
                    "accepted: interval='step' with frequency=1, or interval='epoch'"
                )
            config.interval = "samples"
        scaler = getattr(self.precision_plugin, "scaler", None)
        schedulers = [config.scheduler for config in counted]
        no_skips(self.lightning_module)
        self._net = self.job.wrap(self.lightning_module, self.optimizers, schedulers, scaler=scaler, **self._ddp)
        others = [config.scheduler for config in self.lr_scheduler_configs if config not in counted]
        self.job.keep(**{f"scheduler{number}": part for number, part in enumerate(others)}, lightning=_Loops(trainer))

    def process_dataloader(self, dataloader: object) -> object:
        trainer = self.lightning_module.trainer
        if not trainer.training:
            return dataloader
        if self._loader is not None:
            raise TrainingError("there is more than one training DataLoader; accepted: one")
        feed, shuffle = taken_over(dataloader, self.job)
        self._loader = _Loader(self, FrameworkLoop(self.job, feed, shuffle, trainer.max_epochs))
        return self._loader

    @property
    def _driven(self) -> FrameworkLoop:
        if self._loader is None:
            raise TrainingError("the training DataLoader was not made by Lightning's fit(); accepted: trainer.fit(...)")
        return self._loader.driven

    # -- the loop ------------------------------------------------------------------------------------------------

    def next_batch(self) -> Any:
        """This rank's batch of the next step, with its first micro batch; the world may be another one afterwards."""
        trainer, driven = self.lightning_module.trainer, self._driven
        if not driven.begun:
            self._begin(trainer, driven)
        if driven.progress.epoch >= trainer.max_epochs:
            raise StopIteration  # restored from its end
        self._parts = driven.next_step()
        self._tell_rank()
        # How many batches an epoch has changes with the batch: only its last one is known, when it comes.
        trainer.fit_loop.max_batches = float("inf")
        if trainer.val_check_interval == 1.0:
            trainer.val_check_batch = float("inf")
        fetcher = trainer.fit_loop._data_fetcher
        fetcher.length = fetcher.fetched + 1 + driven.steps_left(self._parts[-1][0])
        return self._parts[0][1]

    def _begin(self, trainer: Any, driven: FrameworkLoop) -> None:
        if trainer.enable_validation and trainer.val_dataloaders is None:  # while nobody waits for this worker
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.setup_data()
            trainer.training = True
        if self._sigterm not in (None, signal.SIG_DFL):  # Lightning would end on Slurm's; the job sees to it itself
            signal.signal(signal.SIGTERM, self._sigterm)
        driven.begin()
        self._tell_rank()

    def training_step(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        module, driven = self.lightning_module, self._driven
        *early, (micro, _) = self._parts
        if early:
            for parameter in module.parameters():
                parameter.grad = None
        output = None
        for number, (micro, samples) in enumerate(self._parts):
            if number:
                batch = self._prepared(samples)
            self.job._epoch_loop.hand_out(micro, None)
            with self.precision_plugin.train_step_context():
                output = self._forward_redirection(self._net, module, "training_step", batch, *args, **kwargs)
            if output is None:
                raise TrainingError("training_step() returned None, which skips a batch; accepted: a loss for each one")
            if not micro.last:
                loss = output if isinstance(output, torch.Tensor) else output["loss"]
                driven.backward(micro, self.precision_plugin.pre_backward(loss * driven.scale(micro), module))
        if early:  # Lightning clears gradients now, before the last backward pass
            self._early = [(entry, entry.grad) for entry in module.parameters() if entry.grad is not None]
            for parameter, _ in self._early:
                parameter.grad = None
        return output

    def _prepared(self, samples: Any) -> Any:
        """As Lightning's loop does with the first."""
        samples = self.precision_plugin.convert_input(samples)
        return self.batch_to_device(self.lightning_module._on_before_batch_transfer(samples, dataloader_idx=0))

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        module, driven, micro = self.lightning_module, self._driven, self._parts[-1][0]
        for parameter, gradient in self._early:
            parameter.grad = gradient
        self._early = []
        driven.backward(micro, self.precision_plugin.pre_backward(closure_loss * driven.scale(micro), module))
        detached: torch.Tensor = self.precision_plugin.post_backward(closure_loss, module)
        return detached

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        with self._driven.rate():
            output = super().optimizer_step(optimizer, closure, model, **kwargs)
        self._driven.stepped()
        return output

    def on_train_end(self) -> None:
        if self._loader is not None:
            self._loader.driven.finish()


class _Loader(DrivenLoader):
    """What Lightning iterates over; asking for an iterator has no effect."""

    def __init__(self, strategy: ElasticStrategy, driven: FrameworkLoop) -> None:
        super().__init__(driven)
        self._strategy = strategy

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._strategy.next_batch()


class _Loops:
    """Lightning's own position and its callbacks', as a part that survives."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        for kept_elsewhere in ("state_dict", "optimizer_states", "lr_schedulers"):
            del state[kept_elsewhere]
        # The script makes them anew; they may be of any type, and a checkpoint holds plain values.
        return {name: entry for name, entry in state.items() if "hparams" not in name and "hyper_param" not in name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        trainer = self._trainer
        trainer.fit_loop.load_state_dict(state["loops"]["fit_loop"])
        _go_on(trainer.fit_loop)
        whole = {**state, "state_dict": trainer.lightning_module.state_dict()}
        call._call_callbacks_on_load_checkpoint(trainer, whole)
        call._call_callbacks_load_state_dict(trainer, whole)
        call._call_lightning_module_hook(trainer, "on_load_checkpoint", whole)
        if trainer.datamodule is not None and type(trainer.datamodule).__qualname__ in state:
            trainer.datamodule.load_state_dict(state[type(trainer.datamodule).__qualname__])


def _go_on(loop: Any) -> None:
    """This loop is in the middle of its run, not about to be restarted."""
    loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
    for inner in vars(loop).values():
        if isinstance(inner, loops._Loop):
            _go_on(inner)


# -- before the training: what of Lightning cannot be elastic ----------------------------------------------------------


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
