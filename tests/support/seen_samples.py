"""What the model of a script is given, recorded where it is called: beside the job's own record, and independent of it.

Imported by a sitecustomize in every worker, so that the script itself knows nothing of it. One JSON line for each call
with gradients of the first model that the script, or its framework's adapter, has given to the job: a digest of each
row of its input. The
lines have the form of training/audit's, so that steps which a restart has set back are left out of them in the same
way.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

from slurm_elastic.trainer_shim.training import audit

CUSTOM = """
import sys
if "slurm_elastic.trainer_shim.node.agent" in sys.orig_argv:
    import seen_samples
    seen_samples.begin({folder!r}, first_call={first_call})
"""
"""Of a sitecustomize."""


def begin(folder: str, first_call: bool = False) -> None:
    """Record from now on. first_call: of each step only the first, where later ones are given what a model has made."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    from slurm_elastic.trainer_shim import job as shim

    recorders: dict[int, audit.Recorder] = {}
    last: list[tuple[int, int]] = [(-1, -1)]

    def record(module: Any, inputs: tuple[Any, ...]) -> None:
        job = shim._current[0] if shim._current else None
        strategy: Any = job._session.strategy if job is not None else None
        if job is None or strategy is None or not torch.is_grad_enabled():
            return
        own = job._own_loop.models  # of a loop of the script's own
        micro = None if own else job._epoch_loop.micro
        counts = strategy.weight if own else micro is not None and micro.weight
        now = job.generation, job.global_step + 1
        first = strategy.models[0].module if own else strategy.module
        if not counts or module is not first or (first_call and now == last[0]):
            return
        last[0] = now
        if os.getpid() not in recorders:
            recorders[os.getpid()] = audit.Recorder(folder, f"seen-{os.getpid()}-{os.urandom(4).hex()}")
        digests = [hashlib.sha256(row.detach().cpu().numpy().tobytes()).hexdigest()[:16] for row in inputs[0]]
        generation, step = now
        line = {"generation": generation, "step": step, "rank": job.rank, "size": job.world_size, "indices": digests}
        recorders[os.getpid()].write(line)

    register_module_forward_pre_hook(record)


def by_step(seen: Path, record: Path) -> dict[int, list[str]]:
    """The digests of each step that counts, sorted. record: the job's own, which says what restarts have set back."""
    lines = [line for line in audit.read(record) if "indices" not in line]
    found: dict[int, list[str]] = defaultdict(list)
    for line in audit.effective([*lines, *audit.read(seen)]):
        found[int(line["step"])] += line["indices"]
    return {step: sorted(digests) for step, digests in sorted(found.items())}
