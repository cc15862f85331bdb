"""The pause of a resize, beside a cold restart and torchrun's elastic agent, on one machine and in one run.

    python benchmarks/bench_resize.py [--quick] [--local] [--resizes 20] [--large 6] [--cold 3] [--torchrun 2]

About 25 minutes on two quiet cores, most of it torchrun's; --quick 3.

The pause is from the end of the last step of the old world to the end of the first step of the new one, less one step
(the median of the new world's next ones), as the training script itself notes it. selastic run trains as a job of a
private real Slurm and grows by a companion (`--local`: without Slurm, by another agent); this script orders what
selasticd would. Each is compared with the cold restart of its own strategy, torchrun with DDP's. A cold restart is the
kindest there is: checkpoint on SIGTERM, then the same script started by hand at the other size at once, with no wait in
a queue. torchrun runs its own documentation's example with a snapshot a step. Both directions alternate: 2 -> 4 -> 2
workers. Changes of the batch alone stand beside those of 0.2.0, which made a new process group for them; --batches-only
measures nothing else. Rows of "forming" are on the stand-in for a GPU and NCCL (tests/nccl_standin), without Slurm,
where a communicator takes so many seconds to form; --forming-only measures nothing else. Limit: CPU workers over gloo,
or the stand-in; neither NCCL nor CUDA is in it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import stand_in
from fake_daemon import FakeDaemon
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.protocol.messages import Shape

HERE = Path(__file__).resolve().parent
NAMESPACE = HERE.parent / "packaging" / "namespace"
FEW, MANY = 2, 4
STEPS_BETWEEN = 6
"""Steps of a world before it is changed again: those after the first give the median step."""
PATIENCE_S = 300.0
Line = dict[str, Any]
Measured = Callable[[str, Callable[[Path], "Pauses"]], "Pauses"]
"""Runs one measurement in a folder of its own."""


@dataclass
class Pauses:
    """Seconds, by direction; and what they were spent on, where that is known."""

    grow: list[float] = field(default_factory=list)
    shrink: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)
    """Of changes of the batch alone."""
    phases: dict[str, list[dict[str, float]]] = field(default_factory=lambda: {"grow": [], "shrink": [], "batch": []})
    step: float = 0.0
    failed: str = ""


def read(path: Path) -> list[Line]:
    """What the training has noted so far."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be in the works


def worlds(lines: list[Line]) -> list[list[Line]]:
    """The lines of one world after the other."""
    found: list[list[Line]] = []
    for line in lines:
        if not found or (found[-1][-1]["world"], found[-1][-1]["size"]) != (line["world"], line["size"]):
            found.append([])
        found[-1].append(line)
    return found


def pauses(lines: list[Line]) -> Pauses:
    """From what a training noted, whatever made it change its size."""
    result, steps = Pauses(), []
    for old, new in pairwise(worlds(lines)):
        if (old[-1]["size"], old[-1].get("batch")) == (new[0]["size"], new[0].get("batch")):
            continue
        step = statistics.median(b["at"] - a["at"] for a, b in pairwise(new)) if len(new) > 1 else 0.0
        steps.append(step)
        gap = new[0]["at"] - old[-1]["at"]
        way = "grow" if new[0]["size"] > old[-1]["size"] else "shrink" if new[0]["size"] < old[-1]["size"] else "batch"
        getattr(result, way).append(gap - step)
        phases = dict(new[0].get("phases") or {})
        if "process" in new[0] and not phases:
            phases = cold_phases(old[-1]["at"], new[0])
        elif phases:
            phases["first step, beyond a median one"] = new[0]["at"] - new[0]["begun"] - step
            phases["rest"] = gap - step - sum(phases.values())
        result.phases[way].append(phases)
    result.step = statistics.median(steps) if steps else 0.0
    return result


def cold_phases(last: float, line: Line) -> dict[str, float]:
    """Parts of a cold restart on rank 0."""
    begun, imported, made = line["process"]
    return {
        "checkpoint, exit, start of python": begun - last,
        "import torch": imported - begun,
        "model and optimizer": made - imported,
        "group, restore, first data": line["begun"] - made,
        "first step": line["at"] - line["begun"],
    }


def done(path: Path, size: int, what: object) -> None:
    """Wait until the world of this size, the last one, has done its steps."""

    def enough() -> bool:
        last = worlds(read(path))[-1:]
        return bool(last) and last[0][0]["size"] == size and len(last[0]) >= STEPS_BETWEEN

    wait_until(enough, PATIENCE_S, what, every=0.1)


# --- selastic run -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def supervised(folder: Path, words: list[str], env: dict[str, str], cluster: Sandbox | None) -> Iterator[Path]:
    """`selastic run` of the training, as a Slurm job or as a process; gives the file with its output."""
    output = folder / "out.txt"
    environ = {"PYTHONPATH": str(NAMESPACE), "OMP_NUM_THREADS": "1", **env}
    command = [sys.executable, "-m", "slurm_elastic.trainer_shim.supervisor.cli", *words]
    if cluster is None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SELASTIC"))}
        with output.open("w") as out:
            local = [*command[:3], "--nproc", str(FEW), "--job-dir", str(folder / "job"), *words]
            process = subprocess.Popen(local, cwd=folder, env={**clean, **environ}, stdout=out, stderr=out)
        try:
            yield output
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
        return
    exports = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in environ.items())
    (folder / "job.sh").write_text(f"#!/bin/bash\n{exports}\nexec {shlex.join(command)}\n")
    options = ["--parsable", f"--chdir={folder}", "--output=out.txt", "-N1", f"--gres=gpu:{FEW}", "-c4"]
    answer = cluster.run(["sbatch", *options, str(folder / "job.sh")])
    assert answer.returncode == 0, answer.stderr
    try:
        yield output
    finally:
        cluster.run(["scancel", answer.stdout.strip()])
        queue = lambda: cluster.run(["squeue", "-h"]).stdout.strip()  # noqa: E731
        wait_until(lambda: not queue(), PATIENCE_S, queue)


def elastic(folder: Path, args: list[str], resizes: int, cluster: Sandbox | None, **env: str) -> Pauses:
    """Grow by a companion and shrink again, so many times each. env: of the stand-in, where it is on that."""
    steps = folder / "steps.jsonl"
    with FakeDaemon() as daemon:
        words = [*(["--preload", "standin"] if env else []), str(HERE / "resize_train.py"), *args, "--out", str(steps)]
        with supervised(folder, words, {**daemon.env(folder), **env}, cluster) as output:
            story = lambda: output.read_text()[-3000:] if output.exists() else "no output"  # noqa: E731
            base = daemon.wait_registered(PATIENCE_S).pieces
            job_id = base[0].slurm_job_id
            for number in range(1, 2 * resizes + 1):
                done(steps, FEW if number % 2 else MANY, story)
                daemon.order(number, job_id, base, (Shape(1, MANY - FEW),) if number % 2 else (), wait=PATIENCE_S)
                phase = daemon.wait_phase(number, "running", PATIENCE_S)
                if number % 2:
                    companion = phase.pieces[-1].slurm_job_id
                elif cluster is not None:
                    cluster.run(["scancel", str(companion)])
            done(steps, FEW, story)
    return pauses(read(steps))


def batches(folder: Path, args: list[str], changes: int, cluster: Sandbox | None, **env: str) -> Pauses:
    """Change the batch so many times up and down, with nobody who comes or goes."""
    steps = folder / "steps.jsonl"
    with FakeDaemon() as daemon:
        words = [str(HERE / "resize_train.py"), *args, "--out", str(steps)]
        with supervised(folder, words, {**daemon.env(folder), **env}, cluster) as output:
            story = lambda: output.read_text()[-3000:] if output.exists() else "no output"  # noqa: E731
            base = daemon.wait_registered(PATIENCE_S).pieces
            for number in range(1, 2 * changes + 1):
                done(steps, FEW, story)
                daemon.order(number, base[0].slurm_job_id, base, batch=64 if number % 2 else 32)
                daemon.wait_phase(number, "running", PATIENCE_S)
            done(steps, FEW, story)
    return pauses(read(steps))


# --- a cold restart ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def by_hand(folder: Path, size: int, args: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many fresh processes of the training, one group; killed if they are still there at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SELASTIC"))}
    env = {**clean, "PYTHONPATH": str(NAMESPACE), "OMP_NUM_THREADS": "1"}
    env |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(HERE / "resize_train.py"), *args]
    with (folder / "out.txt").open("ab") as out:
        ranks = [
            subprocess.Popen(command, cwd=folder, env={**env, "RANK": str(rank)}, stdout=out, stderr=out)
            for rank in range(size)
        ]
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def cold(folder: Path, args: list[str], restarts: int) -> Pauses:
    """Checkpoint on SIGTERM, all processes end, fresh ones start at the other size."""
    steps = folder / "steps.jsonl"
    args = [*args, "--out", str(steps), "--checkpoints", str(folder / "checkpoints")]
    for number in range(2 * restarts + 1):
        size = MANY if number % 2 else FEW
        with by_hand(folder, size, args) as ranks:
            done(steps, size, lambda: (folder / "out.txt").read_text()[-3000:])
            for process in ranks:
                process.send_signal(signal.SIGTERM)
            for process in ranks:
                process.wait(PATIENCE_S)
    return pauses(read(steps))


# --- torchrun ---------------------------------------------------------------------------------------------------


def agent(folder: Path, port: int, args: list[str], conf: str) -> subprocess.Popen[bytes]:
    """One torchrun for two workers."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SELASTIC"))}
    # Without this the second agent cannot join (torch 2.13, c10d): the old rank 0's address is not published again.
    env = {**clean, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{MANY // FEW}", f"--nproc-per-node={FEW}"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench", "--max-restarts=99"]
    command += [f"--rdzv-conf={conf}", "--local-addr=127.0.0.1"] if conf else ["--local-addr=127.0.0.1"]
    with (folder / "out.txt").open("ab") as out:
        return subprocess.Popen(
            [*command, str(HERE / "resize_torchrun.py"), *args], cwd=folder, env=env, stdout=out, stderr=out
        )


def torchrun(folder: Path, args: list[str], resizes: int, conf: str) -> Pauses:
    """A second agent joins, and leaves by SIGTERM."""
    steps = folder / "steps.jsonl"
    args = [*args, "--out", str(steps), "--snapshot", str(folder / "snapshot.pt")]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agents = [agent(folder, port, args, conf)]
    failed = ""
    try:
        done(steps, FEW, "torchrun's first step")
        for _ in range(resizes):
            agents.append(agent(folder, port, args, conf))
            done(steps, MANY, "a step after the join")
            agents[-1].terminate()
            done(steps, FEW, "a step after the leave")
    except AssertionError as error:
        failed = str(error).splitlines()[0]
    finally:
        for process in agents:
            process.terminate()
        for process in agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
    result = pauses(read(steps))
    result.failed = failed
    return result


# --- the table --------------------------------------------------------------------------------------------------


def summary(values: list[float]) -> str:
    """Median, smallest and largest."""
    if not values:
        return "-"
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f}, n={len(values)})"


def baseline_of(name: str, results: dict[str, Pauses]) -> Pauses:
    """The cold restart of the same strategy; of DDP for torchrun."""
    strategy = "fsdp" if name.endswith("fsdp") else "ddp"
    return results.get(f"cold restart, {strategy}", Pauses())


def show(results: dict[str, Pauses]) -> None:
    """One table for one model."""
    print(f"  {'':34}{FEW} -> {MANY} workers, s{'':16}{MANY} -> {FEW} workers, s{'':15}shorter than cold   step, s")
    for name, result in results.items():
        baseline = baseline_of(name, results)
        ratios = [
            f"{statistics.median(getattr(baseline, way)) / statistics.median(getattr(result, way)):.0f}x"
            for way in ("grow", "shrink")
            if getattr(result, way) and getattr(baseline, way)
        ]
        columns = f"{summary(result.grow):35}{summary(result.shrink):34}{' | '.join(ratios):20}{result.step:.3f}"
        print(f"  {name:34}{columns}" + (f"  failed: {result.failed}" if result.failed else ""))


def show_batches(results: dict[str, Pauses]) -> None:
    """The same of changes of the batch alone."""
    print(f"  {'':34}the batch alone, 32 <-> 64 on {FEW} workers, s")
    for name, result in results.items():
        print(f"  {name:34}{summary(result.batch):35}step {result.step:.3f}")


def show_phases(results: dict[str, Pauses]) -> None:
    """Where the time goes: the median of each part."""
    for name, result in results.items():
        for way in ("grow", "shrink", "batch"):
            found = [phases for phases in result.phases[way] if phases]
            if not found:
                continue
            names = list(dict.fromkeys(key for phases in found for key in phases))
            parts = {key: statistics.median(phases.get(key, 0.0) for phases in found) for key in names}
            told = ", ".join(f"{key} {seconds * 1000:.0f}" for key, seconds in parts.items() if seconds >= 0.0005)
            print(f"  {name}, {way}, ms: {told}")


def of_sizes(
    args: argparse.Namespace, size: str, many: int, cluster: Sandbox | None, measured: Measured
) -> dict[str, Pauses]:
    """Of one model, every way to another size."""
    results: dict[str, Pauses] = {}
    for strategy in args.strategies.split(","):
        words = ["--size", size, "--strategy", strategy]
        results[f"selastic run, {strategy}"] = measured(
            f"{size} {strategy}", lambda folder, w=words: elastic(folder, w, many, cluster)
        )
    for strategy in args.strategies.split(","):
        words = ["--size", size, "--strategy", strategy]
        results[f"cold restart, {strategy}"] = measured(
            f"{size} {strategy} cold", lambda folder, w=words: cold(folder, w, args.cold)
        )
    if args.torchrun:
        for name, conf in (("defaults", ""), ("last_call_timeout=1", "last_call_timeout=1")):
            results[f"torchrun, {name}"] = measured(
                f"{size} torchrun {name}",
                lambda folder, c=conf: torchrun(folder, ["--size", size], args.torchrun, c),
            )
    return results


def of_forming(args: argparse.Namespace, measured: Measured) -> dict[str, Pauses]:
    """Of the small model, where a communicator takes its time."""
    results: dict[str, Pauses] = {}
    for seconds in filter(None, args.forming.split(",")):
        env = stand_in.environment(STANDIN_FORM_S=seconds)
        results[f"stand-in, forming {seconds} s"] = measured(
            f"forming {seconds} s",
            lambda folder, e=env: elastic(folder, ["--size", "small"], min(5, args.resizes), None, **e),
        )
    return results


def of_batches(
    args: argparse.Namespace, size: str, many: int, cluster: Sandbox | None, measured: Measured
) -> dict[str, Pauses]:
    """Of one model, another batch: as it is now, and as it was in 0.2.0."""
    results: dict[str, Pauses] = {}
    for strategy in args.strategies.split(","):
        for name, env in (("in place", {}), ("by a new group", {"NEW_GROUPS": "1"})):
            words = ["--size", size, "--strategy", strategy]
            results[f"{strategy}, {name}"] = measured(
                f"{size} {strategy} batch {name}",
                lambda folder, w=words, e=env: batches(folder, w, many, cluster, **e),
            )
    return results


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resizes", type=int, default=20, help="in each direction")
    parser.add_argument("--large", type=int, default=6, help="the same, of the large model")
    parser.add_argument("--batches-only", action="store_true", help="changes of the batch alone")
    parser.add_argument("--forming", default="0,1,3", help="seconds that a communicator takes on the stand-in for NCCL")
    parser.add_argument("--forming-only", action="store_true", help="those rows alone")
    parser.add_argument("--cold", type=int, default=3, help="cold restarts in each direction")
    parser.add_argument("--torchrun", type=int, default=2, help="joins, and leaves, of an agent; 0: none")
    parser.add_argument("--sizes", default="small,large")
    parser.add_argument("--strategies", default="ddp,fsdp")
    parser.add_argument("--local", action="store_true", help="selastic run without Slurm")
    parser.add_argument("--quick", action="store_true", help="small model, 5 resizes, 1 cold restart, no torchrun")
    args = parser.parse_args(argv)
    if args.quick:
        args.resizes, args.cold, args.torchrun, args.sizes = 5, 1, 0, "small"
    with contextlib.ExitStack() as stack:
        cluster = None if args.local or args.forming_only else stack.enter_context(Sandbox.up(SandboxSpec(nodes=4)))
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="selastic-bench-")))
        root.chmod(0o755)

        def measured(name: str, measure: Callable[[Path], Pauses]) -> Pauses:
            folder = root / name.replace(" ", "-")
            folder.mkdir()
            begun = time.monotonic()
            result = measure(folder)
            print(f"  [{name}: {time.monotonic() - begun:.0f} s, load {os.getloadavg()[0]:.1f}]", flush=True)
            return result

        formed = of_forming(args, measured)
        show(formed)
        show_phases(formed)
        for size in () if args.forming_only else args.sizes.split(","):
            print(f"{size} model, {os.cpu_count()} cores, selastic run {'without Slurm' if args.local else 'on Slurm'}")
            many = args.resizes if size == "small" else min(args.large, args.resizes)
            if not args.batches_only:
                resized = of_sizes(args, size, many, cluster, measured)
                show(resized)
                show_phases(resized)
            rebatched = of_batches(args, size, many, cluster, measured)
            show_batches(rebatched)
            show_phases(rebatched)
    return 0


if __name__ == "__main__":
    sys.exit(main())
