"""The lines of `selastic explain`, label by label: why, gain, from, cost, considered, now, next. Pure.

Promise: every number is one that was recorded; what is not known is said to be so. Limit: evidence of a form that
daemon/reports/evidence.py does not list counts as not known.
"""

from __future__ import annotations

from ...reports import evidence as known
from ...text.reasons import Reason, bottleneck_remedy
from ...text.tables import number
from ...text.times import span
from . import phrases as words
from .phrases import Facts

FORCED = ("shrink_for_job", "shrink_for_elastic", "shrink_capacity")
"""Reasons that no gain is weighed for."""
SHOWN_ALTERNATIVES = 3


def why(facts: Facts, cause: Facts, evidence: Facts) -> str:
    """The reason, with who waited and what was idle where that is known."""
    text = cause.get("reason_text") or words.because(cause.get("reason") or "", facts)
    if cause.get("reason") == Reason.KEEP_UNFITTED.value and known.text(evidence, "unfitted"):
        text += f": {known.text(evidence, 'unfitted')}"
    waiting, wanted = known.whole(evidence, "for_job"), known.whole(evidence, "for_gpus")
    idle = known.whole(evidence, "idle_gpus")
    if waiting:
        text = f"{waiting} waited for {words.gpus(wanted)}" if wanted else f"{text}: job {waiting}"
    if idle is not None and (waiting or "idle" in (cause.get("reason") or "")):
        text += "; too few were idle" if idle == 0 else f" ({idle} idle)"
    if idle == 0 and cause.get("reason") == Reason.KEEP_BEST.value:
        text += "; no GPU is idle"
    return words.sentence(text)


def gain(facts: Facts, cause: Facts, evidence: Facts) -> str:
    """What the move brings the cluster, this job and the others; empty for no move, n/a for an unknown one."""
    if not cause.get("gpus_from") or not words.is_move(cause):
        return ""
    forced = cause.get("reason") in FORCED and not cause.get("gain")
    tried = known.flag(evidence, "tried") is True
    if cause.get("gain") is None and not forced and not tried:
        return f"n/a ({_measured_sizes(facts)})"
    own = _change(evidence)
    shares = [f"{facts['job']['job_id']}: {own}"] if own else []
    return _total(cause, forced, tried) + _in_brackets(shares + _others(evidence))


def _total(cause: Facts, forced: bool, tried: bool) -> str:
    if forced:
        return "none asked for: waiting jobs come first"
    if cause.get("gain") is None and tried:
        return f"not known: {words.gpus(cause['gpus_to'])} are tried while they are idle, to measure them"
    return f"cluster {cause['gain']:+.2f} jobs' worth of progress"


def _in_brackets(shares: list[str]) -> str:
    return f"   ({', '.join(shares)})" if shares else ""


def _others(evidence: Facts) -> list[str]:
    shares = []
    for other in known.objects(evidence, "others"):
        name, change = known.whole(other, "job_id"), known.number(other, "change")
        before, after = known.whole(other, "gpus_from"), known.whole(other, "gpus_to")
        if name is not None and change is not None:
            shares.append(f"{name}: {change:+.0%}")
        elif name is not None and before is not None and after is not None:
            shares.append(f"{name}: {before} -> {words.gpus(after)}")
    return shares


def _change(evidence: Facts) -> str:
    """Before and after: the throughput where it is known, else against the job's smallest size."""
    predicted = " predicted" if known.flag(evidence, "modelled") else ""
    for key, sign, unit in (("samples_per_s", "", f" samples/s{predicted}"), ("speedup", "x", "")):
        before, after = known.number(evidence, f"{key}_from"), known.number(evidence, f"{key}_to")
        if before and before > 0 and after is not None:
            what = "" if unit else "progress "
            return f"{what}{sign}{number(before)} -> {sign}{number(after)}{unit}, {after / before - 1:+.0%}"
    return ""


def _measured_sizes(facts: Facts) -> str:
    sizes = sorted({seen["gpus"] for seen in facts["observations"]})
    if not sizes:
        return "no size measured yet"
    return f"measured so far: {', '.join(map(str, sizes))} GPUs"


def source(facts: Facts, cause: Facts, evidence: Facts) -> str:
    """The reports behind it: those the planner counted, or else all there are, said to be so."""
    counts = {
        cause.get("gpus_from"): known.whole(evidence, "reports_from"),
        cause.get("gpus_to"): known.whole(evidence, "reports_to"),
    }
    age = known.number(evidence, "last_report_age_s")
    late = f", the last {span(age)} before the decision" if age is not None else ""
    if any(count is not None for count in counts.values()):
        parts = [words.reports(count, size) for size, count in counts.items()]
        modelled = _predicted(evidence) if known.flag(evidence, "modelled") else ""
        return ", ".join(parts) + late + modelled
    totals: dict[int, int] = {}
    for seen in facts["observations"]:
        totals[seen["gpus"]] = totals.get(seen["gpus"], 0) + seen["count"]
    if not totals:
        return "no reports: nothing has been measured"
    return ", ".join(words.reports(count, size) for size, count in sorted(totals.items())) + " up to now"


def _predicted(evidence: Facts) -> str:
    doubt = known.number(evidence, "doubt")
    within = f", give or take {doubt:.0%}" if doubt is not None else ""
    return f"; the target's throughput is the model's{within}, not measured"


def prior(evidence: Facts) -> str:
    """What the model believes of sizes that were not measured; empty where the daemon did not say."""
    words = known.text(evidence, "prior")
    return f"what was not measured is taken from {words}" if words else ""


def cost(facts: Facts, cause: Facts | None) -> list[str]:
    """The pause: as measured for what happened, as expected for what is to come."""
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


def how(cause: Facts | None) -> list[str]:
    """The mechanism, and why none of the others."""
    if not cause or not known.text(cause, "mechanism") or known.text(cause, "mechanism") == "batch":
        return []
    others = known.objects(cause.get("evidence") or {}, "passed_over")
    not_by = [f"{known.text(other, 'mechanism')} ({known.text(other, 'why')})" for other in others]
    by = f"by {known.text(cause, 'mechanism').replace('+', ' and ')}"
    return [by, *([f"not by {'; '.join(not_by)}"] if not_by else [])]


def considered(decision: Facts) -> list[str]:
    """The next best sizes and why they were not taken."""
    chosen = (decision.get("gpus_to"), decision.get("batch_to"))
    value = known.number(decision, "value")
    speed = known.number(decision.get("evidence") or {}, "samples_per_s_to")
    shown = []
    for other in known.objects(decision, "alternatives"):
        size, batch = known.whole(other, "gpus"), known.whole(other, "batch")
        if size is None or (size, batch) == chosen:
            continue
        why = known.text(other, "why") or _why_not(other, value, speed)
        shown.append(words.gpus(size) + (f", batch {batch}" if batch else "") + f": {why}")
    return shown[:SHOWN_ALTERNATIVES]


def _why_not(other: Facts, chosen: float | None, chosen_speed: float | None) -> str:
    """The plan is the best sum over all jobs: a size worth more to this one was worth less to all of them together.

    In samples/s where that tells the same as the objective, which counts the pause and what the batch does too.
    """
    value, speed = known.number(other, "value"), known.number(other, "samples_per_s")
    if value is None or chosen is None:
        return "value n/a"
    told = f"{value - chosen:+.2f} for this job"
    if speed is not None and chosen_speed and (speed > chosen_speed) == (value > chosen):
        told = f"{abs(speed / chosen_speed - 1):.0%} {'more' if speed > chosen_speed else 'fewer'} samples/s"
    return told + (", not worth it for all jobs together" if value > chosen else "")


def now(facts: Facts, cause: Facts | None) -> list[str]:
    """What the last decision says, where that is not already told, and how far an order has come."""
    if words.is_over(facts["job"]):
        return []
    order, decision = facts.get("resize"), facts.get("decision")
    if order:
        meaning = words.ORDERED.get(order["state"])
        return [_progress(facts, order), *([meaning] if meaning else [])]
    if not decision:
        return []
    if words.is_move(decision) and not facts.get("last_resize"):
        return []  # the outcome says it
    if words.is_move(decision) and (decision["gpus_to"], decision["batch_to"]) != (
        facts["job"]["gpus"],
        facts["job"]["batch"],
    ):
        move = words.moved(decision, "shrink", "grow", "change its batch")
        advised = "" if decision["mode"] == "act" else f"; the daemon only says so (mode {decision['mode']})"
        return [f"it is to {move}{words.batch(decision)}: {decision['reason_text']}{advised}"]
    if decision["reason"] == Reason.KEEP_RESIZING:
        return []  # no order is under way any more: what it said is over
    if cause is not None and decision.get("at") != cause.get("at"):
        return [f"stays at {words.gpus(decision['gpus_to'])}: {decision['reason_text'] or decision['reason']}"]
    return []


def held_back(facts: Facts) -> list[str]:
    """What makes each step longer than it need be, and what to do about it."""
    job = facts["job"]
    if words.is_over(job) or not job.get("bottleneck_text"):
        return []
    remedy = bottleneck_remedy(job["bottleneck"])
    return [f"{job['bottleneck_text']}" + (f"; {remedy}" if remedy else "")]


def _progress(facts: Facts, order: Facts) -> str:
    """How far an order has come."""
    wants = ", ".join(
        f"{words.gpus(shape['gpus'])} on {shape['nodes']} node{'s' * (shape['nodes'] > 1)}" for shape in order["adds"]
    )
    detail = f" ({order['detail']})" if order["detail"] else ""
    asked = f"; companions asked for: {wants}" if wants else ""
    return f"order {order['id']} is {order['state']}{detail}{asked}, since {words.clock(facts, order['updated'])}"


def next_steps(facts: Facts) -> list[str]:
    """What is tried next, what stands in the way, and what the user can do."""
    job = facts["job"]
    if words.is_over(job):
        return [f"nothing; its history: selastic acct -j {job['job_id']}"]
    evidence = (facts.get("decision") or {}).get("evidence") or {}
    lines = []
    if known.text(evidence, "next"):
        lines.append(known.text(evidence, "next"))
    cooldown, blocked = known.number(evidence, "cooldown_until"), known.number(evidence, "blocked_until")
    often = known.whole(evidence, "resizes_in_hour")
    if cooldown and cooldown > facts["now"]:
        why = f"{often} resizes within an hour, as many as the site allows" if often else "cooldown"
        lines.append(f"may be resized again after {words.clock(facts, cooldown)} ({why})")
    asked, counts = known.number(evidence, "weight_asked"), known.number(evidence, "weight_counts")
    if asked and counts:
        lines.append(f"its weight={asked:g} counts as {counts:g}, the most that the site allows (max_weight)")
    failed = facts.get("last_order")
    if failed and failed["state"] == "failed":
        lines.append(
            f"order {failed['id']} for {words.gpus(failed['gpus'])} failed: {failed['detail'] or 'no cause was given'}"
        )
    if blocked and blocked > facts["now"]:
        lines.append(f"left alone until {words.clock(facts, blocked)}")
    return [*lines, _can_do(job)]


def _can_do(job: Facts) -> str:
    name = job["job_id"]
    if job.get("pinned"):
        return f"pinned to {words.gpus(job['pinned'])}; to let it be resized again: selastic unpin {name}"
    if job["reason"] == "keep_unregistered":
        return (
            "its first word comes seconds after 'selastic run' has started in the batch script; without that the daemon"
            " cannot resize the job"
        )
    return f"to hold it at its size: selastic pin {name}; the whole story: selastic events {name}"
