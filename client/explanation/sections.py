"""The lines of `selastic explain`, label by label: why, gain, from, cost, considered, now, next. Pure.

Promise: every number is one that was recorded; what is not known is said to be so. Limit: what the records of
daemon/reports/explain.py hold.
"""

from slurm_elastic.protocol.answers.explain import (
    Alternative,
    Decision,
    Evidence,
    Explain,
    ExplainedJob,
    ResizeProgress,
)
from slurm_elastic.protocol.answers.record import shown_id
from slurm_elastic.protocol.bottleneck import STARVED_INPUT, STARVED_SHARE
from slurm_elastic.protocol.codes import Reason, ResizeState, bottleneck_remedy
from slurm_elastic.protocol.text.tables import number
from slurm_elastic.protocol.text.times import span

from . import phrases as words

UNWEIGHED = {
    Reason.SHRINK_FOR_JOB.value: "waiting jobs come first",
    Reason.SHRINK_FOR_ELASTIC.value: "waiting jobs come first",
    Reason.COMPANION_ENDS.value: "what Slurm takes cannot be kept",
    Reason.SHRINK_SUBMITS.value: "the user's own jobs come first",
    Reason.SHRINK_DRAIN.value: "whoever drains or reserves a node waits until it is empty",
    Reason.SHRINK_CAPACITY.value: "GPUs that are not usable cannot be kept",
}
"""Reasons that no gain is weighed for, and why none is."""
SHOWN_ALTERNATIVES = 3


def why(facts: Explain, cause: Decision) -> str:
    """The reason, with who waited and what was idle where that is known."""
    evidence = cause.evidence
    text = cause.reason_text or words.because(cause.reason, facts)
    if cause.reason == Reason.KEEP_UNFITTED.value and evidence.unfitted:
        text += f": {evidence.unfitted}"
    waiting, wanted, idle = evidence.for_job, evidence.for_gpus, evidence.idle_gpus
    if waiting:
        text = f"{waiting} waited for {words.gpus(wanted)}" if wanted else f"{text}: job {waiting}"
    if idle is not None and (waiting or "idle" in cause.reason):
        text += "; too few were idle" if idle == 0 else f" ({idle} idle)"
    if idle == 0 and cause.reason == Reason.KEEP_BEST.value:
        text += "; no GPU is idle"
    return words.sentence(text + _asleep(cause))


def _asleep(decision: Decision) -> str:
    gpus, stays = decision.evidence.asleep_gpus, (Reason.KEEP_BEST.value, Reason.KEEP_ASLEEP.value)
    return f" ({words.gpus(gpus)} asleep)" if gpus and decision.reason in stays else ""


def gain(facts: Explain, cause: Decision) -> str:
    """What the move brings the cluster, this job and the others; empty for no move, n/a for an unknown one."""
    if not cause.moves:
        return ""
    evidence = cause.evidence
    if cause.gain is None and cause.reason not in UNWEIGHED and not evidence.tried:
        return f"n/a ({_measured_sizes(facts)})"
    own = "; ".join(text for text in (_change(facts, evidence), _ends(facts, evidence)) if text)
    shares = [f"{shown_id(facts.job)}: {own}"] if own else []
    shares += _others(evidence)
    return _total(cause) + (f"   ({', '.join(shares)})" if shares else "")


def _ends(facts: Explain, evidence: Evidence) -> str:
    """How much sooner or later the job ends by it; empty where that is not known."""
    before, after, now = evidence.samples_per_s_from, evidence.samples_per_s_to, facts.job.samples_per_s
    if facts.job.left_s is None or not (before and after and now):
        return ""
    later = facts.job.left_s * now * (1 / after - 1 / before)
    return f"ends {span(abs(later))} {'later' if later > 0 else 'sooner'}"


def _total(cause: Decision) -> str:
    """The gain of all elastic jobs together: what is lost is said as a cost, with what it is paid for."""
    unweighed, total = UNWEIGHED.get(cause.reason), round(cause.gain or 0.0, 2)
    none = f"none asked for: {unweighed}" if unweighed else "none"
    if total < 0:
        return f"{none}; all elastic jobs together lose by it"
    if unweighed and not total:
        return none
    if cause.gain is None:
        return f"not known: {words.gpus(cause.gpus_to)} are tried while they are idle, to measure them"
    return "all elastic jobs together gain by it" if total else none


def _others(evidence: Evidence) -> list[str]:
    shares = []
    for other in evidence.others or ():
        if other.change is not None:
            shares.append(f"{other.job_id}: {other.change:+.0%}")
        elif other.gpus_from is not None and other.gpus_to is not None:
            shares.append(f"{other.job_id}: {other.gpus_from} -> {words.gpus(other.gpus_to)}")
    return shares


def _change(facts: Explain, evidence: Evidence) -> str:
    """Before and after: the throughput where it is known, else against the job's smallest size."""
    before, after = evidence.samples_per_s_from, evidence.samples_per_s_to
    if before and before > 0 and after is not None:
        predicted = " predicted" if evidence.modelled else ""
        return (
            f"{number(before)} -> {number(after)} {words.per_second(facts.job)}{predicted}, {after / before - 1:+.0%}"
        )
    before, after = evidence.speedup_from, evidence.speedup_to
    if before and before > 0 and after is not None:
        return f"progress x{number(before)} -> x{number(after)}, {after / before - 1:+.0%}"
    return ""


def _measured_sizes(facts: Explain) -> str:
    sizes = sorted({seen.gpus for seen in facts.observations})
    if not sizes:
        return "no size measured yet"
    return f"measured so far: {', '.join(map(str, sizes))} GPUs"


def source(facts: Explain, cause: Decision) -> str:
    """The reports behind it: those the planner counted, or else all there are, said to be so."""
    evidence = cause.evidence
    counts = {cause.gpus_from: evidence.reports_from, cause.gpus_to: evidence.reports_to}
    age = evidence.last_report_age_s
    late = f", the last {span(age)} before the decision" if age is not None else ""
    if any(count is not None for count in counts.values()):
        parts = [words.reports(count, size) for size, count in counts.items()]
        return ", ".join(parts) + late + (_predicted(evidence) if evidence.modelled else "")
    totals: dict[int, int] = {}
    for seen in facts.observations:
        totals[seen.gpus] = totals.get(seen.gpus, 0) + seen.count
    if not totals:
        return "no reports: nothing has been measured"
    return ", ".join(words.reports(count, size) for size, count in sorted(totals.items())) + " up to now"


def share(cause: Decision) -> str:
    """Whose share of the pool's weight the job has."""
    evidence = cause.evidence
    if evidence.share_of is None or evidence.share_part is None or evidence.share_jobs is None:
        return ""
    jobs = "1 elastic job has" if evidence.share_jobs == 1 else f"{evidence.share_jobs} elastic jobs share"
    where = f" of {evidence.pool}" if evidence.pool else ""
    return f"{evidence.share_of}: {jobs} {evidence.share_part:.1%} of the weight{where} (setting fairness)"


def _predicted(evidence: Evidence) -> str:
    within = f", give or take {evidence.doubt:.0%}" if evidence.doubt is not None else ""
    return f"; the target's throughput is the model's{within}, not measured"


def cost(facts: Explain, cause: Decision | None) -> str:
    """The pause: as measured for what happened, as expected for what is to come; empty without a move."""
    last = facts.last_resize
    if last and not facts.resize:
        return f"{last.pause_s:.2g} s pause (measured)" if last.pause_s else "pause not reported"
    if cause is None or cause.gpus_from == cause.gpus_to:
        return ""
    pause = cause.evidence.pause_s
    if pause is not None:
        measured = cause.evidence.pause_measured
        source = {True: "mean of its resizes so far", False: "assumed; none measured yet", None: "expected"}[measured]
        if not measured and cause.evidence.pause_likely:
            source = "by other jobs' resizes here and the size of its state; none of its own measured yet"
        return f"{pause:.2g} s pause ({source})"
    if facts.mean_pause_s is not None:
        return f"{facts.mean_pause_s:.2g} s pause expected (mean of its resizes so far)"
    return "pause not known: this job has not been resized yet"


def checkpoints(facts: Explain) -> str:
    """How often one is taken, and why so."""
    known = facts.checkpoints
    if known is None:
        return ""
    lost = known.node_failure_s
    seen = f"a node of its partition is lost after {span(lost)} of training in the mean" if lost else "no node was lost"
    size = f", {known.megabytes:.3g} MB" if known.megabytes else ""
    return (
        f"one every {span(known.every_s)}; it costs {known.pause_s:.2g} s of training, and {span(known.write_s)} of "
        f"writing beside it{size}; {seen} in the last 30 days"
    )


def how(cause: Decision | None) -> str:
    """The mechanism; empty for none."""
    return "" if cause is None or cause.mechanism in ("", "batch") else f"by {cause.mechanism.replace('+', ' and ')}"


def considered(facts: Explain, decision: Decision | None) -> list[str]:
    """The next best sizes and why they were not taken."""
    shown = []
    for other in decision.alternatives if decision is not None else ():
        if decision is None or other.gpus is None or (other.gpus, other.batch) == (decision.gpus_to, decision.batch_to):
            continue
        why = other.why or _why_not(facts, other, decision, other.gpus - (decision.gpus_to or 0))
        shown.append(f"{words.gpus(other.gpus)}{words.batch(facts.job, None, other.batch)}: {why}")
    return shown[:SHOWN_ALTERNATIVES]


def _why_not(facts: Explain, other: Alternative, decision: Decision, more: int) -> str:
    """The plan is the best sum over all jobs: a size worth more to this one was worth less to all of them together, or
    was not to be had. `more`: GPUs above those chosen.

    In its throughput where that tells the same as the objective, which counts the pause and what the batch does too.
    """
    chosen, evidence = decision.value, decision.evidence
    value, speed, chosen_speed = other.value, other.samples_per_s, evidence.samples_per_s_to
    if value is None or chosen is None:
        return "value n/a"
    said = f"{value - chosen:+.2f} for this job"
    if speed is not None and chosen_speed and (speed > chosen_speed) == (value > chosen):
        more_or_fewer = "more" if speed > chosen_speed else "fewer"
        said = f"{abs(speed / chosen_speed - 1):.0%} {more_or_fewer} {words.per_second(facts.job)}"
    if value > chosen and more > (evidence.idle_gpus or 0) and evidence.asleep_gpus:
        return f"{said}, but {words.gpus(evidence.asleep_gpus)} are asleep"
    return said + (", not worth it for all jobs together" if value > chosen else "")


def now(facts: Explain, cause: Decision | None) -> list[str]:
    """What the last decision says, where nothing else says it, and how far a resize has come."""
    if words.is_over(facts.job):
        return []
    stalled = [facts.stalled] if facts.stalled else []
    return stalled + _size_now(facts, cause)


def _size_now(facts: Explain, cause: Decision | None) -> list[str]:
    resize, decision = facts.resize, facts.decision
    if resize:
        return [_progress(facts, resize), ResizeState(resize.state).meaning]
    if decision is None or (decision.moves and not facts.last_resize):
        return []  # the outcome says it
    if decision.moves and (decision.gpus_to, decision.batch_to) != (facts.job.gpus, facts.job.batch):
        move = words.moved(decision.gpus_from, decision.gpus_to, "shrink", "grow", "change its batch")
        batch = words.batch(facts.job, decision.batch_from, decision.batch_to)
        advised = "" if decision.mode == "act" else f"; the daemon only says so (mode {decision.mode})"
        return [f"it is to {move}{batch}: {decision.reason_text}{advised}"]
    if decision.reason == Reason.KEEP_RESIZING.value:
        return []  # no resize is under way any more: what it said is over
    if cause is not None and decision.at != cause.at:
        why = (decision.reason_text or decision.reason) + _asleep(decision)
        return [f"stays at {words.gpus(decision.gpus_to)}: {why}"]
    return []


def held_back(facts: Explain) -> list[str]:
    """What makes each step longer than it need be, and what to do about it; nothing where nothing does."""
    job = facts.job
    if words.is_over(job):
        return []
    remedy = bottleneck_remedy(job.bottleneck or "")
    lines = [job.bottleneck_text + (f"; {remedy}" if remedy else "")] if job.bottleneck_text else []
    waits = _input_wait(facts)
    if waits >= STARVED_SHARE and job.bottleneck != STARVED_INPUT:
        lines.append(f"it waits for its input for {waits:.0%} of every step; {bottleneck_remedy(STARVED_INPUT)}")
    return lines


def _input_wait(facts: Explain) -> float:
    """Share of a step that waits for input, at the size and the batch of now; 0: none, or not measured."""
    job = facts.job
    here = [seen for seen in facts.observations if (seen.gpus, seen.batch) == (job.gpus, job.batch)]
    return max(here, key=lambda seen: seen.last_at).input_wait_share if here else 0.0


def _progress(facts: Explain, resize: ResizeProgress) -> str:
    """How far a resize has come."""
    wants = ", ".join(
        f"{words.gpus(added.gpus)} on {added.nodes} node{'s' * (added.nodes > 1)}" for added in resize.adds
    )
    detail = f" ({resize.detail})" if resize.detail else ""
    asked = f"; companions asked for: {wants}" if wants else ""
    return f"resize {resize.id} is {resize.state}{detail}{asked}, since {words.clock(facts, resize.updated)}"


def next_steps(facts: Explain) -> list[str]:
    """What is tried next, what prevents it, and what the user can do."""
    job = facts.job
    if words.is_over(job):
        return [f"nothing; its history: selastic acct -j {shown_id(job)}"]
    evidence = facts.decision.evidence if facts.decision is not None else Evidence()
    lines = [evidence.next] if evidence.next else []
    if evidence.unlisted:
        lines.append(f"left out: GPUs in use by no job that Slurm lists ({evidence.unlisted})")
    cooldown, blocked, often = evidence.cooldown_until, evidence.blocked_until, evidence.resizes_in_hour
    if cooldown and cooldown > facts.now:
        why = f"{often} resizes within an hour, as many as the site allows" if often else "cooldown"
        lines.append(f"may be resized again after {words.clock(facts, cooldown)} ({why})")
    asked, counts = evidence.weight_asked, evidence.weight_counts
    if asked and counts:
        lines.append(f"its weight={asked:g} counts as {counts:g}, the most that the site allows (max_weight)")
    if evidence.sample_worth is not None and evidence.quality_gain is not None:
        lines.append(
            f"at its batch a sample is worth {evidence.sample_worth:.0%} of one at the batch it began with (measured"
            f" gradient noise): if it trains until a quality, and not for its epochs, until=quality in the request"
            f" brings {evidence.quality_gain:+.0%} at this size"
        )
    if evidence.exact_gpus is not None:
        exact = words.gpus(evidence.exact_gpus)
        lines.append(f"the plan with the largest sum would give it {exact}; the policy counts more than that")
    if evidence.weight_factor:
        lines.append(f"its weight is multiplied by {evidence.weight_factor:g} (setting shorter_first)")
    held = job.held_gpus or 0
    if held > (job.gpus or held) and facts.resize is None:
        lines.append(f"Slurm holds {words.gpus(held)} for it, {held - (job.gpus or 0)} more than it trains on")
    if facts.policy_failed:
        lines.append(facts.policy_failed)
    if facts.not_understood:
        lines.append(f"{facts.not_understood}; tried again when either is started with another release")
    if facts.refused is not None:
        lines.append(f"{facts.refused.error}; asked again after {words.clock(facts, facts.refused.again_at)}")
    if facts.too_large:
        sizes = " or ".join(map(str, facts.too_large))
        lines.append(f"not tried again: {sizes} GPUs, at which the training was out of their memory")
    for pair in facts.hosts_apart:
        again = f"not put on both before {words.clock(facts, pair.again_at)}"
        mended = f"once that is mended: selastic hosts --clear {pair.host},{pair.other}"
        lines.append(f"{pair.host} and {pair.other} do not reach each other ({pair.address}): {again}; {mended}")
    failed = facts.last_closed_resize
    if failed and failed.state != "done":
        how = "failed" if failed.state == "failed" else f"was {failed.state}"
        lines.append(f"resize {failed.id} to {words.gpus(failed.gpus)} {how}: {failed.detail or 'no cause was given'}")
    if blocked and blocked > facts.now:
        lines.append(f"not tried again before {words.clock(facts, blocked)}")
    return [_can_do(job), *lines] if job.pinned else [*lines, _can_do(job)]


def _can_do(job: ExplainedJob) -> str:
    name = shown_id(job)
    if job.pinned:
        return f"pinned to {words.gpus(job.pinned)}; to let it be resized again: selastic unpin {name}"
    if job.reason == Reason.KEEP_UNREGISTERED.value:
        return (
            "its supervisor registers seconds after 'selastic run' has started in the batch script; without that the"
            " daemon cannot resize the job"
        )
    return f"to hold it at its size: selastic pin {name}; the whole story: selastic events {name}"
