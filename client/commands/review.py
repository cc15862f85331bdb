"""`selastic review`: what selasticd would have done while it did not act, and what that would have brought: a row
for each job, with --moves for each move, and the cluster's sums. What an admin reads before setting mode = "act".

Promise: it compares what was advised with what the job had, from stored decisions, pauses charged. Limit: it is no
simulation; a cluster that had followed the first advice would have been given other advice after it.
"""

import argparse
from dataclasses import replace

from slurm_elastic.protocol.answers.record import columns
from slurm_elastic.protocol.answers.review import ClusterReview, JobReview, MoveReview, Review
from slurm_elastic.protocol.api.routes import WindowQuery
from slurm_elastic.protocol.text.times import format_time, span

from .. import options

DEFAULT = "JobID,Name,User,Time,Moves,GPUs,WouldGPUs,GPUHours,WouldGPUHours,Change"
DAY_AGO = "now-1day"
MOVES = "JobID,Name,User,At,Time,GPUs,WouldGPUs,Batch,WouldBatch,Change,Reason"
_JOBS, _MOVES = columns(JobReview, capitals=True), columns(MoveReview, capitals=True)
FIELDS = (*_JOBS, *(column for column in _MOVES if column.name not in {known.name for known in _JOBS}))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "selastic report: what resizes that were carried out have brought."
    options.add_job_filters(parser)
    options.add_window_options(parser, "from when (default: a day ago; advice is kept for 30 days)")
    parser.set_defaults(starttime=DAY_AGO)
    parser.add_argument(
        "--moves", action="store_true", help=f"a row for each move; its columns: {MOVES.replace(',', ', ')}"
    )
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print the rows, then what waiting jobs would have got and the sums over the cluster. A job named with -j that is
    not known ends, after the rows of the others, with exit status 1."""
    chosen = options.check_format(args, FIELDS, MOVES if args.moves else DEFAULT)
    now = options.clock()
    start, end = options.window(args, now, DAY_AGO)
    query = WindowQuery(start, end, tuple(args.jobs or ()))
    advice = options.ask(Review, query=query, timeout=options.LONG_S)
    _, unknown = options.named(args, advice.jobs)
    rows, moves = options.matching(advice.jobs, args), options.matching(advice.moves, args)
    kept = replace(advice, moves=tuple(moves)) if args.moves else replace(advice, jobs=tuple(rows))
    options.print_answer(kept, chosen, moves if args.moves else rows, args, below=summary(advice, now))
    options.refuse(unknown)
    return 0


def summary(advice: Review, now: float) -> list[str]:
    total = advice.cluster
    since = f"from {format_time(advice.start, now)} to {format_time(advice.end, now)}"
    if not total.jobs:
        return [f"no elastic job ran {since}"]
    if not total.moves:
        said = f"{_count(total.jobs, 'job')} {since}: nothing would have been resized"
        return [said + (f"; {_acted(advice)}" if advice.acted else "")]
    more = total.advised_gpu_hours - total.gpu_hours
    lines = [
        f"{_count(total.jobs, 'job')} {since}: {_count(total.moves, 'resize')} advised, "
        f"{abs(more):.2f} GPU-hours {'more' if more >= 0 else 'fewer'} than the {total.gpu_hours:.2f} they had, "
        f"{total.pause_s:.1f} s of pauses",
        _progress(total),
    ]
    for entry in advice.waited:
        room = f" its {entry.gpus} GPUs" if entry.gpus else " room"
        lines.append(
            f"job {entry.job_id} would have had{room} at {format_time(entry.at, now)}; "
            f"it waited {span(entry.waited_s)} longer"
        )
    return lines + ([_acted(advice)] if advice.acted else [])


def _progress(total: ClusterReview) -> str:
    rest = (
        f" ({span(total.unknown_s)} of advice in which a job's speed was not known left out)" if total.unknown_s else ""
    )
    if total.change is None:
        return f"what that would have brought is not known: no job had been measured{rest}"
    said = f"progress of all jobs together: {100 * total.change:+.0f}% of what they made{rest}"
    if total.modelled_s:
        said += f"; {span(total.modelled_s)} of it at sizes never measured, as the model predicts them"
        said += f", give or take {100 * total.doubt:.0f}%" if total.doubt else ""
    return said


def _acted(advice: Review) -> str:
    return f"{_count(advice.acted, 'decision')} of this time were acted on: selastic report says what that brought"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
