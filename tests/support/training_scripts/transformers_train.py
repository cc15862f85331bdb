"""A Transformers script as a user would write one, with the knobs that the tests turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from script_options import Pace, knobs
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from slurm_elastic.trainer_shim.transformers import elastic

parser = knobs()
parser.add_argument("--strategy", default="ddp")
args = parser.parse_args()
pace = Pace(args)


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Counting, of unequal lengths: what is beyond the end carries no label."""

    def __len__(self) -> int:
        return args.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(12) + index) % 32
        return {"input_ids": tokens, "labels": torch.where(torch.arange(12) < 4 + index % 9, tokens, -100)}


class Watch(TrainerCallback):
    """Naps, and what has been evaluated and logged."""

    def __init__(self) -> None:
        self.epochs: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        pace()

    def on_evaluate(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        self.epochs.append(state.epoch)


torch.manual_seed(0)
config = GPT2Config(vocab_size=32, n_positions=12, n_embd=16, n_layer=1, n_head=2)
config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
model = GPT2LMHeadModel(config).double()
data = Texts()
options = TrainingArguments(
    output_dir=args.out,
    per_device_train_batch_size=20,
    num_train_epochs=args.epochs,
    learning_rate=1e-2,
    adam_epsilon=1e-4,
    lr_scheduler_type="cosine",
    warmup_steps=5,
    eval_strategy="epoch",
    save_strategy="epoch" if args.strategy == "fsdp" else "no",
    logging_steps=10,
    report_to=[],
    disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(),
)
watch = Watch()
held_out = [data[index] for index in range(20)]
trainer = Trainer(model=model, args=options, train_dataset=data, eval_dataset=held_out, callbacks=[watch])
elastic(trainer, max_batch=80, lr=args.lr, micro_batch=args.micro, strategy=args.strategy)
trainer.train()
saved = Path(args.out) / "saved"
trainer.save_model(saved)
if trainer.is_world_process_zero():
    evaluated = [line for line in trainer.state.log_history if "eval_loss" in line]
    facts = {
        "model": GPT2LMHeadModel.from_pretrained(saved, dtype=torch.float64).state_dict(),
        "lr": trainer.optimizer.param_groups[0]["lr"],
        "evaluated": [line["epoch"] for line in evaluated],
        "epoch": trainer.state.epoch,
        "global_step": trainer.state.global_step,
        "val_loss": evaluated[-1]["eval_loss"],
    }
    torch.save(facts, Path(args.out) / f"{args.name}.pt")
