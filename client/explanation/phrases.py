"""The phrases that `selastic explain` is made of: moves, times, counts, reasons. Pure.

Promise: 1 GPU and 2 GPUs, a reason in the words of the one enumeration. Limit: English.
"""

from slurm_elastic.protocol.answers.explain import Explain
from slurm_elastic.protocol.answers.record import reason_text
from slurm_elastic.protocol.answers.status import JobStatus
from slurm_elastic.protocol.text.times import format_time


def is_over(job: JobStatus) -> bool:
    return job.end_time is not None


_ENDS = {
    "COMPLETED": "completed",
    "FAILED": "failed (its exit status was not 0)",
    "TIMEOUT": "reached its time limit",
    "OUT_OF_MEMORY": "ran out of memory",
    "NODE_FAIL": "lost a node",
    "PREEMPTED": "was preempted",
    "CANCELLED": "was cancelled",
    "DEADLINE": "reached its deadline",
    "BOOT_FAIL": "failed (a node did not boot)",
    "ENDED": "ended (Slurm does not say how)",
}


def how_it_ended(state: str) -> str:
    """A predicate, by Slurm's last state of the job."""
    word, _, rest = state.partition(" ")
    said = _ENDS.get(word, f"ended ({word})")
    return f"{said} {rest}" if rest else said


def gpus(count: object) -> str:
    """1 GPU, 2 GPUs."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def reports(count: int | None, size: object) -> str:
    """9 reports at 4 GPUs."""
    return f"{count or 'no'} report{'' if count == 1 else 's'} at {gpus(size)}"


def moved(before: int | None, after: int | None, shrank: str, grew: str, changed: str) -> str:
    """The verb that fits, with both numbers of GPUs: shrank from 4 to 2 GPUs."""
    after = after or 0
    if before == after:
        return f"{changed} at {gpus(after)}"
    if not before:
        return f"{grew} to {gpus(after)}"
    return f"{grew if after > before else shrank} from {before} to {gpus(after)}"


def batch(job: JobStatus, before: int | None, after: int | None) -> str:
    """What became of the batch, as the end of a sentence; empty when it is not known, or no samples are counted."""
    if job.unit:
        return ""
    if not after or before == after:
        return f", batch {after} as before" if after else ""
    return f", batch {before} -> {after}" if before else f", batch {after}"


def at_batch(job: JobStatus) -> str:
    """The batch it trains with, as the end of a sentence."""
    return f", batch {job.batch}" if job.batch and not job.unit else ""


def per_second(job: JobStatus) -> str:
    """The unit of its throughput."""
    return f"{job.unit or 'samples'}/s"


def clock(facts: Explain, at: float) -> str:
    """A time as seen from when the facts were gathered: 13:20:41 today, the day with it otherwise."""
    return format_time(at, facts.now, default="relative")


def because(code: str, facts: Explain) -> str:
    """The words of a reason's code: the daemon's own, which may be newer than this command, else ours."""
    texts = {facts.job.reason: facts.job.reason_text}
    if facts.decision is not None:
        texts[facts.decision.reason] = facts.decision.reason_text
    return texts.get(code) or reason_text(code) or f"reason '{code}', which this version does not know"


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    text = text.strip()
    # A key such as gpus=8-2 stays as the user wrote it.
    if text.split(" ")[0].isalpha():
        text = text[:1].upper() + text[1:]
    return text + ("" if text.endswith((".", "!", "?")) else ".")
