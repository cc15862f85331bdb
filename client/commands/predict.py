"""`selastic predict JOB`: how fast a job would be at other sizes, with which batch, what its step would be made of, how
long it would still train and what it costs to get there, beside what was measured.

Promise: the numbers are those that plans are made from. Limit: whether so many GPUs are free is not said; `plan` does.
"""

import argparse
import re

from slurm_elastic.protocol.answers.predict import ComesFree, PredictedSize, Prediction, PredictionErrors, ProgramErrors
from slurm_elastic.protocol.answers.record import columns, shown_id
from slurm_elastic.protocol.api.routes import MAX_GPUS, PredictQuery
from slurm_elastic.protocol.codes import model_text
from slurm_elastic.protocol.errors import ConfigError
from slurm_elastic.protocol.text.times import format_time

from .. import options

DEFAULT = "GPUs,Batch,Samples/s,Interval,Step,Compute,Comm,Input,Left,Pause,Observed,AtBatch,Off,Note"
SPARE = ("Compute", "Comm", "Input", "Step", "AtBatch")
ERRORS = "Program,Type,Predictions,Error,Bias,Covered,LastAt,LastGPUs,Predicted,LastObserved"
FIELDS = (*columns(PredictedSize, capitals=True), *columns(ProgramErrors, capitals=True))
_FROM = {
    True: "by the resizes of other jobs here and the size of its state",
    False: "assumed, for no job here was resized that way",
}


def sizes(text: str) -> tuple[int, int]:
    """(least, most) of N, MIN-MAX or MIN:MAX, for argparse."""
    found = re.fullmatch(r"([0-9]{1,7})(?:[-:]([0-9]{1,7}))?", text, re.ASCII)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= least <= most <= MAX_GPUS:
        raise argparse.ArgumentTypeError(f"'{text}' is no range of GPUs; accepted: N, MIN-MAX or MIN:MAX, such as 1-64")
    return least, most


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "job", type=options.job_id, nargs="?", metavar="JOB", help="job id; of a job that runs or has ended"
    )
    parser.add_argument(
        "--errors",
        action="store_true",
        help=f"how good the last predictions were, a row for each program; its columns: {ERRORS.replace(',', ', ')}",
    )
    parser.add_argument(
        "--gpus",
        type=sizes,
        default=(0, 0),
        metavar="N|MIN-MAX",
        help="what if it had these sizes, also ones that it does not accept (default: those that it accepts)",
    )
    parser.add_argument(
        "--type", metavar="TYPE", help="on this kind of GPU, from earlier runs of its program (default: its own kind)"
    )
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print a row for each size. Another user's job, an unknown one, and one that was never measured end with exit
    status 1."""
    if args.errors == (args.job is not None):
        raise ConfigError("predict takes a job or --errors; accepted: selastic predict JOB, selastic predict --errors")
    chosen = options.check_format(args, FIELDS, ERRORS if args.errors else DEFAULT)
    if args.errors:
        errors = options.ask(PredictionErrors)
        options.print_answer(errors, chosen, errors.programs, args, below=[overall(errors)])
        return 0
    least, most = args.gpus
    found = options.ask(Prediction, args.job, PredictQuery(least, most, args.type))
    options.print_answer(found, chosen, found.sizes, args, spare=SPARE, below=summary(found))
    return 0


def overall(errors: PredictionErrors) -> str:
    """The sum of all programs, in a sentence."""
    if errors.error is None or errors.covered is None:
        return "no job was resized to a size never measured, and measured there"
    made = _count(errors.predictions, "prediction")
    return f"{made}: median error {errors.error:.0%}; intervals of 80% held {errors.covered:.0%}"


def summary(found: Prediction) -> list[str]:
    """What the table is made from, in sentences."""
    kind = f" on {found.gpu_type}" if found.gpu_type else ""
    now = f"trains on {found.gpus} GPUs{kind} at batch {found.batch}" if found.gpus else f"is {found.state}"
    made = f"{_count(found.reports, 'report')} at {_count(found.sizes_measured, 'size')}"
    lines = [
        f"job {shown_id(found)} {now}; predicted from {made}, the rest from {found.prior}",
        f"INTERVAL: samples/s in {found.covers:.0%} of cases; OFF: what the model says of OBSERVED, at AT_BATCH",
    ]
    if found.line_share is not None:
        lines.insert(1, f"model: {model_text(found.line_share)}")
    rows = [row for row in found.sizes if row.pause_s is not None and row.pause_from != "measured"]
    if rows:
        source = _FROM[any(row.pause_from == "others" for row in rows)]
        lines.append(f"PAUSE ~: not measured for this job yet; {source}")
    if found.free:
        ends = (f"{row.gpus} by {format_time(row.at, found.now)} (end of {_job(row)})" for row in found.free)
        lines.append(f"GPUs come free, unless waiting jobs take them: {', '.join(ends)}")
    return lines


def _job(row: ComesFree) -> str:
    return "another job" if row.job_id is None else f"job {row.job_id}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
