"""A script of the shape of Transformers' run_clm_no_trainer.py, with three lines changed: a progress bar, a count of
completed steps that ends the training, save_state() every few steps, and an evaluation behind each pass."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from accelerate import Accelerator
from script_options import Pace, knobs
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm

from slurm_elastic.trainer_shim.accelerate import elastic

parser = knobs()
parser.add_argument("--max-train-steps", type=int, default=50)
parser.add_argument("--uncounted", action="store_true", help="without the third line")
args = parser.parse_args()
BLOCK, LETTERS = 6, 11


class Blocks(Dataset[dict[str, torch.Tensor]]):
    """Grouped texts, as dictionaries."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.letters = torch.randint(LETTERS, (count, BLOCK), generator=generator)

    def __len__(self) -> int:
        return len(self.letters)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.letters[index], "labels": self.letters[index]}


class CausalModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(LETTERS, 8), nn.Linear(8, LETTERS)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.embed(input_ids).cumsum(1).tanh())[:, :-1]
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


def main() -> None:
    accelerator = Accelerator(cpu=True)
    job = elastic(accelerator, batch=20, max_batch=80, micro_batch=args.micro)  # the first line
    output_dir = Path(args.out) / f"output-{args.name}"
    if accelerator.is_main_process:
        output_dir.mkdir(exist_ok=True)
    accelerator.wait_for_everyone()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = CausalModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    train_dataloader = DataLoader(Blocks(args.samples, 1), batch_size=20, shuffle=True)
    eval_dataloader = DataLoader(Blocks(40, 2), batch_size=20)
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (1 + args.max_train_steps))
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    num_train_epochs = math.ceil(args.max_train_steps / len(train_dataloader))
    progress_bar = tqdm(range(args.max_train_steps), disable=not accelerator.is_local_main_process)
    completed_steps = 0
    pace, perplexities = Pace(args), dict[int, float]()
    for epoch in job.epochs(num_train_epochs):  # the second
        if not args.uncounted:
            completed_steps = job.global_step  # the third
        model.train()
        for _, batch in enumerate(train_dataloader):
            with accelerator.accumulate(model):
                pace()
                loss = model(**batch)
                accelerator.backward(loss)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                progress_bar.update(1)
                completed_steps += 1
                if completed_steps % 9 == 0:
                    accelerator.save_state(str(output_dir / f"step_{completed_steps}"))
            if completed_steps >= args.max_train_steps:
                break
        model.eval()
        losses = []
        for batch in eval_dataloader:
            with torch.no_grad():
                loss = model(**batch)
            losses.append(accelerator.gather_for_metrics(loss.repeat(20)))
        perplexities[epoch] = math.exp(float(torch.cat(losses).mean()))
    accelerator.wait_for_everyone()
    state = accelerator.unwrap_model(model).state_dict()
    if accelerator.is_main_process:
        facts = {
            "model": state,
            "lr": lr_scheduler.get_last_lr(),
            "steps": completed_steps,
            "perplexities": perplexities,
        }
        torch.save(facts, Path(args.out) / f"{args.name}.pt")
    accelerator.end_training()


main()
