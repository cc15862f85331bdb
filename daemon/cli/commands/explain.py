"""`selastic explain JOB`: why a job has what it has. Outcome first, then cause with its evidence, gain, cost, what else
was considered, what is under way, and what the user can do.

Promise: every number printed is one that was recorded; what is not known is said to be so. Limit: the words are made
here, from the facts of daemon/reports/explain.py; nothing is decided.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap

from slurm_elastic.protocol import routes
from slurm_elastic.protocol.request import ACCEPTED_FORM

from ...reports import evidence as known
from ...text.tables import Field, Row, clean
from .. import options
from ..explanation import phrases as words
from ..explanation import sections as parts
from ..explanation.phrases import Facts

LABEL_WIDTH = 14
WIDTH, LEAST_WIDTH = 110, 50
"""Characters of a line: at most, and on the narrowest terminal."""
DEFAULT = "Label,Text"
FIELDS = (
    Field("Label", "LABEL", lambda row: str(row["label"]), "Outcome, Why, Gain, From, How, Cost, ...", left=True),
    Field("Text", "TEXT", lambda row: str(row["text"]), "what is said under that label, in words", left=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic explain`."""
    parser.add_argument("job", type=options.job_id, metavar="JOB", help="job id")
    options.add_output_options(parser, FIELDS, DEFAULT)


def run(args: argparse.Namespace) -> int:
    """Print the explanation: as text, or as rows where a form of rows is asked for. Another user's or an unknown job
    ends with exit status 1."""
    columns = options.check_format(args, FIELDS, DEFAULT)
    facts = options.ask(routes.EXPLAIN, args.job)
    if args.json:
        options.print_json(facts)
        return 0
    if args.parsable or args.parsable2 or args.format is not None:
        options.print_table(columns, rows(facts), args)
        return 0
    narrow = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    first, *rest = render(facts, max(LEAST_WIDTH, min(WIDTH, narrow)))
    print(options.bold(first))
    for line in rest:
        print(line)
    return 0


def render(facts: Facts, width: int = WIDTH) -> list[str]:
    """The printed lines of the facts, wrapped at this width."""
    lines = [clean(_outcome(facts))]
    for label, text in _sections(facts):
        wrapped = textwrap.wrap(clean(text), width - LABEL_WIDTH, break_long_words=False) or [""]
        lines.append(f"  {label:<{LABEL_WIDTH - 2}}{wrapped[0]}")
        lines += [" " * LABEL_WIDTH + line for line in wrapped[1:]]
    return lines


def rows(facts: Facts) -> list[Row]:
    """A row for each thing that is told, every one with its `label`; the outcome first."""
    told: list[Row] = [{"label": "Outcome", "text": _outcome(facts)}]
    for label, text in _sections(facts):
        told.append({"label": label or told[-1]["label"], "text": text})
    return told


def _outcome(facts: Facts) -> str:
    job = facts["job"]
    name = f"Job {job['job_id']}"
    if words.is_over(job):
        ended = f" since {words.clock(facts, job['end_time'])}" if job.get("end_time") else ""
        story = _sizes(facts) if job["managed"] else f"; it was not managed: {_unmanaged(facts)}"
        return f"{name} is over ({job['state']}){ended}{story}."
    if not job["managed"]:
        return f"{name} is not managed: {_unmanaged(facts)}."
    if job["state"] == "PENDING":
        wanted = known.whole((facts.get("decision") or {}).get("evidence") or {}, "for_gpus")
        start = f" for {words.gpus(wanted)}" if wanted else ""
        return f"{name} waits in Slurm's queue{start}; it accepts {job['min_gpus']}-{job['max_gpus']} GPUs."
    if facts.get("resize"):
        return _under_way(facts, name)
    if facts.get("last_resize"):
        last = facts["last_resize"]
        at = words.clock(facts, last["at"])
        return f"{name} {words.moved(last, 'shrank', 'grew', 'changed its batch')} at {at}{words.batch(last)}."
    return _never_resized(facts, name)


def _unmanaged(facts: Facts) -> str:
    return words.because(facts["job"]["record_reason"], facts)


def _never_resized(facts: Facts, name: str) -> str:
    job, decision = facts["job"], facts.get("decision")
    held = words.gpus(job["gpus"]) if job.get("gpus") else "what Slurm gave it"
    if decision and words.is_move(decision):
        move = decision | {"gpus_from": None} if decision["gpus_from"] != decision["gpus_to"] else decision
        would = "is to" if decision["mode"] == "act" else "would"
        verb = "grow" if decision["gpus_to"] > decision["gpus_from"] else "shrink"
        advised = "" if decision["mode"] == "act" else f" (mode {decision['mode']}: the daemon only says so)"
        plan = f"{would} {words.moved(move, verb, verb, 'change its batch')}{words.batch(decision)}{advised}"
        return f"{name} has {held}{words.at_batch(job)}, and {plan}."
    return f"{name} has kept {held} since it started{words.at_batch(job)}."


def _sizes(facts: Facts) -> str:
    sizes = [str(size) for index, size in enumerate(facts["sizes"]) if not index or size != facts["sizes"][index - 1]]
    never = "trained under selastic run" if facts["job"].get("start_time") else "started"
    return f"; it trained on {' -> '.join(sizes)} GPUs" if sizes else f"; it never {never}"


def _under_way(facts: Facts, name: str) -> str:
    order, job = facts["resize"], facts["job"]
    move = {
        "gpus_from": job["gpus"],
        "gpus_to": order["gpus"],
        "batch_from": job["batch"],
        "batch_to": order["batch"],
    }
    since = words.clock(facts, order["created"])
    return (
        f"{name} is {words.moved(move, 'shrinking', 'growing', 'changing its batch')} since {since}{words.batch(move)}."
    )


def _sections(facts: Facts) -> list[tuple[str, str]]:
    job = facts["job"]
    if not job["managed"]:
        return _not_managed(facts)
    if job["state"] == "PENDING":
        return _waiting(facts)
    sections: list[tuple[str, str]] = []
    cause = _cause(facts)
    if words.is_over(job):
        last = facts.get("last_resize")
        if not last:
            return [("Next", text) for text in parts.next_steps(facts)]
        moved = words.moved(last, "shrank", "grew", "changed its batch")
        sections.append(("Last", f"{moved} at {words.clock(facts, last['at'])}{words.batch(last)}"))
    sections += _decided(facts, cause) if cause else _undecided(facts)
    sections += [("How", text) for text in parts.how(cause)]
    sections += [("Cost", text) for text in parts.cost(facts, cause)]
    sections += [("Considered", text) for text in parts.considered(cause or facts.get("decision") or {})]
    sections += [("Now", text) for text in parts.now(facts, cause)]
    sections += [("Held back", text) for text in parts.held_back(facts)]
    sections += [("Next", text) for text in parts.next_steps(facts)]
    return _without_repeated_labels(sections)


def _without_repeated_labels(sections: list[tuple[str, str]]) -> list[tuple[str, str]]:
    labels = [""] + [label for label, _ in sections]
    return [("" if label == labels[index] else label, text) for index, (label, text) in enumerate(sections)]


def _cause(facts: Facts) -> Facts | None:
    """The decision that the outcome came from: of the resize under way, of the last one, else the last taken."""
    if facts.get("resize"):
        order = facts["resize"]
        return order.get("cause") or {"reason": order["reason"], "reason_text": order["reason_text"]}
    last = facts.get("last_resize")
    if last:
        return last.get("cause") or {"reason": last["reason"], "reason_text": last["reason_text"]}
    return facts.get("decision")


def _undecided(facts: Facts) -> list[tuple[str, str]]:
    job = facts["job"]
    text = words.because(job["reason"], facts) if job.get("reason") else "no round has decided about it yet"
    return [("Why", words.sentence(text)), *([("", words.sentence(job["detail"]))] if job.get("detail") else [])]


def _decided(facts: Facts, cause: Facts) -> list[tuple[str, str]]:
    evidence = cause.get("evidence") or {}
    sections = [("Why", parts.why(facts, cause, evidence))]
    gain = parts.gain(facts, cause, evidence)
    sections += [("Gain", gain)] if gain else []
    sections.append(("From", parts.source(facts, cause, evidence)))
    believed = parts.prior(evidence)
    sections += [("Prior", believed)] if believed else []
    return sections


def _waiting(facts: Facts) -> list[tuple[str, str]]:
    decision, job = facts.get("decision") or {}, facts["job"]
    evidence = decision.get("evidence") or {}
    slurm, coming = known.text(evidence, "slurm_reason"), known.text(evidence, "next")
    sections = [("Why", f"Slurm says: {slurm}")] if slurm and slurm != "None" else []
    sections += [("Now", coming)] if coming else []
    to_do = _TO_START.get(slurm, "when Slurm expects to start it: squeue --start -j {}").format(job["job_id"])
    return [*sections, ("Next", f"it is managed once it runs; {to_do}")]


_TO_START = {
    "JobHeldUser": "it is held; to let it go: scontrol release {}",
    "JobHeldAdmin": "it is held by an admin, who can release it",
    "Dependency": "what it depends on: squeue -h -o %E -j {}",
    "DependencyNeverSatisfied": "what it depends on will never be; to take it back: scancel {}",
}
"""What helps a waiting job, by Slurm's reason."""


def _not_managed(facts: Facts) -> list[tuple[str, str]]:
    job, code = facts["job"], facts["job"]["record_reason"]
    waits = "waits in Slurm's queue" if job.get("state") == "PENDING" else "runs on"
    ordinary = f"it {'ran' if words.is_over(job) else waits} as an ordinary job"
    remedies = {
        "malformed": f"{ordinary}; correct the request at the next submission"
        " (selastic sbatch --elastic=... checks it before Slurm sees it)",
        "not_elastic": f"to make the next one elastic: sbatch --comment={ACCEPTED_FORM}",
        "impossible": f"{ordinary}; ask for sizes that the partition can hold",
        "not_allowed": f"{ordinary}; ask the admin which partitions and accounts are open",
    }
    why = job.get("detail") or _unmanaged(facts)
    request = [("Request", job["request"])] if job.get("request") else []
    return [("Why", words.sentence(why)), *request, ("Next", remedies.get(code, ordinary))]
