"""Traces of four public data sets, which the simulator reads once this is imported, and measured programs.

Promise: as for the traces of selastic simulate, a broken row is refused with its file, its line and what was expected.
"""

from __future__ import annotations

from pathlib import Path

import measured

from slurm_elastic.daemon.simulator.programs import Program
from slurm_elastic.daemon.simulator.traces import sacct
from slurm_elastic.daemon.simulator.traces.formats import KNOWN
from slurm_elastic.daemon.simulator.traces.job import TraceJob, number


def _adaptdl(row: dict[str, str]) -> TraceJob:
    gpus, batch = int(number(row, "num_replicas", 1)), int(number(row, "batch_size", 1))
    return TraceJob(row["name"], number(row, "time"), row["application"], gpus, batch)


def _elasticflow(row: dict[str, str]) -> TraceJob:
    batch = int(number(row, "batch_size", 1))
    return TraceJob(
        row["job_id"], number(row, "submit_time"), row["model_name"], int(number(row, "num_gpu", 1)), batch,
        samples=number(row, "iteration", 1) * batch, duration_s=number(row, "duration", 0),
    )  # fmt: skip


def _tiresias(row: dict[str, str]) -> TraceJob:
    gpus, duration = int(number(row, "num_gpu", 1)), number(row, "duration", 0)
    return TraceJob(row["job_id"], number(row, "submit_time"), row["model_name"], gpus, duration_s=duration)


def _philly(row: dict[str, str]) -> TraceJob | str:
    gpus, duration = int(number(row, "num_gpus")), number(row, "duration")
    if not gpus or not duration:
        return sacct.NEVER_RAN if gpus else sacct.NO_GPU
    at = sacct.seconds(row["timestamp"], "timestamp")
    return TraceJob(row["timestamp"], at, "training", gpus, duration_s=duration, account=row["cluster"])


KNOWN |= {
    "adaptdl": (frozenset({"name", "time", "application", "num_replicas", "batch_size"}), _adaptdl),
    "ElasticFlow": (
        frozenset({"job_id", "submit_time", "iteration", "model_name", "batch_size", "num_gpu"}),
        _elasticflow,
    ),
    "Philly": (frozenset({"timestamp", "duration", "num_gpus", "cluster"}), _philly),
    "Tiresias": (frozenset({"job_id", "num_gpu", "submit_time", "model_name", "duration"}), _tiresias),
}


def load_profiles(folder: Path) -> dict[str, Program]:
    """Programs below a folder, one sub-folder each."""
    found = {}
    for inner in sorted(p for p in folder.glob("*") if (p / "placements.csv").exists()):
        found[inner.name] = measured.program(inner.name, {f.name: f.read_text() for f in sorted(inner.glob("*.csv"))})
    if not found:
        raise SystemExit(f"{folder}: no sub-folder with a placements.csv in it")
    return found
