"""`selastic status`: what every job has now, where it is to go, and why. It feels like squeue and costs slurmctld
nothing: the daemon is asked, never Slurm.
"""

from __future__ import annotations

import argparse

from slurm_elastic.protocol import routes

from ...text import tables
from ...text.tables import Cell, Field, Row
from ...text.times import elapsed, format_time
from .. import options

DEFAULT = "JobID,Partition,Name,User,ST,Time,Nodes,GPUs,Target,Min-Max,Batch,Samples/s,Speedup,Reason"


def text(key: str) -> Cell:
    """The value as it is, empty for None."""
    return lambda row: "" if row.get(key) is None else str(row[key])


def number(key: str, digits: int = 3) -> Cell:
    """The value with so many significant digits."""
    return lambda row: tables.number(row.get(key), digits)


def share(key: str) -> Cell:
    """A part of one, in percent."""
    return lambda row: "" if row.get(key) is None else f"{row[key]:.0%}"


def moment(key: str) -> Cell:
    """A time as SLURM_TIME_FORMAT wants it."""
    return lambda row: format_time(row.get(key), options.clock())


def bounds(low: str, high: str) -> Cell:
    """MIN-MAX, or one number when they are equal."""

    def cell(row: Row) -> str:
        first, last = row.get(low), row.get(high)
        if first is None or last is None:
            return ""
        return str(first) if first == last else f"{first}-{last}"

    return cell


def _short_state(row: Row) -> str:
    # Slurm may say CANCELLED by 1000.
    state = (row.get("state") or "").split(" ")[0]
    return options.SHORT_STATES.get(state, state)


def _target(row: Row) -> str:
    """The GPUs it is to have, marked while that is not so: 8 in a resize is `8*`, one only advised is `(8)`."""
    target = row.get("target_gpus")
    if target is None:
        return ""
    if row.get("resize"):
        return f"{target}*"
    return str(target) if row.get("mode") == "act" or target == row.get("gpus") else f"({target})"


def _managed(row: Row) -> str:
    managed = row.get("managed")
    return "" if managed is None else "yes" if managed else "no"


FIELDS = (
    Field("JobID", "JOBID", text("job_id"), "job id"),
    Field("Partition", "PARTITION", text("partition"), "partition", left=True),
    Field("Name", "NAME", text("name"), "job name", left=True),
    Field("User", "USER", text("user"), "user name", left=True),
    Field("UID", "UID", text("uid"), "user id"),
    Field("Account", "ACCOUNT", text("account"), "account", left=True),
    Field("ST", "ST", _short_state, "state, short: R, PD, CD, ...", left=True),
    Field("State", "STATE", text("state"), "state", left=True),
    Field("Time", "TIME", lambda row: elapsed(row.get("elapsed_s"), short=True), "time since its start"),
    Field("Submit", "SUBMIT", moment("submit_time"), "time of submission"),
    Field("Start", "START", moment("start_time"), "time of its start"),
    Field("End", "END", moment("end_time"), "time of its end"),
    Field("Nodes", "NODES", text("nodes"), "nodes that it trains on"),
    Field("GPUs", "GPUS", text("gpus"), "GPUs that it trains on"),
    Field("Target", "TARGET", _target, "GPUs it is to have; 8*: resize under way, (8): only advised"),
    Field("Min-Max", "MIN-MAX", bounds("min_gpus", "max_gpus"), "GPUs that it accepts"),
    Field("Batch", "BATCH", text("batch"), "global batch, in samples"),
    Field("TargetBatch", "TARGET_BATCH", text("target_batch"), "global batch it is to have"),
    Field("Batches", "BATCHES", bounds("min_batch", "max_batch"), "global batches that it accepts"),
    Field("Samples/s", "SAMPLES/S", number("samples_per_s"), "throughput at this size, last report; - when not known"),
    Field("Speedup", "SPEEDUP", number("speedup"), "throughput against that at its smallest size; - when not known"),
    Field("Input-wait", "INPUT-WAIT", share("input_wait_share"), "share of a step that waits for input, last report"),
    Field("Comm", "COMM", share("comm_share"), "share of a step in which gradients travel and nothing computes"),
    Field("Bottleneck", "BOTTLENECK", text("bottleneck"), "what holds its steps back, as a code", left=True),
    Field("HeldBack", "HELD_BACK", text("bottleneck_text"), "what holds its steps back, in words", left=True),
    Field("Step", "STEP", text("step"), "optimizer steps since the start of the training"),
    Field("Samples", "SAMPLES", text("samples"), "samples since the start of the training"),
    Field("Epoch", "EPOCH", text("epoch"), "epoch"),
    Field("Generation", "GEN", text("generation"), "number of its world of workers; each restart adds one"),
    Field("Resize", "RESIZE", text("resize"), "how far a resize under way has come", left=True),
    Field("Pinned", "PINNED", text("pinned"), "GPUs that it is pinned to"),
    Field("Managed", "MANAGED", _managed, "yes or no"),
    Field("Mode", "MODE", text("mode"), "mode of the last decision: off, observe, advise or act", left=True),
    Field("Reported", "REPORTED", moment("reported_at"), "time of the last report"),
    Field("NodeList", "NODELIST", text("node_list"), "names of its nodes", left=True),
    Field("Request", "REQUEST", text("request"), "elastic request as given", left=True),
    Field("Reason", "REASON", text("reason"), "why it has what it has, as a code", left=True),
    Field("Because", "BECAUSE", text("reason_text"), "why it has what it has, in words", left=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic status`."""
    options.add_job_filters(parser)
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print a row per job that is pending or running, and for one named with -j that has ended. A job named that is not
    known ends, after the rows of the others, with exit status 1."""
    columns = options.check_format(args, FIELDS, DEFAULT)
    rows = options.ask(routes.STATUS).get("jobs", [])
    ended, unknown = options.named(args, rows)
    rows = options.matching(sorted([*rows, *ended], key=lambda row: row["job_id"]), args)
    if args.json:
        options.print_json({"jobs": rows})
    else:
        options.print_table(columns, rows, args)
    options.refuse(unknown)
    return 0
