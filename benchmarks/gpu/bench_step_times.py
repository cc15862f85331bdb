"""B1: whether reports say what the device did: medians, busy time and input wait, beside events in its stream.

A training under `selastic run` with device work of a known length in each step: of 2 ms, of 50 ms, and of 20 ms where
samples take longer than that. What is reported, the first report of each too, is compared with the time between events
at the ends of the same steps. One rank, and two that share the GPU over gloo; eager, as a CUDA graph, and compiled.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from checking import STAND_IN, Check, Mark, Spinner, arm, left_s, run_elastic, scratch, synchronize
from torch import nn

import slurm_elastic.trainer_shim as elastic

PHASES = (("2 ms", 0.002, 0.0), ("50 ms", 0.050, 0.0), ("20 ms, input 30 ms", 0.020, 0.030))
"""Name, device work of a step, and how long its samples take to fetch; seconds."""
LEAST_S = 2.2
"""Of a phase: one report comes after 1 s, the last with its end."""
BATCH = 32
BAR = 0.03


class Slow(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that take their time: `each` seconds for a batch."""

    each = 0.0

    def __init__(self, width: int, cuda: bool) -> None:
        self._x, self._cuda = torch.randn(1 << 15, width), cuda
        self.asked = Mark(cuda)

    def __len__(self) -> int:
        return len(self._x)

    def __getitems__(self, places: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        self.asked = Mark(self._cuda)
        if Slow.each:
            time.sleep(Slow.each)
        return [(self._x[place], self._x[place]) for place in places]


def worker(out: str, device: str, mode: str) -> None:
    """The script under `selastic run`."""
    arm()
    cuda = device == "cuda"
    one_size: dict[str, int] = {"micro_batch": BATCH, "slice": BATCH} if mode == "graphed" else {}
    job = elastic.join(batch=BATCH, lr="none", checkpoint_every_s=1e6, **one_size)
    if job.device.type != device:
        raise RuntimeError(f"the job trains on {job.device}, not on {device}")
    width = 128
    torch.manual_seed(0)
    model: Any = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)]).to(job.device)
    if mode == "graphed":
        model = torch.cuda.make_graphed_callables(model, (torch.randn(BATCH, width, device=job.device),))
    net = job.wrap(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    run = torch.compile(net) if mode == "compiled" else net
    spinner, session = Spinner(cuda), job._session
    data, reports = Slow(width, cuda), []
    give = session.reporting.send

    def send(report: dict[str, Any] | None) -> None:
        if report is not None:
            reports.append(report)
        give(report)

    session.reporting.send = send  # type: ignore[method-assign]
    ends: dict[int, tuple[Mark, Mark, Mark]] = {}
    found: list[dict[str, Any]] = []
    phase, begun = -1, 0
    for _ in job.epochs(1000):
        for x, y in job.loader(data):
            asked, fetched = data.asked, Mark(cuda)
            spinner(PHASES[max(phase, 0)][1])
            job.step((run(x) - y).pow(2).mean())
            ends[job.global_step] = asked, fetched, Mark(cuda)
            # By the count of steps, which is the same on all ranks; the first ones warm everything up.
            done = job.global_step - begun
            if done < 10 or (phase >= 0 and done * max(PHASES[phase][1:]) < LEAST_S):
                continue
            if phase >= 0:
                session.reporting.send(session.reporting.meter.rest())
                synchronize(cuda)
                found.append({"phase": PHASES[phase][0], "reports": compared(reports, ends)})
                Path(f"{out}.{job.rank}").write_text(json.dumps(found))
            phase, begun = phase + 1, job.global_step
            if phase == (len(PHASES) if mode == "eager" else 2):
                job.stop()
                break
            synchronize(cuda)
            reports.clear()
            ends.clear()
            session.reporting.entered(session.slicing())
            Slow.each = PHASES[phase][2]


def compared(reports: list[dict[str, Any]], ends: dict[int, tuple[Mark, Mark, Mark]]) -> list[dict[str, float]]:
    """Each report, and the same from the events of its steps."""
    found = []
    for report in reports:
        last = report["step"]
        steps = [n for n in range(last - report["steps"] + 1, last + 1) if n in ends and n - 1 in ends]
        if not steps:
            continue
        times = [ends[n - 1][2].until(ends[n][2]) for n in steps]
        waits = [ends[n][0].until(ends[n][1]) for n in steps]  # what the job adds to a step is no input: B4 has it
        busy = statistics.median(took - wait for took, wait in zip(times, waits, strict=True))
        found.append(
            {
                "steps": report["steps"],
                "median_s": report["step_time_median_s"],
                "true_median_s": statistics.median(times),
                "busy_s": report["pace"]["busy_s"],
                "true_busy_s": busy,
                "input_share": report["input_wait_share"],
                "true_input_share": sum(waits) / sum(times),
                "comm_share": report["pace"]["comm_share"],
            }
        )
    return found


def told(check: Check, case: str, ranks: int, phases: list[dict[str, Any]]) -> None:
    for phase in phases:
        if not phase["reports"]:
            check.figure(f"{case}, {phase['phase']}", "no report", ok=False)
            continue
        for which, one in (("first", phase["reports"][0]), ("last", phase["reports"][-1])):
            if which == "last" and len(phase["reports"]) == 1:
                continue
            off = one["median_s"] / one["true_median_s"] - 1
            busy = one["busy_s"] / one["true_busy_s"] - 1
            text = f"{1e3 * one['median_s']:.2f} ({off:+.1%}) busy {1e3 * one['busy_s']:.2f} ({busy:+.1%})"
            shares = f"{one['input_share']:.2f}/{one['true_input_share']:.2f}"
            text += f" input {shares} comm {one['comm_share']:.2f}"
            # Busy is without what travels, which the events here do not see: at one rank only it can be judged.
            # A first report's steps ended before the host's last one: their input is judged in the last report.
            input_off = abs(one["input_share"] - one["true_input_share"])
            wrong = abs(off) > BAR or (which == "last" and input_off > BAR)
            wrong = wrong or (ranks == 1 and abs(busy) > BAR)
            check.figure(f"{case}, {phase['phase']}, {which}", text, not wrong, f"{BAR:.0%}")


def main() -> None:
    check = Check()
    cases = [("eager", 1, 0), ("graphed", 1, 12), ("eager", 2, 16), ("compiled", 1, 18)]
    for mode, ranks, needs_s in cases if check.cuda and not STAND_IN else cases[::2]:
        case = f"{mode}, {ranks} ranks"
        if left_s() < needs_s:
            check.figure(case, f"not tried: {left_s():.0f} s left")
            continue
        with check.part(case), scratch(0) as folder:
            out = folder / "out"
            env = {"SELASTIC_CUDA_BACKEND": "gloo" if ranks > 1 else "nccl"}
            env |= {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")} if check.cuda else {}
            try:
                words = ["worker", str(out), check.device.type, mode]
                run_elastic(Path(__file__), words, ranks, folder, seconds=30, **env)
            finally:
                written = Path(f"{out}.0")
                told(check, case, ranks, json.loads(written.read_text()) if written.exists() else [])


if __name__ == "__main__":
    worker(*sys.argv[2:]) if sys.argv[1] == "worker" else main()
