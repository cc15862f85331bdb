"""B4: what the job adds to a step on a GPU, beside a plain loop in the same process, turn by turn (../step_train.py).

CPU time of the training thread, of a small model; and the time that a device with enough to do stands still, of steps
that keep it busy for 5 ms. One rank beside a loop without DistributedDataParallel, as the job trains there itself; two
ranks that share the GPU over gloo beside DistributedDataParallel.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from checking import STAND_IN, Check, Spinner, arm, left_s, run_elastic, scratch

ROOT = Path(__file__).resolve().parents[2]
BAR_MS = 0.05
SPIN_S = 0.005


def worker(out: str, device: str) -> None:
    """The script under `selastic run`: small steps, steps with device work, and where steps wait for the device."""
    arm()
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import step_train

    import slurm_elastic.trainer_shim as elastic

    cuda = device == "cuda"
    job = elastic.join(batch=step_train.BATCH, lr="sqrt")
    if job.device.type != device:
        raise RuntimeError(f"the job trains on {job.device}, not on {device}")
    blocks, block = (10, 40) if cuda and not STAND_IN else (4, 10)
    if cuda and job.world_size > 1:  # over gloo a CUDA tensor's small step takes some ten times as long
        blocks, block = 4, 10
    spinner, spins = Spinner(cuda), [0.0]

    def spin() -> None:
        if spins[0]:
            spinner(spins[0])

    waits: list[str] = []
    real_block = step_train.Timer.block

    def block_of(timer: Any, steps: int, fetch: Any, step: Any) -> None:
        """The last half of the blocks spins."""
        spins[0] = SPIN_S if len(timer.blocks) >= blocks else 0.0
        ours = "Plain" not in repr(step)
        if (
            ours and cuda and not STAND_IN and job.world_size == 1 and len(timer.blocks) == 1
        ):  # one block tells where the host waits
            torch.cuda.set_sync_debug_mode("warn")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(steps):
                    step(*fetch())
            torch.cuda.set_sync_debug_mode("default")
            waits.extend(
                f"{Path(w.filename).name}:{w.lineno}" for w in caught if "called a synchronizing" in str(w.message)
            )
        real_block(timer, steps, fetch, step)

    step_train.Timer.block = block_of  # type: ignore[method-assign]
    timers: list[Any] = []
    real_init = step_train.Timer.__init__

    def kept(timer: Any, *given: Any) -> None:
        real_init(timer, *given)
        timers.append(timer)

    step_train.Timer.__init__ = kept  # type: ignore[method-assign]
    step_train.train(job, 8, 32, block, 2 * blocks, spin)
    ours, theirs = timers[:2]

    def median(timer: Any, first: int, part: str, clock: int) -> float:
        values = sorted(one[part][clock] for one in timer.blocks[first : first + blocks])
        return float(values[len(values) // 2]) * 1e3

    found: dict[str, Any] = {"waits": waits, "steps": block}
    for name, timer in (("job", ours), ("plain", theirs)):
        found[name] = {
            "cpu_ms": median(timer, 0, "data", 1) + median(timer, 0, "step", 1),
            "data_ms": median(timer, 0, "data", 1),
            "wall_ms": median(timer, 0, "whole", 0),
            "busy_wall_ms": median(timer, blocks, "whole", 0),
        }
    Path(f"{out}.{job.rank}").write_text(json.dumps(found))


def main() -> None:
    check = Check()
    for ranks, share in ((1, 0.55), (2, 1.0)):
        with check.part(f"{ranks} ranks"), scratch(0) as folder:
            words = ["worker", str(folder / "out"), check.device.type]
            env = {"SELASTIC_CUDA_BACKEND": "gloo" if ranks > 1 else "nccl"}
            env |= {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")} if check.cuda else {}
            run_elastic(Path(__file__), words, ranks, folder, seconds=share * left_s(), **env)
            found = json.loads((folder / "out.0").read_text())
            job, plain = found["job"], found["plain"]
            # Two ranks have one CPU clock each, and gloo's waiting in it: there it is printed, not judged.
            judged = ranks == 1 or None
            added = {name: job[name] - plain[name] for name in job}
            for name, said in (("cpu_ms", "CPU of the training thread"), ("busy_wall_ms", "gap on a busy GPU")):
                text = f"{added[name]:+.3f} ms a step ({job[name]:.3f}, plain {plain[name]:.3f})"
                ok = added[name] <= BAR_MS if judged else None
                check.figure(f"{ranks} ranks, {said}", text, ok, f"{BAR_MS} ms" if judged else "")
            text = f"{added['data_ms']:+.3f} ms CPU; small steps {job['wall_ms']:.3f}, plain {plain['wall_ms']:.3f} ms"
            check.figure(f"{ranks} ranks, of it fetching data", text)
            if ranks == 1 and check.cuda:
                places = ", ".join(sorted(set(found["waits"]))) or "none"
                text = f"{len(found['waits'])} in {found['steps']} steps: {places}"
                check.figure("waits for the device (sync_debug_mode)", text, not found["waits"], "none")


if __name__ == "__main__":
    worker(*sys.argv[2:]) if sys.argv[1] == "worker" else main()
