"""`selastic explain JOB`: why a job has what it has. Outcome first, then cause with its evidence, gain, cost, what else
was considered, what is under way, and what the user can do.

Promise: every number printed is one that was recorded; what is not known is said to be so. Limit: the words are made
here, from the facts of daemon/reports/explain.py; nothing is decided.
"""

import argparse
import shutil
import sys
import textwrap
from dataclasses import dataclass

from slurm_elastic.protocol.answers.explain import Decision, Evidence, Explain, PastResize, ResizeProgress
from slurm_elastic.protocol.answers.record import Column, about, columns, shown_id
from slurm_elastic.protocol.codes import model_text
from slurm_elastic.protocol.request import ACCEPTED_FORM
from slurm_elastic.protocol.text.tables import clean

from .. import options
from . import phrases as words
from . import sections as parts

LABEL_WIDTH = 14
WIDTH, LEAST_WIDTH = 110, 50
"""Characters of a line: at most, and on the narrowest terminal."""
DEFAULT = "Label,Text"


@dataclass(frozen=True)
class Line:
    label: str = about("Outcome, Why, Gain, From, How, Cost, ...", Column("Label"))
    text: str = about("what is said under that label, in words", Column("Text"))


FIELDS = columns(Line, capitals=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", type=options.job_id, metavar="JOB", help="job id")
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print the explanation: as text, or as rows where a form of rows is asked for. Another user's or an unknown job
    ends with exit status 1."""
    chosen = options.check_format(args, FIELDS, DEFAULT)
    facts = options.ask(Explain, args.job)
    if args.json or args.parsable or args.parsable2 or args.format is not None:
        options.print_answer(facts, chosen, rows(facts), args)
        return 0
    narrow = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    first, *rest = render(facts, max(LEAST_WIDTH, min(WIDTH, narrow)))
    print(options.bold(first))
    for line in rest:
        print(line)
    return 0


def render(facts: Explain, width: int = WIDTH) -> list[str]:
    """The printed lines of the facts, wrapped at this width; a label is printed once."""
    first, *others = rows(facts)
    lines, last = [clean(first.text)], ""
    for line in others:
        label, last = "" if line.label == last else line.label, line.label
        wrapped = textwrap.wrap(clean(line.text), width - LABEL_WIDTH, break_long_words=False) or [""]
        lines.append(f"  {label:<{LABEL_WIDTH - 2}}{wrapped[0]}")
        lines += [" " * LABEL_WIDTH + more for more in wrapped[1:]]
    return lines


def rows(facts: Explain) -> list[Line]:
    """What is to be said, the outcome first."""
    return [Line(label, text) for label, text in [("Outcome", _outcome(facts)), *_sections(facts)] if text]


def _outcome(facts: Explain) -> str:
    job = facts.job
    name = f"Job {shown_id(job)}"
    if words.is_over(job):
        ended = f" at {words.clock(facts, job.end_time)}" if job.end_time else ""
        story = (
            _sizes(facts) if job.managed else f"; it was not managed: {words.because(facts.job.record_reason, facts)}"
        )
        return f"{name} {words.how_it_ended(job.state)}{ended}{story}."
    if not job.managed:
        return f"{name} is not managed: {words.because(facts.job.record_reason, facts)}."
    if job.state == "PENDING":
        wanted = facts.decision.evidence.for_gpus if facts.decision is not None else None
        start = f" for {words.gpus(wanted)}" if wanted else ""
        return f"{name} waits in Slurm's queue{start}; it accepts {job.min_gpus}-{job.max_gpus} GPUs."
    if facts.resize:
        return _under_way(facts, facts.resize, name)
    if facts.last_resize:
        return f"{name} {_happened(facts, facts.last_resize)}."
    return _never_resized(facts, name)


def _happened(facts: Explain, last: PastResize) -> str:
    moved = words.moved(last.gpus_from, last.gpus_to, "shrank", "grew", "changed its batch")
    return f"{moved} at {words.clock(facts, last.at)}{words.batch(facts.job, last.batch_from, last.batch_to)}"


def _never_resized(facts: Explain, name: str) -> str:
    job, decision = facts.job, facts.decision
    held = words.gpus(job.gpus) if job.gpus else "what Slurm gave it"
    if decision is not None and decision.moves:
        before = decision.gpus_from if decision.gpus_from == decision.gpus_to else None
        would = "is to" if decision.mode == "act" else "would"
        verb = "grow" if (decision.gpus_to or 0) > (decision.gpus_from or 0) else "shrink"
        advised = "" if decision.mode == "act" else f" (mode {decision.mode}: the daemon only says so)"
        move = words.moved(before, decision.gpus_to, verb, verb, "change its batch")
        to_batch = words.batch(job, decision.batch_from, decision.batch_to)
        return f"{name} has {held}{words.at_batch(job)}, and {would} {move}{to_batch}{advised}."
    return f"{name} has kept {held} since it started{words.at_batch(job)}."


def _sizes(facts: Explain) -> str:
    sizes = [str(size) for index, size in enumerate(facts.sizes) if not index or size != facts.sizes[index - 1]]
    never = "trained under selastic run" if facts.job.start_time else "started"
    return f"; it trained on {' -> '.join(sizes)} GPUs" if sizes else f"; it never {never}"


def _under_way(facts: Explain, resize: ResizeProgress, name: str) -> str:
    job = facts.job
    since = words.clock(facts, resize.created)
    verb = words.moved(job.gpus, resize.gpus, "shrinking", "growing", "changing its batch")
    return f"{name} is {verb} since {since}{words.batch(job, job.batch, resize.batch)}."


def _sections(facts: Explain) -> list[tuple[str, str]]:
    """Labels and texts; an empty text is left out."""
    job, last, cause = facts.job, facts.last_resize, _cause(facts)
    if not job.managed:
        return _not_managed(facts)
    if job.state == "PENDING":
        return _waiting(facts)
    following = [("Next", text) for text in parts.next_steps(facts)]
    over = words.is_over(job)
    if over and not last:
        return following
    return [
        ("Last", _happened(facts, last) if over and last else ""),
        *(_decided(facts, cause) if cause else _undecided(facts)),
        ("How", parts.how(cause)),
        ("Cost", parts.cost(facts, cause)),
        *(("Considered", text) for text in parts.considered(facts, cause or facts.decision)),
        *(("Now", text) for text in parts.now(facts, cause)),
        *(("Deadline", text) for text in facts.aims),
        *(("Held back", text) for text in parts.held_back(facts)),
        ("Checkpoint", parts.checkpoints(facts)),
        *following,
    ]


def _cause(facts: Explain) -> Decision | None:
    """The decision that the outcome came from: of the resize under way, of the last one, else the last taken."""
    resize = facts.resize or facts.last_resize
    if resize is None:
        return facts.decision
    return resize.cause or Decision(reason=resize.reason, reason_text=resize.reason_text)


def _undecided(facts: Explain) -> list[tuple[str, str]]:
    job = facts.job
    text = words.because(job.reason, facts) if job.reason else "no round has decided about it yet"
    return [("Why", words.sentence(text)), ("Why", words.sentence(job.detail) if job.detail else "")]


def _decided(facts: Explain, cause: Decision) -> list[tuple[str, str]]:
    prior = cause.evidence.prior
    return [
        ("Why", parts.why(facts, cause)),
        ("Gain", parts.gain(facts, cause)),
        ("Share", parts.share(cause)),
        ("From", parts.source(facts, cause)),
        ("Prior", f"what was not measured is taken from {prior}" if prior else ""),
        ("Model", model_text(cause.evidence.line_share) if cause.evidence.line_share else ""),
    ]


def _waiting(facts: Explain) -> list[tuple[str, str]]:
    evidence = facts.decision.evidence if facts.decision is not None else Evidence()
    slurm = evidence.slurm_reason or ""
    to_do = _TO_START.get(slurm, "when Slurm expects to start it: squeue --start -j {}").format(shown_id(facts.job))
    return [
        ("Why", f"Slurm says: {slurm}" if slurm and slurm != "None" else ""),
        ("Now", evidence.next or ""),
        *(("Deadline", text) for text in facts.aims),
        ("Next", f"it is managed once it runs; {to_do}"),
    ]


_TO_START = {
    "JobHeldUser": "it is held; to let it go: scontrol release {}",
    "JobHeldAdmin": "it is held by an admin, who can release it",
    "Dependency": "what it depends on: squeue -h -o %E -j {}",
    "DependencyNeverSatisfied": "what it depends on will never be; to take it back: scancel {}",
}
"""What helps a waiting job, by Slurm's reason."""


def _not_managed(facts: Explain) -> list[tuple[str, str]]:
    job, code = facts.job, facts.job.record_reason
    waits = "waits in Slurm's queue" if job.state == "PENDING" else "runs on"
    ordinary = f"it {'ran' if words.is_over(job) else waits} as an ordinary job"
    remedies = {
        "malformed": f"{ordinary}; correct the request at the next submission"
        " (selastic sbatch --elastic=... checks it before Slurm sees it)",
        "not_elastic": f"to make the next one elastic: sbatch --comment={ACCEPTED_FORM}",
        "impossible": f"{ordinary}; ask for sizes that the partition can hold",
        "not_allowed": f"{ordinary}; ask the admin which partitions and accounts are open",
    }
    why = job.detail or words.because(facts.job.record_reason, facts)
    return [("Why", words.sentence(why)), ("Request", job.request or ""), ("Next", remedies.get(code, ordinary))]
