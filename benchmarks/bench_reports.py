"""What measuring and reporting cost a training step: under one percent of a step of 10 ms, or it fails.

    python benchmarks/bench_reports.py [--steps 20000] [--rounds 3] [--beside CHECKOUT]

Counts CPU seconds, which neither another process nor a busy machine changes. `step`: what the training thread does per
step for reports. `report`: median, percentiles, JSON and the socket, on the link's thread, with 500 steps to look
through, as a report every 5 s of 10 ms steps has; the GIL makes the training wait for it at worst. `supervisor`: what
the supervisor does for the reports of one interval of 64 ranks; it has a core of the batch host to share.

`replicas`: what comparing the ranks' states adds to a step, one in 100 of which does, beside a whole step of the same
model without it (forward, backward, AdamW, batch 64, one thread); half a percent is too much at a million parameters.

Then whole steps of a job beside those of a plain PyTorch loop, in the same processes, turn by turn (step_train.py),
under `selastic run` with one worker and with two, for models of two sizes: all that the job adds, the noise scale and
the agreement on the step included. `data` is fetching a batch, which loader workers do beside training where there are
some; `step` the rest.
--beside: of another checkout too, in turn with this one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _setup  # noqa: F401
import torch
from torch import nn

from slurm_elastic.protocol.messages import Piece
from slurm_elastic.trainer_shim.allocation.pieces.events import AgentUp
from slurm_elastic.trainer_shim.allocation.pieces.machine import Machine
from slurm_elastic.trainer_shim.parallel.ddp import ExposedCommunication, Replicated
from slurm_elastic.trainer_shim.state.kept_parts import State
from slurm_elastic.trainer_shim.supervisor.state_machine.context import SupervisorContext
from slurm_elastic.trainer_shim.supervisor.state_machine.events import WorkerMessage
from slurm_elastic.trainer_shim.supervisor.state_machine.parts import PARTS
from slurm_elastic.trainer_shim.training.guards.replica_check import EVERY, ReplicaCheck
from slurm_elastic.trainer_shim.training.step_meter import Meter, Position, StepShape
from slurm_elastic.trainer_shim.world.agreement import EMPTY_VOTE
from slurm_elastic.trainer_shim.world.process_group import World

HERE = Path(__file__).resolve().parent
STEP_S = 0.010
INTERVAL_S = 5.0
RANKS = 64
LIMIT = 0.01
SIZES = ((16, 32), (5, 256))
"""Layers, and units of each: 17 thousand parameters, and 0.27 million."""
CHECKED = ((16, 32), (5, 256), (16, 256), (100, 100), (16, 1024))
"""The same, of the models whose replicas are compared."""
CHECK_LIMIT = 0.005
SHAPE = StepShape(1, 64 * RANKS, 64, 1, rank=0, rank_samples=64)


def cost(work: Callable[[], object], times: int) -> float:
    """CPU seconds of one call."""
    begun = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begun) / times


def one_step(meter: Meter, exposed: ExposedCommunication) -> None:
    """All that a step does for the reports, as job.py, norms.py and reporting.py do it."""
    meter.asks(False)
    meter.got()
    exposed.ready(cuda=False)
    exposed.done()
    meter.step(64, Position(1, 64, 0, 3100.0), True, exposed.seconds())


def one_report(meter: Meter, exposed: ExposedCommunication, steps: int) -> float:
    """CPU seconds of making and encoding a report of so many steps."""
    for _ in range(steps):
        one_step(meter, exposed)
    begun = time.process_time()
    report = meter.rest()
    assert report is not None
    json.dumps({"type": "report", **report}, separators=(",", ":")).encode()
    return time.process_time() - begun


def world() -> tuple[Machine, list[str]]:
    """A supervisor of RANKS workers that train."""
    base = Piece(1, "base", tuple(f"n{number}" for number in range(RANKS // 8)), 8)
    machine = Machine(SupervisorContext((base,), SHAPE.batch), PARTS)
    machine.start(0.0)
    for node in base.nodes:
        machine.handle(AgentUp((1, node), tuple(str(gpu) for gpu in range(8))), 0.0)
    for name in list(machine.context.workers):
        machine.handle(WorkerMessage(name, {"type": "ready"}), 0.0)
    assert machine.context.world is not None
    first = machine.context.world.members[0]
    machine.handle(WorkerMessage(first, {"type": "running", "generation": machine.context.world.generation}), 0.0)
    return machine, list(machine.context.world.members)


def one_interval(machine: Machine, members: list[str]) -> None:
    """Every rank's pace, and rank 0's report."""
    for rank, name in enumerate(members):
        pace = {"rank": rank, "step_s": 0.01, "busy_s": 0.008, "samples": 64, "input_share": 0.0, "comm_share": 0.2}
        kind = "pace" if rank else "report"
        machine.handle(WorkerMessage(name, {"type": kind, "generation": 1, "batch": SHAPE.batch, "pace": pace}), 0.0)


def replica_check(layers: int, width: int) -> tuple[int, float, float]:
    """Parameters; CPU seconds that the comparison adds to a step; and of a step."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())))
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(64, width)

    def train() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    train()
    state, strategy = State(), Replicated(model, {})
    state.keep("Model", model, own=True)
    state.keep("Optimizer0", optimizer, own=True)
    check = ReplicaCheck(state, lambda: strategy, torch.device("cpu"))
    check.entered(World(generation=1, rank=0, size=2), {0})
    for _ in range(EVERY):
        check.add_to(EMPTY_VOTE, 0)
    check.close()
    added = min(cost(lambda: check.add_to(EMPTY_VOTE, 0), EVERY) for _ in range(10))
    step = min(cost(train, 20) for _ in range(5))
    return sum(entry.numel() for entry in model.parameters()), added, step


def whole_steps(checkout: Path, workers: int, size: tuple[int, int]) -> dict[str, Any]:
    """Of the job and of the plain loop, `data` and `step`: seconds by the wall, the thread's CPU, the process's; and
    how many parameters there are."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "slurm_elastic.trainer_shim.supervisor.cli",
            "--no-daemon",
            "--nproc",
            str(workers),
        ]
        layers, width = map(str, size)
        script = [str(HERE / "step_train.py"), "--out", f"{folder}/out", "--layers", layers, "--width", width]
        env = {**os.environ, "PYTHONPATH": str(checkout / "packaging" / "namespace")}
        subprocess.run([*command, "--job-dir", f"{folder}/job", *script], env=env, check=True, stdout=subprocess.PIPE)
        found: dict[str, Any] = json.loads(Path(f"{folder}/out.0").read_text())
    return found


def compare(checkouts: list[Path], rounds: int) -> None:
    """The table of whole steps: CPU time of the training thread, medians over the rounds."""
    print(f"\nwhole steps, us of the training thread's CPU time, median of {rounds} rounds")
    print(
        f"{'workers':9}{'parameters':12}{'checkout':12}{'part':6}{'job':>9}{'plain':>9}{'added':>9}{'added, wall':>13}"
    )
    for workers, size in itertools.product((1, 2), SIZES):
        found: dict[Path, list[dict[str, Any]]] = {checkout: [] for checkout in checkouts}
        for _ in range(rounds):
            for checkout in checkouts:
                found[checkout].append(whole_steps(checkout, workers, size))
        for checkout, runs in found.items():
            for part in ("data", "step"):
                job, plain = ([run[who][part] for run in runs] for who in ("job", "plain"))
                added = [[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(job, plain, strict=True)]
                cells = [statistics.median(run[1] for run in taken) * 1e6 for taken in (job, plain, added)]
                wall = statistics.median(run[0] for run in added) * 1e6
                numbers = "".join(f"{cell:9.0f}" for cell in cells)
                case = f"{workers:<9}{runs[0]['parameters']:<12}{checkout.name:12}{part:6}"
                print(f"{case}{numbers}{wall:13.0f}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3, help="of whole steps; 0: none")
    parser.add_argument("--beside", type=Path, action="append", default=[], metavar="CHECKOUT")
    args = parser.parse_args(argv)
    meter, exposed = Meter(), ExposedCommunication()
    meter.enter_world(SHAPE)
    step = cost(lambda: one_step(meter, exposed), args.steps)
    per_report = round(INTERVAL_S / STEP_S)
    report = min(one_report(meter, exposed, per_report) for _ in range(20))
    machine, members = world()
    interval = cost(lambda: one_interval(machine, members), 50)
    share = (step + report / per_report) / STEP_S
    every = f"every {INTERVAL_S:g} s"
    print(f"step        {step * 1e6:8.2f} us on the training thread")
    print(
        f"report      {report * 1e6:8.2f} us on the link's thread, {every}: {report / per_report * 1e6:.2f} us a step"
    )
    print(f"supervisor  {interval * 1e6:8.2f} us for {RANKS} ranks, {every}: {interval / INTERVAL_S:.4%} of a core")
    lasting = 0.0
    for size in CHECKED:
        parameters, added, whole = replica_check(*size)
        part = added / whole
        lasting = max(lasting, part) if parameters >= 1e6 else lasting
        print(f"replicas    {added * 1e6:8.2f} us a step of {whole * 1e3:.2f} ms, {parameters} parameters: {part:.3%}")
    print(f"together    {share:.3%} of a step of {STEP_S * 1000:g} ms; accepted: under {LIMIT:.0%}")
    if args.rounds:
        compare([HERE.parent, *(checkout.resolve() for checkout in args.beside)], args.rounds)
    return 0 if share < LIMIT and lasting < CHECK_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
