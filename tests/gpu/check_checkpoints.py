"""T6: a checkpoint is the state of its step to the bit, though training goes on at once and changes every parameter."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from checking import STAND_IN, Check, left_s, one_rank_environment, run_part, scratch
from torch import nn

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.checkpoint import files
from slurm_elastic.trainer_shim.state.packed_tensors import pack
from slurm_elastic.trainer_shim.world.mesh import local_of

SAVED_AT = (3, 6)
"""Steps. The second one is written into the first one's memory."""
LAST = 9


def copied(session: Any) -> list[torch.Tensor]:
    """All tensors of the state where they are, as of now, in the order of the packed state."""
    tensors: list[torch.Tensor] = []
    pack(session.state.capture(), tensors)
    return [local_of(tensor).detach().clone() for tensor in tensors]


def on_disk(session: Any, folder: Path) -> tuple[int, list[torch.Tensor]]:
    """The newest checkpoint: its step, and the tensors of its state."""
    found = files.load_newest(folder)
    if found is None:
        raise AssertionError("there is no checkpoint")
    saved, captured = found
    if saved.parts:
        captured = session.snapshots.read_parts(found, None)
    tensors: list[torch.Tensor] = []
    pack(captured, tensors)
    return saved.step, tensors


def differing(one: list[torch.Tensor], other: list[torch.Tensor]) -> int:
    """How many tensors are not the same to the bit."""
    if len(one) != len(other):
        raise AssertionError(f"{len(one)} tensors, and {len(other)}")
    return sum(not torch.equal(a.cpu(), b.cpu()) for a, b in zip(one, other, strict=True))


def train(check: Check, strategy: str, folder: Path) -> None:
    width, layers = (2048, 8) if check.cuda and not STAND_IN else (64, 4)
    job = elastic.join(batch=8, lr="none", checkpoints=folder, checkpoint_every_s=1e6)
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]).to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    net = job.wrap(model, optimizer, strategy=strategy)
    session: Any = job._session
    data = torch.utils.data.TensorDataset(torch.randn(1024, width))
    pause, reference, at = 0.0, [], 0
    for _ in job.epochs(1):
        for (x,) in job.loader(data):
            job.step(net(x).pow(2).mean())
            if job.global_step in SAVED_AT:
                reference, at = copied(session), job.global_step
                begun = time.perf_counter()
                session.snapshots.save()
                pause = time.perf_counter() - begun
            elif job.global_step - 2 in SAVED_AT:  # two steps have changed everything meanwhile
                now = copied(session)
                moved = differing(reference, now)
                begun = time.perf_counter()
                session.saving.wait(left_s())
                waited = time.perf_counter() - begun
                problem = session.saving.writer.problem
                step, tensors = on_disk(session, folder) if not problem else (-1, [])
                wrong = differing(reference, tensors) if not problem else -1
                size = sum(t.numel() * t.element_size() for t in reference) / 1e9
                text = f"{wrong} of {len(reference)} tensors differ, {size:.2f} GB, pause {pause:.2f} s"
                text += f", waited {waited:.1f} s for the writer {problem}".rstrip()
                if moved < len(reference):
                    text += f", but two steps had changed {moved} only"
                ok = wrong == 0 and step == at and moved == len(reference)
                check.figure(f"{strategy}, step {at}", text, ok, "0 differ")
                del now, tensors
            if job.global_step >= LAST:
                print("done", flush=True)
                os._exit(0)


def main() -> None:
    check = Check(strategy="", folder="")
    if check.args.strategy:
        train(check, check.args.strategy, Path(check.args.folder))
        return
    for strategy, share in (("ddp", 0.55), ("fsdp", 1.0)):
        with check.part(strategy), scratch(15 * 10**8) as folder:
            words = ["--strategy", strategy, "--folder", str(folder / "checkpoints")]
            env = {**os.environ, **one_rank_environment()}
            command = [sys.executable, __file__, *sys.argv[1:], *words]
            run_part(command, share * left_s(), env)


if __name__ == "__main__":
    main()
