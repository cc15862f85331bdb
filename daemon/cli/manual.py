"""What selastic(1) says besides its options: the elastic request, fields, reasons, examples. Made from the same tables.

Limit: for building packages only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module

from slurm_elastic.protocol import request
from slurm_elastic.protocol.answers.status import SHORT_STATES
from slurm_elastic.protocol.text.reasons import Reason

from ..selasticd.reference import escaped, wrapped

VALUES = {"STATE,...": sorted(SHORT_STATES)}
"""What an option takes, by its metavar, where that never changes."""
REQUEST = {
    "gpus": "N or MIN-MAX: GPUs of the whole job, companions included; the size at submission must be one of them",
    "batch": "N or MIN-MAX: global batch in samples, those of one optimizer step",
    "step": "distance between two accepted sizes, counted from the smallest (default: that of group)",
    "group": "GPUs of one model-parallel replica; only multiples are accepted (default: 1)",
    "slice": "samples that every rank's part of a step, and each micro batch, is a multiple of (default: 1)",
    "lr": f"how the learning rate follows the batch: {', '.join(request.LR_RULES)} (default: auto)",
    "weight": "how much this job's progress counts, within the site's limit (default: 1)",
    "via": f"how it may be resized: {', '.join(request.MECHANISMS)}, joined by + "
    f"(default: {'+'.join(request.DEFAULT_VIA)})",
    "until": f"what ends the training: {' or '.join(request.ENDS)} (default: epochs)",
    "guard": "per cent of its value that a sample must keep at a larger batch, 1 to 100 (default: none)",
}
TABLES = {
    "status": "top and status",
    "acct": "acct",
    "events": "events",
    "plan": "plan",
    "predict": "predict",
    "hosts": "hosts",
}
"""Modules with FIELDS, and the commands that print them."""
EXAMPLES = (
    ("selastic sbatch --elastic=gpus=2-16,batch=256-4096 train.sh", "submit an elastic job"),
    ("selastic status -u ada", "what the jobs of one user have now"),
    ("selastic explain 1207", "why job 1207 has what it has, and what can be done"),
    ("selastic predict 1207 --gpus 1:64", "how fast job 1207 would be on 1 to 64 GPUs, and what it costs to get there"),
    ("selastic status -o JobID,GPUs,Target,Batch,HeldBack", "choose the columns; --helpformat lists them"),
    ("selastic acct -j 1207 -P", "each size that a job has had, for a program to read"),
    ("selastic pin 1207 8", "hold a job at 8 GPUs; selastic unpin 1207 lets it go"),
    ("selastic hosts --clear n7,n9", "put jobs on both of these hosts again, whose network is mended"),
    ("selastic report -S now-7days --html week.html", "a page of how the jobs of a week have gone"),
)


def sections() -> Iterator[str]:
    """The lines of these sections in roff."""
    yield from (".SH ELASTIC REQUEST", f".B {escaped(request.ACCEPTED_FORM)}[,KEY=VALUE...]", ".PP")
    yield from wrapped(escaped("It stands in the job's comment. Keys come in any order, each once; no blanks."), 100)
    yield from _listed(REQUEST.items())
    yield ".SH FIELDS"
    yield from wrapped(escaped("Of --format, by command; --helpformat prints them too."), 100)
    for module, commands in TABLES.items():
        yield f".SS {commands}"
        fields = import_module(f"slurm_elastic.client.commands.{module}").FIELDS
        yield from _listed((field.name, field.help) for field in fields)
    yield ".SH REASONS"
    yield from wrapped(escaped("Why a job has what it has: the code under REASON, and what it means."), 100)
    yield from _listed((reason.value, reason.text) for reason in Reason)
    yield ".SH EXAMPLES"
    yield from _listed(EXAMPLES)


def _listed(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, words in entries:
        yield from (".TP", f".B {escaped(name)}", *wrapped(escaped(words), 100))
