"""`selastic explain JOB`: why a job has what it has. Outcome first, then cause with its evidence, gain, cost, what else
was considered, what is under way, and what the user can do.

Promise: every number printed is one that was recorded; what is not known is said to be so. Limit: the words are made
here, from the facts of daemon/reports/explain.py; nothing is decided.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from typing import Any

from . import cli_common
from .cli_times import format_time, span
from .reports import evidence as known
from .tables import clean, number

Facts = Mapping[str, Any]
OVER = (
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "DEADLINE",
    "BOOT_FAIL",
)
REFUSED = ("not_elastic", "malformed", "impossible", "not_allowed")
LABEL_WIDTH = 14
WIDTH = 110
SHOWN_ALTERNATIVES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `selastic explain`."""
    parser.add_argument("job", type=cli_common.job_id, metavar="JOB", help="job id")
    cli_common.add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the explanation. Another user's or an unknown job ends with exit status 1."""
    facts = cli_common.get(f"/v1/jobs/{args.job}/explain")
    if args.json:
        cli_common.print_json(facts)
        return 0
    first, *rest = render(facts)
    print(cli_common.bold(first))
    for line in rest:
        print(line)
    return 0


def render(facts: Facts) -> list[str]:
    """The printed lines of the facts."""
    lines = [clean(_outcome(facts))]
    for label, text in _sections(facts):
        wrapped = textwrap.wrap(clean(text), WIDTH - LABEL_WIDTH, break_long_words=False) or [""]
        lines.append(f"  {label:<{LABEL_WIDTH - 2}}{wrapped[0]}")
        lines += [" " * LABEL_WIDTH + line for line in wrapped[1:]]
    return lines


def _outcome(facts: Facts) -> str:
    job = facts["job"]
    name = f"Job {job['job_id']}"
    if is_over(job):
        ended = f" since {_time(facts, job['end_time'])}" if job.get("end_time") else ""
        return f"{name} is over ({job['state']}){ended}{_sizes(facts)}."
    if not job["managed"]:
        return f"{name} is not managed: {_because(job['record_reason'], facts)}."
    if job["state"] == "PENDING":
        wanted = known.whole((facts.get("decision") or {}).get("evidence") or {}, "for_gpus")
        start = f" for {gpus(wanted)}" if wanted else ""
        return f"{name} waits in Slurm's queue{start}; it accepts {job['min_gpus']}-{job['max_gpus']} GPUs."
    if facts.get("resize"):
        return _under_way(facts, name)
    if facts.get("last_resize"):
        last = facts["last_resize"]
        at = _time(facts, last["at"])
        return f"{name} {_moved(last, 'shrank', 'grew', 'changed its batch')} at {at}{_batch(last)}."
    held = gpus(job["gpus"]) if job.get("gpus") else "what Slurm gave it"
    return f"{name} has kept {held} since it started{_at_batch(job)}."


def is_over(job: Facts) -> bool:
    """Whether the job has ended."""
    return bool(job.get("end_time")) or job["state"] in OVER


def _sizes(facts: Facts) -> str:
    sizes = [str(size) for index, size in enumerate(facts["sizes"]) if not index or size != facts["sizes"][index - 1]]
    return f"; it trained on {' -> '.join(sizes)} GPUs" if sizes else "; it never trained under selastic run"


def _under_way(facts: Facts, name: str) -> str:
    order, job = facts["resize"], facts["job"]
    move = {
        "gpus_from": job["gpus"],
        "gpus_to": order["gpus"],
        "batch_from": job["batch"],
        "batch_to": order["batch"],
    }
    since = _time(facts, order["created"])
    return f"{name} is {_moved(move, 'shrinking', 'growing', 'changing its batch')} since {since}{_batch(move)}."


def _moved(move: Facts, shrank: str, grew: str, changed: str) -> str:
    before, after = move["gpus_from"], move["gpus_to"]
    if before == after:
        return f"{changed} at {gpus(after)}"
    if not before:
        return f"{grew} to {gpus(after)}"
    return f"{grew if after > before else shrank} from {before} to {gpus(after)}"


def _batch(move: Facts) -> str:
    before, after = move.get("batch_from"), move.get("batch_to")
    if not after or before == after:
        return f", batch {after} as before" if after else ""
    return f", batch {before} -> {after}" if before else f", batch {after}"


def _at_batch(job: Facts) -> str:
    return f", batch {job['batch']}" if job.get("batch") else ""


def _time(facts: Facts, at: float) -> str:
    return format_time(at, facts["now"], default="relative")


def _because(code: str, facts: Facts) -> str:
    job, decision = facts["job"], facts.get("decision") or {}
    texts = {job.get("reason"): job.get("reason_text"), decision.get("reason"): decision.get("reason_text")}
    return texts.get(code) or _local_text(code) or f"reason '{code}', which this version does not know"


def _local_text(code: str) -> str:
    from .reasons import Reason

    return next((reason.text for reason in Reason if reason.value == code), "")


def _sections(facts: Facts) -> list[tuple[str, str]]:
    job = facts["job"]
    if not job["managed"] and not is_over(job):
        return _not_managed(facts)
    if job["state"] == "PENDING":
        return _waiting(facts)
    sections: list[tuple[str, str]] = []
    cause = _cause(facts)
    if is_over(job):
        last = facts.get("last_resize")
        if last:
            moved = _moved(last, "shrank", "grew", "changed its batch")
            sections.append(("Last", f"{moved} at {_time(facts, last['at'])}{_batch(last)}"))
    sections += _decided(facts, cause) if cause else _undecided(facts)
    sections += [("Cost", text) for text in _cost(facts, cause)]
    sections += [("Considered", text) for text in _considered(cause or facts.get("decision") or {})]
    sections += [("Now", text) for text in _now(facts, cause)]
    sections += [("Next", text) for text in _next(facts)]
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
    if is_over(job):
        return [("Why", "no decision about it was recorded")]
    text = _because(job["reason"], facts) if job.get("reason") else "no round has decided about it yet"
    return [("Why", _sentence(text)), *([("", _sentence(job["detail"]))] if job.get("detail") else [])]


def _decided(facts: Facts, cause: Facts) -> list[tuple[str, str]]:
    evidence = cause.get("evidence") or {}
    sections = [("Why", _why(facts, cause, evidence))]
    gain = _gain(facts, cause, evidence)
    sections += [("Gain", gain)] if gain else []
    sections.append(("From", _from(facts, cause, evidence)))
    return sections


def _why(facts: Facts, cause: Facts, evidence: Facts) -> str:
    text = cause.get("reason_text") or _because(cause.get("reason") or "", facts)
    waiting, wanted = known.whole(evidence, "for_job"), known.whole(evidence, "for_gpus")
    idle = known.whole(evidence, "idle_gpus")
    if waiting:
        text = f"{waiting} waited for {gpus(wanted)}" if wanted else f"{text}: job {waiting}"
    if idle is not None and (waiting or "idle" in (cause.get("reason") or "")):
        text += "; nothing was idle" if idle == 0 else f" ({idle} idle)"
    return _sentence(text)


def _gain(facts: Facts, cause: Facts, evidence: Facts) -> str:
    moves = cause.get("gpus_from") != cause.get("gpus_to") or cause.get("batch_from") != cause.get("batch_to")
    if not moves or cause.get("gpus_from") is None:
        return ""
    if cause.get("gain") is None:
        return f"n/a ({_measured_sizes(facts)})"
    own = _change(known.number(evidence, "speedup_from"), known.number(evidence, "speedup_to"))
    parts = [f"{facts['job']['job_id']}: {own}"] if own else []
    for other in known.objects(evidence, "others"):
        name, change = known.whole(other, "job_id"), known.number(other, "change")
        before, after = known.whole(other, "gpus_from"), known.whole(other, "gpus_to")
        if name is not None and change is not None:
            parts.append(f"{name}: {change:+.0%}")
        elif name is not None and before is not None and after is not None:
            parts.append(f"{name}: {before} -> {gpus(after)}")
    return f"cluster {cause['gain']:+.2f} jobs' worth of progress" + (f"   ({', '.join(parts)})" if parts else "")


def _change(before: float | None, after: float | None) -> str:
    if before is None or after is None or before <= 0:
        return ""
    return f"progress x{number(before)} -> x{number(after)}, {after / before - 1:+.0%}"


def _measured_sizes(facts: Facts) -> str:
    sizes = sorted({seen["gpus"] for seen in facts["observations"]})
    if not sizes:
        return "no size measured yet"
    return f"measured so far: {', '.join(map(str, sizes))} GPUs"


def _from(facts: Facts, cause: Facts, evidence: Facts) -> str:
    """The reports behind it: those the planner counted, or else all there are, said to be so."""
    counts = {
        cause.get("gpus_from"): known.whole(evidence, "reports_from"),
        cause.get("gpus_to"): known.whole(evidence, "reports_to"),
    }
    age = known.number(evidence, "last_report_age_s")
    late = f", the last {span(age)} before the decision" if age is not None else ""
    if any(count is not None for count in counts.values()):
        parts = [_reports(count, size) for size, count in counts.items()]
        modelled = "; the target's throughput is the model's, not measured" if known.flag(evidence, "modelled") else ""
        return ", ".join(parts) + late + modelled
    totals: dict[int, int] = {}
    for seen in facts["observations"]:
        totals[seen["gpus"]] = totals.get(seen["gpus"], 0) + seen["count"]
    if not totals:
        return "no reports: nothing has been measured"
    return ", ".join(_reports(count, size) for size, count in sorted(totals.items())) + " up to now"


def _cost(facts: Facts, cause: Facts | None) -> list[str]:
    last = facts.get("last_resize")
    if last and not facts.get("resize"):
        return [f"{last['pause_s']:.2g} s pause (measured)"] if last["pause_s"] else ["pause not reported"]
    if cause is None or cause.get("gpus_from") == cause.get("gpus_to"):
        return []
    evidence = cause.get("evidence") or {}
    pause = known.number(evidence, "pause_s")
    if pause is not None:
        measured = known.flag(evidence, "pause_measured")
        source = {True: "mean of its resizes so far", False: "assumed; none measured yet", None: "expected"}[measured]
        return [f"{pause:.2g} s pause ({source})"]
    if facts.get("mean_pause_s") is not None:
        return [f"{facts['mean_pause_s']:.2g} s pause expected (mean of its resizes so far)"]
    return ["pause not known: this job has not been resized yet"]


def _considered(decision: Facts) -> list[str]:
    """The next best sizes and why they were not taken."""
    chosen = (decision.get("gpus_to"), decision.get("batch_to"))
    value = known.number(decision, "value")
    shown = []
    for other in known.objects(decision, "alternatives"):
        size, batch = known.whole(other, "gpus"), known.whole(other, "batch")
        if size is None or (size, batch) == chosen:
            continue
        why = known.text(other, "why") or _why_not(known.number(other, "value"), value)
        shown.append(gpus(size) + (f", batch {batch}" if batch else "") + f": {why}")
    return shown[:SHOWN_ALTERNATIVES]


def _why_not(value: float | None, chosen: float | None) -> str:
    """The plan is the best sum over all jobs: a size worth more to this one was worth less to all of them together."""
    if value is None or chosen is None:
        return "value n/a"
    if value > chosen:
        return f"{value - chosen:+.2f} for this job, but less for all jobs together"
    return f"{value - chosen:+.2f} for this job"


def _now(facts: Facts, cause: Facts | None) -> list[str]:
    """What the last decision says, where that is not already told, and how far an order has come."""
    if is_over(facts["job"]):
        return []
    order, decision = facts.get("resize"), facts.get("decision")
    if order:
        wants = ", ".join(
            f"{gpus(shape['gpus'])} on {shape['nodes']} node{'s' * (shape['nodes'] > 1)}" for shape in order["adds"]
        )
        detail = f" ({order['detail']})" if order["detail"] else ""
        asked = f"; companions asked for: {wants}" if wants else ""
        return [f"order {order['id']} is {order['state']}{detail}{asked}, since {_time(facts, order['updated'])}"]
    if not decision:
        return []
    if decision["gpus_to"] != facts["job"]["gpus"] and decision["gpus_to"] != decision["gpus_from"]:
        move = _moved(decision, "shrink", "grow", "change its batch")
        advised = "" if decision["mode"] == "act" else f"; the daemon only says so (mode {decision['mode']})"
        return [f"it is to {move}{_batch(decision)}: {decision['reason_text']}{advised}"]
    if cause is not None and decision.get("at") != cause.get("at"):
        return [f"stays at {gpus(decision['gpus_to'])}: {decision['reason_text'] or decision['reason']}"]
    return []


def _next(facts: Facts) -> list[str]:
    job = facts["job"]
    if is_over(job):
        return [f"nothing; its history: selastic acct -j {job['job_id']}"]
    evidence = (facts.get("decision") or {}).get("evidence") or {}
    lines = []
    if known.text(evidence, "next"):
        lines.append(known.text(evidence, "next"))
    cooldown, blocked = known.number(evidence, "cooldown_until"), known.number(evidence, "blocked_until")
    if cooldown and cooldown > facts["now"]:
        lines.append(f"may be resized again after {_time(facts, cooldown)} (cooldown)")
    failed = facts.get("last_order")
    if failed and failed["state"] == "failed":
        lines.append(
            f"order {failed['id']} for {gpus(failed['gpus'])} failed: {failed['detail'] or 'no cause was given'}"
        )
    if blocked and blocked > facts["now"]:
        lines.append(f"left alone until {_time(facts, blocked)}")
    return [*lines, _can_do(job)]


def _can_do(job: Facts) -> str:
    name = job["job_id"]
    if job.get("pinned"):
        return f"pinned to {gpus(job['pinned'])}; to let it be resized again: selastic unpin {name}"
    if job["reason"] == "keep_unregistered":
        return "start the training with 'selastic run' in the batch script; without it the daemon cannot resize the job"
    return f"to hold it at its size: selastic pin {name}; the whole story: selastic events {name}"


def _waiting(facts: Facts) -> list[tuple[str, str]]:
    decision, job = facts.get("decision") or {}, facts["job"]
    evidence = decision.get("evidence") or {}
    slurm, coming = known.text(evidence, "slurm_reason"), known.text(evidence, "next")
    sections = [("Why", f"Slurm says: {slurm}")] if slurm and slurm != "None" else []
    sections += [("Now", coming)] if coming else []
    start = f"squeue --start -j {job['job_id']}"
    return [*sections, ("Next", f"it is managed once it runs; when Slurm expects to start it: {start}")]


def _not_managed(facts: Facts) -> list[tuple[str, str]]:
    job, code = facts["job"], facts["job"]["record_reason"]
    remedies = {
        "malformed": "it runs on as an ordinary job; correct the request at the next submission"
        " (selastic sbatch --elastic=... checks it before Slurm sees it)",
        "not_elastic": "to make the next one elastic: sbatch --comment=elastic:gpus=MIN-MAX,batch=MIN-MAX",
        "impossible": "it runs on as an ordinary job; ask for sizes that the partition can hold",
        "not_allowed": "it runs on as an ordinary job; ask the admin which partitions and accounts are open",
    }
    why = job.get("detail") or _because(code, facts)
    request = [("Request", job["request"])] if job.get("request") else []
    return [("Why", _sentence(why)), *request, ("Next", remedies.get(code, "it runs on as an ordinary job"))]


def gpus(count: object) -> str:
    """1 GPU, 2 GPUs."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _reports(count: int | None, size: object) -> str:
    return f"{count or 'no'} report{'' if count == 1 else 's'} at {gpus(size)}"


def _sentence(text: str) -> str:
    text = text.strip()
    # A key such as gpus=8-2 stays as the user wrote it.
    if text.split(" ")[0].isalpha():
        text = text[:1].upper() + text[1:]
    return text + ("" if text.endswith((".", "!", "?")) else ".")
