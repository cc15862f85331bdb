"""`selastic advise JOB`: what to submit the program of a job with the next time: partition, kind of GPU, number of GPUs
and batch, the cheapest before a deadline, the fastest within a budget, or the best value, as lines for its script.

Promise: nothing is submitted. Limit: one kind of GPU an answer; a kind that the program never ran on is not advised.
"""

import argparse
import re
import subprocess
from dataclasses import replace

from slurm_elastic.protocol.answers.predict import Advice, Choice
from slurm_elastic.protocol.answers.record import columns
from slurm_elastic.protocol.api.routes import AdviseQuery
from slurm_elastic.protocol.errors import ConfigError, NotFound
from slurm_elastic.protocol.text.times import parse_time

from .. import options

DEFAULT = "Partition,Type,GPUs,Nodes,Batch,Wait,Run,Low,High,End,Cost,P,From"
FIELDS = columns(Choice, capitals=True)
ASKED = 3  # times, for the waits of what came first by those known before


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic advise`."""
    parser.add_argument("job", type=options.job_id, metavar="JOB", help="a job that ran the program")
    parser.add_argument("--deadline", metavar="TIME", help="when it has to be done, such as 20:00 or now+8hours")
    parser.add_argument("--budget", type=float, metavar="COST", help="what it may cost at most")
    kept = "the probability that it is done and paid so (default: 95)"
    parser.add_argument("--confidence", type=float, default=95.0, metavar="PERCENT", help=kept)
    parser.add_argument(
        "--samples", type=int, default=0, metavar="N", help="length of the training (default: the job's)"
    )
    parser.add_argument("--qos", metavar="NAME", help="submit with this QOS, whose UsageFactor counts")
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print the choices, the best first, and lines for the script of the first."""
    chosen, now = options.check_format(args, FIELDS, DEFAULT), options.clock()
    deadline = parse_time(args.deadline, now) if args.deadline else None
    if deadline is not None and deadline <= now:
        raise ConfigError(f"--deadline {args.deadline} has passed; accepted: a later time, such as now+8hours")
    factor = _usage_factor(args.qos) if args.qos else 1.0
    query = AdviseQuery(deadline, args.budget, args.confidence, args.samples, args.qos, factor)
    found, waits = options.ask(Advice, args.job, query), dict[str, float | str]()
    source = "by selasticd's forecast" if found.foretold else "not counted: Slurm cannot be asked here"
    for _ in range(0 if found.foretold else ASKED):
        asked = {f"{one.partition}/{one.gpu_type}/{one.gpus}": one for one in found.choices}
        new = {name: _wait(one, found.now) for name, one in asked.items() if name not in waits}
        if not new or None in new.values():
            break
        waits |= {name: wait for name, wait in new.items() if wait is not None}
        refused = [f"Slurm refuses {name}: {wait}" for name, wait in waits.items() if isinstance(wait, str)]
        told = ",".join(f"{name}/{'' if isinstance(wait, str) else round(wait)}" for name, wait in waits.items())
        try:
            found = options.ask(Advice, args.job, replace(query, waits=told))
        except NotFound as error:
            raise NotFound(refused[0] if refused else str(error)) from None
        source = "; ".join(["by Slurm's own (sbatch --test-only)", *refused])
    first = found.choices[0]
    said = f"# {first.gpus} GPUs, batch {first.batch}: cost {first.cost:.3g}, P {first.probability:.0%}, {first.basis}"
    below = [*found.notes, f"WAIT: {source}", "", said, *first.script]
    options.print_answer(found, chosen, found.choices, args, spare=("Low", "High", "Nodes", "From"), below=below)
    return 0


def _wait(choice: Choice, now: float) -> float | str | None:
    """Seconds until Slurm would start it, or why it refuses to; None: it cannot be asked."""
    words = " ".join(choice.script).replace("#SBATCH ", "").split()
    asked = ["sbatch", "--test-only", *words, "--wrap=true"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    start = re.search(r"to start at (\S+)", said)
    if start is not None:
        return max(0.0, parse_time(start[1], now) - now)
    return None if "ontact slurm" in said else " ".join(said.split())


def _usage_factor(qos: str) -> float:
    words = ["sacctmgr", "-n", "-P", "show", "qos", qos, "format=UsageFactor"]
    try:
        return float(subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        raise ConfigError(f"--qos {qos} is not known to sacctmgr; accepted: a QOS of this cluster") from None
