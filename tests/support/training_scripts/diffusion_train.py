"""A script of the shape of diffusers' train_unconditional.py, with three lines changed: averaged weights that hooks
save and load, save_state() every few steps, what only the main process makes, and a count of steps."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from script_options import Pace, knobs
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slurm_elastic.trainer_shim.accelerate import elastic

args = knobs().parse_args()


class EMAModel:
    """As diffusers has it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.optimization_step = 0

    def step(self, parameters: Iterable[nn.Parameter]) -> None:
        self.optimization_step += 1
        decay = min(0.99, (1 + self.optimization_step) / (10 + self.optimization_step))
        with torch.no_grad():
            for average, parameter in zip(self.model.parameters(), parameters, strict=True):
                average.sub_((1 - decay) * (average - parameter))

    def save_pretrained(self, path: Path) -> None:
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps({"optimization_step": self.optimization_step}))
        torch.save(self.model.state_dict(), path / "weights.pt")

    def load_pretrained(self, path: Path) -> None:
        self.optimization_step = json.loads((path / "config.json").read_text())["optimization_step"]
        self.model.load_state_dict(torch.load(path / "weights.pt"))


class Events(GeneralTracker):
    name = "events"
    requires_logging_directory = False

    def __init__(self, project_name: str) -> None:
        super().__init__()
        self.path = Path(args.out) / f"{project_name}-{time.monotonic_ns()}.jsonl"

    @property
    def tracker(self) -> Path:
        return self.path

    def log(self, values: dict[str, float], step: int | None = None, **_: object) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({**values, "step": step}) + "\n")


def main() -> None:
    output_dir = Path(args.out) / f"output-{args.name}"
    accelerator = Accelerator(cpu=True)
    LOGGER_TYPE_TO_CLASS["events"] = Events
    accelerator.log_with = ["events"]
    job = elastic(accelerator, batch=20, max_batch=80, micro_batch=args.micro)  # the first line

    def save_model_hook(models: list[nn.Module], weights: list[object], output_dir: str) -> None:
        if accelerator.is_main_process:
            ema_model.save_pretrained(Path(output_dir) / "unet_ema")
            for model in models:
                torch.save(model.state_dict(), Path(output_dir) / "unet.pt")
                weights.pop()

    def load_model_hook(models: list[nn.Module], input_dir: str) -> None:
        ema_model.load_pretrained(Path(input_dir) / "unet_ema")
        for _ in range(len(models)):
            models.pop().load_state_dict(torch.load(Path(input_dir) / "unet.pt"))

    accelerator.register_save_state_pre_hook(save_model_hook)
    accelerator.register_load_state_pre_hook(load_model_hook)
    if accelerator.is_main_process:
        output_dir.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).double()
    ema_model = EMAModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    x = torch.randn(args.samples, 6, dtype=torch.float64)
    dataset = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
    train_dataloader = DataLoader(dataset, batch_size=20, shuffle=True)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=63)
    model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, lr_scheduler
    )
    if accelerator.is_main_process:
        accelerator.init_trackers("run")
    pace = Pace(args)
    for epoch in job.epochs(args.epochs):  # the second
        global_step = job.global_step  # the third
        model.train()
        for clean, target in train_dataloader:
            with accelerator.accumulate(model):
                pace()
                loss = nn.functional.mse_loss(model(clean), target)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                ema_model.step(model.parameters())
                global_step += 1
                if accelerator.is_main_process and global_step % 9 == 0:
                    accelerator.save_state(str(output_dir / f"checkpoint-{global_step}"))
            accelerator.log({"loss": loss.detach().item()}, step=global_step)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            torch.save(accelerator.unwrap_model(model).state_dict(), output_dir / f"sample-{epoch}.pt")
    accelerator.end_training()
    if accelerator.is_main_process:
        facts = {"model": accelerator.unwrap_model(model).state_dict(), "ema": ema_model.model.state_dict()}
        counts = {"global_step": global_step, "ema_step": ema_model.optimization_step}
        torch.save({**facts, **counts}, Path(args.out) / f"{args.name}.pt")


main()
