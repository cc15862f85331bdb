"""What `selastic explain` says: outcome, cause with its evidence, cost, what else, what next. Nothing is made up."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from slurm_elastic.client.explanation.command import render, rows
from slurm_elastic.daemon import reports
from slurm_elastic.db.rows import DecisionRow, JobRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.explain import Alternative, Decision, Evidence
from slurm_elastic.protocol.codes import Reason, ResizeState
from slurm_elastic.protocol.messages import Piece, Resize


def at(clock: str) -> float:
    """Unix time of a clock on the story's day."""
    return datetime.fromisoformat(f"2026-11-20T{clock}").timestamp()


NOW = at("13:25:00")


@pytest.fixture
def told(story: Store, viewer: Callable[..., Any]) -> Callable[[int], str]:
    """Explains a job of the story to an admin, as one text."""
    return lambda job_id: "\n".join(render(reports.explain(story, job_id, viewer(0, admin=True), NOW)))


def test_a_narrow_terminal_keeps_the_indent(story: Store, viewer: Callable[..., Any]) -> None:
    """Wrapped at the width given, every line below its label."""
    wide, narrow = (render(reports.explain(story, 1215, viewer(0, admin=True), NOW), *width) for width in ((), (60,)))
    assert max(map(len, narrow[1:])) <= 60 < max(map(len, wide[1:]))
    assert " ".join("\n".join(narrow).split()) == " ".join("\n".join(wide).split())
    assert all(line.startswith("  ") for line in narrow[1:])


SHRINK = """\
Job 1215 shrank from 4 to 2 GPUs at 13:20:41, batch 512 -> 256.
  Why         1218 waited for 2 GPUs; too few were idle.
  Gain        all elastic jobs together gain by it   (1215: progress x3.10 -> x1.92, -38%, 1218: +100%)
  From        9 reports at 4 GPUs, 4 reports at 2 GPUs, the last 30 s before the decision
  How         by shrink
  Cost        0.8 s pause (measured)
  Considered  4 GPUs, batch 512: +1.30 for this job, not worth it for all jobs together
              1 GPU, batch 128: -0.80 for this job
  Now         stays at 2 GPUs: it was resized a short while ago
  Next        may be resized again after 13:30:41 (cooldown)
              to hold it at its size: selastic pin 1215; the whole story: selastic events 1215"""


def test_a_shrink_is_told_outcome_first(told: Callable[[int], str]) -> None:
    """The whole of it: what happened, for whom, on what evidence, at what cost, what else, and what the user can do."""
    assert told(1215) == SHRINK


def test_a_gain_is_told_in_samples_per_second(story: Store, viewer: Callable[..., Any]) -> None:
    """Where throughputs are known they say what no ratio says; where they contradict the value, it is told instead."""
    facts = reports.explain(story, 1215, viewer(0, admin=True), NOW)
    cause = facts.last_resize.cause
    evidence = replace(cause.evidence, samples_per_s_from=800.0, samples_per_s_to=500.0, modelled=True)
    first, second = cause.alternatives
    alternatives = (
        replace(first, samples_per_s=800.0),
        replace(second, samples_per_s=260.0),
        Alternative(gpus=3, batch=384, value=1.7, samples_per_s=650.0),
    )
    cause = replace(cause, evidence=evidence, alternatives=alternatives)
    facts = replace(facts, last_resize=replace(facts.last_resize, cause=cause))
    text = " ".join("\n".join(render(facts)).split())
    assert "(1215: 800 -> 500 samples/s predicted, -38%, 1218: +100%)" in text
    assert "4 GPUs, batch 512: 60% more samples/s, not worth it for all jobs together 1 GPU" in text
    assert "1 GPU, batch 128: 48% fewer samples/s 3 GPUs, batch 384: -0.10 for this job Now" in text
    pool = "\n".join(render(replace(facts, job=replace(facts.job, unit="tasks"))))
    assert "(1215: 800 -> 500 tasks/s predicted, -38%" in " ".join(pool.split())
    assert "1 GPU: 48% fewer tasks/s" in pool and "batch" not in pool.partition("Now")[0] and "samples/s" not in pool


def test_a_job_that_stays_says_that_there_is_nothing_to_have(story: Store, viewer: Callable[..., Any]) -> None:
    """Without a GPU idle there is no size to compare: that is the reason, not a lack of worth."""
    facts = reports.explain(story, 1221, viewer(0, admin=True), NOW)
    for idle, said in (
        (0, "No other size is worth a resize; no GPU is idle."),
        (4, "No other size is worth a resize."),
    ):
        kept = Decision(
            **{"at": NOW, "gpus_from": 2, "gpus_to": 2, "batch_from": 256, "batch_to": 256, "mode": "act"},
            **{"reason": Reason.KEEP_BEST.value, "reason_text": "no other size is worth a resize"},
            evidence=Evidence(idle_gpus=idle),
        )
        assert said in "\n".join(render(replace(facts, decision=kept)))


@pytest.mark.parametrize(
    ("reason", "help"),
    [
        ("JobHeldUser", "to let it go: scontrol release 1218"),
        ("Dependency", "what it depends on: squeue -h -o %E -j 1218"),
        ("Priority", "when Slurm expects to start it: squeue --start -j 1218"),
    ],
)
def test_a_waiting_job_is_told_what_helps(story: Store, viewer: Callable[..., Any], reason: str, help: str) -> None:
    """A job that is held is not started by Slurm at any time: what its owner can do differs with the reason."""
    facts = reports.explain(story, 1218, viewer(0, admin=True), NOW)
    evidence = replace(facts.decision.evidence, slurm_reason=reason)
    facts = replace(facts, decision=replace(facts.decision, evidence=evidence))
    assert help in " ".join("\n".join(render(facts)).split())


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("slow_rank", "rank 3 on n2 is slower than the others, which costs 45% of every step; look at that node"),
        ("starved_input", "rank 3 on n2 waits for its input for 45% of every step; more num_workers"),
        ("communication", "gradients travel for 45% of every step while nothing is computed; a larger global batch"),
    ],
)
def test_what_holds_the_steps_back_is_told(
    story: Store, told: Callable[[int], str], viewer: Callable[..., Any], kind: str, sentence: str
) -> None:
    """As the last report has it, with what it costs and what to do; `status` has it too, for who may see the job."""
    last = story.reports.last(1215)
    assert last is not None and "Held back" not in told(1215)
    named = replace(
        last,
        **{"at": last.at + 1, "step": last.step + 9, "comm_share": 0.02, "bottleneck": kind},
        **{"bottleneck_share": 0.45, "bottleneck_rank": 3, "bottleneck_node": "n2"},
    )
    story.reports.submit(1215, [named], last.at + 1).result()
    assert sentence in " ".join(told(1215).split("Held back")[1].split())
    row = next(row for row in reports.status(story, viewer(0, admin=True), NOW) if row.job_id == 1215)
    assert (row.bottleneck, row.comm_share) == (kind, 0.02)
    other = next(row for row in reports.status(story, viewer(4711), NOW) if row.job_id == 1215)
    assert other.bottleneck_text is None


@pytest.mark.parametrize(("waits", "told_so"), [(0.45, True), (0.1, False), (0.0, False)])
def test_a_job_that_waits_for_its_input_is_told_what_helps(
    story: Store, viewer: Callable[..., Any], waits: float, told_so: bool
) -> None:
    """Beside what else holds it back, once; nothing where it hardly waits, and nothing of another size's wait."""
    facts = reports.explain(story, 1215, viewer(0, admin=True), NOW)
    seen = facts.observations[0]
    here = replace(seen, gpus=facts.job.gpus, batch=facts.job.batch, input_wait_share=waits)
    facts = replace(facts, observations=(here,))
    sentence = "it waits for its input for 45% of every step; more num_workers in job.loader(), with more CPUs per GPU"
    assert (sentence in " ".join("\n".join(render(facts)).split())) == told_so
    named = replace(facts.job, bottleneck="starved_input", bottleneck_text="rank 3 waits for its input")
    assert "it waits for its input for" not in "\n".join(render(replace(facts, job=named)))
    elsewhere = replace(facts, observations=(replace(here, gpus=here.gpus + 1),))
    assert "Held back" not in "\n".join(render(elsewhere))


def test_a_resize_under_way_says_how_far_it_is(told: Callable[[int], str]) -> None:
    """Growing, since when, to what, and what Slurm was asked for; a gain that nobody knows is said to be unknown."""
    text = told(1207)
    assert text.startswith("Job 1207 is growing from 2 to 4 GPUs since 13:24:30, batch 256 -> 512.\n")
    assert "GPUs were idle and no waiting job could use them (2 idle)." in text
    assert "Gain        n/a (measured so far: 2 GPUs)" in text
    assert "1 report at 2 GPUs up to now" in text
    assert "resize 2 is submitted (companion 1222 is pending); companions asked for: 2 GPUs on 1 node" in text
    assert "Slurm is to grant what was asked for; training goes on meanwhile" in text
    assert "1 s pause (assumed; none measured yet)" in text


def test_a_resize_whose_nodes_are_being_given_back_has_happened(story: Store, told: Callable[[int], str]) -> None:
    """Once the training has switched, the outcome is told as such, though Slurm may still hold what is given up."""
    order = Resize(0, 1215, (Piece(1215, "base", ("n1",), 2),), (), 2, 256, Reason.SHRINK_FOR_JOB.value, 60.0)
    issued = story.resizes.begin(order, at("13:20:10"))
    story.resizes.advance(issued.id, ResizeState.RUNNING, at=at("13:20:41"))
    assert told(1215).startswith("Job 1215 shrank from 4 to 2 GPUs at 13:20:41, batch 512 -> 256.\n")


def test_a_malformed_request_is_quoted_with_the_remedy(told: Callable[[int], str]) -> None:
    """The parser's own sentence, the request as given, and that the job runs on as an ordinary one."""
    text = told(1220)
    assert text.startswith("Job 1220 is not managed: its elastic request cannot be used as it stands.\n")
    assert "gpus=8-2 has its minimum above its maximum; accepted: gpus=MIN-MAX, MIN <= MAX." in text
    assert "Request     elastic:gpus=8-2,batch=128" in text
    assert "it runs on as an ordinary job" in text


def test_why_a_job_was_not_managed_outlives_it(story: Store, told: Callable[[int], str]) -> None:
    """Whoever looks the next morning still reads what was wrong with the request, told as past."""
    story.jobs.end(1220, "COMPLETED", at("13:24:00"))
    text = " ".join(told(1220).split())
    assert text.startswith(
        "Job 1220 completed at 13:24:00; it was not managed: its elastic request cannot be used as it stands. "
    )
    assert "Why gpus=8-2 has its minimum above its maximum; accepted: gpus=MIN-MAX, MIN <= MAX." in text
    assert "Request elastic:gpus=8-2,batch=128" in text
    assert "Next it ran as an ordinary job; correct the request at the next submission" in text
    assert "runs" not in text


def test_a_job_cancelled_in_the_queue_never_started(story: Store, told: Callable[[int], str]) -> None:
    """It is not blamed for lacking `selastic run`."""
    story.jobs.end(1218, "CANCELLED", at("13:24:00"))
    assert told(1218).startswith("Job 1218 was cancelled at 13:24:00; it never started.\n")


def test_rows_have_every_label_and_text(story: Store, viewer: Callable[..., Any]) -> None:
    """The explanation as rows: the outcome first, and no row whose label stands only in the row before."""
    told = [(row.label, row.text) for row in rows(reports.explain(story, 1215, viewer(1000), NOW))]
    assert told[0] == ("Outcome", "Job 1215 shrank from 4 to 2 GPUs at 13:20:41, batch 512 -> 256.")
    assert [label for label, _ in told] == [
        *("Outcome", "Why", "Gain", "From", "How", "Cost", "Considered", "Considered", "Now", "Next", "Next")
    ]


def test_a_waiting_job_says_what_it_waits_with(told: Callable[[int], str]) -> None:
    """A pending job has no size to explain: it says what it accepts and how to ask Slurm for its start."""
    text = told(1218)
    assert text.startswith("Job 1218 waits in Slurm's queue for 2 GPUs; it accepts 2-4 GPUs.\n")
    assert "Slurm says: Resources" in text
    assert "elastic jobs give up 2 GPUs for it" in text
    assert "squeue --start -j 1218" in text
    assert "kept" not in text


def test_a_job_without_a_supervisor_is_told_to_start_one(told: Callable[[int], str]) -> None:
    """No size is claimed for a job that nobody speaks for."""
    text = told(1221)
    assert text.startswith("Job 1221 has kept what Slurm gave it since it started.\n")
    assert "Its supervisor (selastic run) has not reported yet." in text
    assert "its supervisor registers seconds after 'selastic run' has started in the batch script" in text


def test_a_job_that_is_over_says_so(told: Callable[[int], str]) -> None:
    """After the end nothing is promised any more."""
    text = told(1210)
    assert text.startswith("Job 1210 completed at 11:00:10; it trained on 2 GPUs.\n")
    assert "Next        nothing; its history: selastic acct -j 1210" in text
    assert "pin" not in text
    assert "Why" not in text


def test_a_resized_job_that_is_over_keeps_its_story(story: Store, viewer: Callable[..., Any]) -> None:
    """The last resize and its reasons are still told, and how it ended."""
    story.jobs.end(1215, "COMPLETED", at("13:24:40"))
    text = "\n".join(render(reports.explain(story, 1215, viewer(1000), NOW)))
    assert text.startswith("Job 1215 completed at 13:24:40; it trained on 4 -> 2 GPUs.\n")
    assert "Last        shrank from 4 to 2 GPUs at 13:20:41, batch 512 -> 256" in text
    assert "Why         1218 waited for 2 GPUs; too few were idle." in text


def steady(store: Store, **decision: Any) -> None:
    """Job 7 of alice at 2 GPUs, batch 256, never resized, with this decision."""
    fields: dict[str, Any] = {
        "job_id": 7, "user": "alice", "uid": 1000, "name": "x", "account": "a", "partition": "gpu",
        "request": "elastic:gpus=1-8,batch=128-1024", "managed": True, "reason": "keep_best", "detail": "",
        "submit_time": at("12:00:00"), "start_time": at("12:00:01"), "end_time": None, "state": "RUNNING",
    }  # fmt: skip
    store.jobs.upsert(JobRow(**fields))
    store.allocations.note(7, 1, (Piece(7, "base", ("n1",), 2),), 256, at("12:00:05"), step=0, samples=0)
    values: dict[str, Any] = {
        "job_id": 7, "at": at("13:00:00"), "gpus_from": 2, "gpus_to": 2, "batch_from": 256, "batch_to": 256,
        "reason": "keep_best", "value": None, "gain": None, "mode": "act",
    }  # fmt: skip
    store.decisions.save(at("13:00:00"), [DecisionRow(**(values | decision))])


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_is_told_in_its_own_words(reason: Reason, store: Store, viewer: Callable[..., Any]) -> None:
    """Whatever the planner gives as a reason reaches the user in the words of the one enumeration."""
    steady(store, reason=reason.value)
    text = " ".join("\n".join(render(reports.explain(store, 7, viewer(1000), NOW))).split())
    assert text.startswith("Job 7 has kept 2 GPUs since it started, batch 256.")
    assert reason.meaning[1:] in text


def test_what_slurm_refuses_and_still_holds_is_told(store: Store, viewer: Callable[..., Any]) -> None:
    """In Slurm's words, with the time of the next try; nothing of it once that has come."""
    steady(store)
    row = store.jobs.get(7)
    assert row is not None
    store.jobs.upsert(replace(row, held_gpus=4, task_name="5_2"))
    error = "Slurm refused to change job 7: sizes are fixed here"
    store.events.add(7, "refused", "selasticd", {"error": error, "again_in_s": 60.0}, NOW - 30)
    text = " ".join("\n".join(render(reports.explain(store, 7, viewer(1000), NOW))).split())
    assert text.startswith("Job 5_2 has kept 2 GPUs")
    assert "Slurm holds 4 GPUs for it, 2 more than it trains on" in text
    assert f"{error}; asked again after" in text
    assert reports.explain(store, 7, viewer(1000), NOW + 60).refused is None


def test_an_advised_move_is_not_told_as_done(store: Store, viewer: Callable[..., Any]) -> None:
    """Below mode act the daemon only says what it would do, and the explanation must not read as if it did."""
    steady(store, gpus_to=4, batch_to=512, reason="grow_idle", gain=0.5, mode="review")
    text = "\n".join(render(reports.explain(store, 7, viewer(1000), NOW)))
    would = "would grow to 4 GPUs, batch 256 -> 512 (mode review: the daemon only says so)."
    assert text.startswith(f"Job 7 has 2 GPUs, batch 256, and {would}\n")


def test_a_move_that_is_yet_to_come_is_told_as_such(store: Store, viewer: Callable[..., Any]) -> None:
    """In mode act a decision that was not begun in its round is still to come, with what it waits for."""
    steady(store, gpus_to=4, reason="grow_share", gain=0.5, evidence={"next": "the GPUs are still being released"})
    text = "\n".join(render(reports.explain(store, 7, viewer(1000), NOW)))
    assert text.startswith("Job 7 has 2 GPUs, batch 256, and is to grow to 4 GPUs, batch 256 as before.\n")
    assert "Next        the GPUs are still being released" in text


def test_a_later_move_of_a_resized_job_is_told_beside_its_last(story: Store, viewer: Callable[..., Any]) -> None:
    """What happened stays the outcome; what the daemon would do now stands under Now, with its mode."""
    later = DecisionRow(1215, at("13:24:50"), 2, 4, 256, 512, "grow_idle", None, None, mode="review")
    story.decisions.save(at("13:24:50"), [later])
    text = "\n".join(render(reports.explain(story, 1215, viewer(1000), NOW)))
    assert text.startswith("Job 1215 shrank from 4 to 2 GPUs")
    now = "it is to grow from 2 to 4 GPUs, batch 256 -> 512: GPUs were idle and no waiting job could use them"
    assert f"Now {now}; the daemon only says so (mode review)" in " ".join(text.split())


def test_what_is_predicted_is_told_from_what_is_measured(store: Store, viewer: Callable[..., Any]) -> None:
    """A move to a size never seen says so, how sure the model is, and which earlier runs it takes the rest from."""
    evidence = {"reports_from": 9, "reports_to": 0, "modelled": True, "doubt": 0.18,
                "prior": "3 earlier runs of train.py on a100", "line_share": 0.83}  # fmt: skip
    steady(store, gpus_to=4, batch_to=512, reason="grow_share", gain=0.5, evidence=evidence)
    text = " ".join(" ".join(render(reports.explain(store, 7, viewer(0, admin=True), NOW))).split())
    assert "9 reports at 2 GPUs, no reports at 4 GPUs" in text
    assert "the target's throughput is the model's, give or take 18%, not measured" in text
    assert "Prior what was not measured is taken from 3 earlier runs of train.py on a100" in text
    assert "Model 83% a straight line, which predicted the reports better than the step-time form" in text


@pytest.mark.parametrize(
    ("reason", "gain", "said"),
    [
        ("shrink_for_job", 0.0, "none asked for: waiting jobs come first"),
        ("shrink_for_job", None, "none asked for: waiting jobs come first"),
        ("shrink_for_elastic", -0.001, "none asked for: waiting jobs come first"),
        (
            "shrink_for_job",
            -0.784,
            "none asked for: waiting jobs come first; all elastic jobs together lose by it",
        ),
        ("shrink_for_job", 0.61, "all elastic jobs together gain by it"),
        ("shrink_capacity", 0.0, "none asked for: GPUs that are not usable cannot be kept"),
        ("shrink_limit", -0.2, "none; all elastic jobs together lose by it"),
        ("grow_share", 0.25, "all elastic jobs together gain by it"),
    ],
)
def test_a_gain_is_claimed_only_where_there_is_one(
    reason: str, gain: float | None, said: str, store: Store, viewer: Callable[..., Any]
) -> None:
    """What a waiting job, a limit or a drained node costs the others is told as a cost, with what it is paid for."""
    steady(store, gpus_to=1, batch_to=128, reason=reason, gain=gain)
    text = " ".join("\n".join(render(reports.explain(store, 7, viewer(1000), NOW))).split())
    assert f"Gain {said} From" in text


def test_a_size_that_is_only_tried_claims_no_gain(store: Store, viewer: Callable[..., Any]) -> None:
    """What is tried to be measured has no gain yet: that is said, beside what is predicted for the job itself."""
    evidence = {"tried": True, "speedup_from": 1.5, "speedup_to": 1.8}
    steady(store, gpus_to=4, batch_to=512, reason="grow_idle", evidence=evidence)
    text = " ".join(" ".join(render(reports.explain(store, 7, viewer(1000), NOW))).split())
    assert (
        "Gain not known: 4 GPUs are tried while they are idle, to measure them (7: progress x1.50 -> x1.80, +20%)"
        in text
    )


def test_what_a_resize_forbade_is_not_told_after_it(story: Store, viewer: Callable[..., Any]) -> None:
    """A decision not to touch a job while it was being resized is over with that resize."""
    story.decisions.save(
        at("13:20:42"), [DecisionRow(1215, at("13:20:42"), 2, 2, 256, 256, "keep_resizing", None, None, mode="act")]
    )
    facts = reports.explain(story, 1215, viewer(1000), NOW)
    facts = replace(facts, decision=replace(facts.decision, reason="keep_resizing"))
    assert "under way" not in " ".join(render(facts))


def test_nothing_measured_is_said(store: Store, viewer: Callable[..., Any]) -> None:
    """No reports, no gain, no pause: each is said to be unknown and no number stands in for it."""
    steady(store, gpus_to=4, batch_to=512, reason="grow_idle")
    text = "\n".join(render(reports.explain(store, 7, viewer(1000), NOW)))
    assert "Gain        n/a (no size measured yet)" in text
    assert "From        no reports: nothing has been measured" in text
    assert "Cost        pause not known: this job has not been resized yet" in text


KEYS = (
    *("reports_from", "reports_to", "speedup_from", "speedup_to", "for_job", "for_gpus", "idle_gpus", "pause_s"),
    *("others", "last_report_age_s", "cooldown_until", "blocked_until", "pinned"),
)


@pytest.mark.parametrize("junk", ["junk", None, float("nan"), [1], {"junk": 1}, True])
def test_evidence_of_another_form_is_not_known(junk: object, store: Store, viewer: Callable[..., Any]) -> None:
    """A planner of another version cannot break the explanation, nor have its value printed as a number."""
    other = {"evidence": dict.fromkeys(KEYS, junk), "alternatives": [{"gpus": 1, "value": junk}, junk]}
    steady(store, gpus_to=4, batch_to=512, gain=0.5, **other)
    text = "\n".join(render(reports.explain(store, 7, viewer(1000), NOW)))
    assert "all elastic jobs together gain by it" in text
    assert "1 GPU: value n/a" in text
    assert not re.search("nan|True|None|junk", text)


def test_a_failed_order_and_a_pin_are_told(store: Store, viewer: Callable[..., Any]) -> None:
    """What went wrong last, in the words of who failed, and how to undo a pin."""
    steady(store, reason="keep_failed", evidence={"blocked_until": at("13:40:00")})
    order = store.resizes.begin(Resize(0, 7, (), (), 4, 512, "grow_idle", 60), at("13:10:00"))
    store.resizes.advance(order.id, ResizeState.FAILED, "the companion did not start within 60 s", at("13:11:00"))
    store.jobs.pin(7, 2)
    text = " ".join("\n".join(render(reports.explain(store, 7, viewer(1000), NOW))).split())
    assert f"resize {order.id} to 4 GPUs failed: the companion did not start within 60 s" in text
    assert "not tried again before 13:40:00" in text
    pinned = "pinned to 2 GPUs; to let it be resized again: selastic unpin 7"
    assert text.index(pinned) < text.index("not tried again before") and text.count(pinned) == 1


@pytest.mark.parametrize(("state", "how"), [(ResizeState.WITHDRAWN, "withdrawn"), (ResizeState.OVERTAKEN, "overtaken")])
def test_what_the_site_refused_last_is_told(
    store: Store, viewer: Callable[..., Any], state: ResizeState, how: str
) -> None:
    """A growth that was withdrawn is told with the words of whoever refused its companion."""
    steady(store, reason="keep_failed", evidence={"blocked_until": at("13:40:00")})
    order = store.resizes.begin(Resize(0, 7, (), (), 4, 512, "grow_idle", 60), at("13:10:00"))
    store.resizes.advance(order.id, state, "interactive jobs are not allowed; use sbatch", at("13:11:00"))
    text = " ".join("\n".join(render(reports.explain(store, 7, viewer(1000), NOW))).split())
    assert f"resize {order.id} to 4 GPUs was {how}: interactive jobs are not allowed; use sbatch" in text


def test_gpus_that_were_left_out_are_told(store: Store, viewer: Callable[..., Any]) -> None:
    """Where GPUs are in use that no job accounts for, an admin is told on which nodes."""
    steady(store, evidence={"unlisted": "2 on n3"})
    text = " ".join("\n".join(render(reports.explain(store, 7, viewer(1000), NOW))).split())
    assert "left out: GPUs in use by no job that Slurm lists (2 on n3)" in text


def test_what_its_weight_and_its_samples_count_is_told(store: Store, viewer: Callable[..., Any]) -> None:
    """Why a job gets less than one like it, and what it would gain by saying that it trains until a quality."""
    share = {"share_of": "account physics, user ann", "share_part": 0.375, "share_jobs": 2, "pool": "main/a100"}
    steady(store, evidence={"weight_factor": 0.707, "sample_worth": 0.4, "quality_gain": 0.62, **share})
    text = " ".join("\n".join(render(reports.explain(store, 7, viewer(1000), NOW))).split())
    assert "its weight is multiplied by 0.707 (setting shorter_first)" in text
    assert "Share account physics, user ann: 2 elastic jobs share 37.5% of the weight of main/a100" in text
    assert "a sample is worth 40% of one at the batch it began with" in text and "brings +62% at this size" in text


def test_what_the_exact_plan_would_give_is_told(store: Store, viewer: Callable[..., Any]) -> None:
    """Where a policy's planner decides otherwise than the sum of values."""
    steady(store, evidence={"exact_gpus": 6})
    text = " ".join("\n".join(render(reports.explain(store, 7, viewer(1000), NOW))).split())
    assert "the plan with the largest sum would give it 6 GPUs; the policy counts more than that" in text


def test_reports_without_a_model_are_told(store: Store, viewer: Callable[..., Any]) -> None:
    """A job whose measurements make no model keeps its size; the sentence says what is wrong with them."""
    steady(store, reason="keep_unfitted", evidence={"unfitted": "step time 1e-300 s at 4 GPUs"})
    text = " ".join("\n".join(render(reports.explain(store, 7, viewer(1000), NOW))).split())
    assert "No throughput model can be made of its reports: step time 1e-300 s at 4 GPUs." in text


def test_a_hostile_detail_cannot_steer_the_terminal(store: Store, viewer: Callable[..., Any]) -> None:
    """What a supervisor wrote is shown without its control characters, and lines stay within a terminal's width."""
    steady(store)
    order = store.resizes.begin(Resize(0, 7, (), (), 4, 512, "grow_idle", 60), at("13:10:00"))
    store.resizes.advance(order.id, ResizeState.FAILED, "\x1b[2J" + "long words " * 40, at("13:11:00"))
    lines = render(reports.explain(store, 7, viewer(1000), NOW))
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) <= 110


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("", "Its supervisor changed it without a resize from the daemon."),
        ("restart", "Its supervisor started the workers again, without a resize from the daemon."),
        ("of_tomorrow", "Reason 'of_tomorrow', which this version does not know."),
    ],
)
def test_a_change_without_a_decision_is_given_no_cause(
    code: str, said: str, store: Store, viewer: Callable[..., Any]
) -> None:
    """A restart at another size that the daemon did not order is told as such, not with an invented reason."""
    steady(store)
    store.allocations.note(7, 2, (Piece(7, "base", ("n1",), 1),), 256, at("13:05:00"), 3.0, code)
    text = "\n".join(render(reports.explain(store, 7, viewer(1000), NOW)))
    assert text.startswith("Job 7 shrank from 2 to 1 GPU at 13:05:00, batch 256 as before.\n")
    assert said in text


def test_a_cancelled_job_is_over(store: Store, viewer: Callable[..., Any]) -> None:
    """Slurm's `CANCELLED by 1000` is an end like any other."""
    steady(store)
    store.jobs.end(7, "CANCELLED by 1000", at("13:20:00"))
    first = render(reports.explain(store, 7, viewer(1000), NOW))[0]
    assert first == "Job 7 was cancelled by 1000 at 13:20:00; it trained on 2 GPUs."


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("FAILED", "Job 7 failed (its exit status was not 0) at 13:20:00"),
        ("TIMEOUT", "Job 7 reached its time limit at 13:20:00"),
        ("OUT_OF_MEMORY", "Job 7 ran out of memory at"),
        ("ENDED", "Job 7 ended (Slurm does not say how) at"),
        ("REVOKED", "Job 7 ended (REVOKED) at"),
    ],
)
def test_an_ended_job_says_how_it_ended(state: str, said: str, store: Store, viewer: Callable[..., Any]) -> None:
    """In words, for Slurm's states and for one that this version does not know."""
    steady(store)
    store.jobs.end(7, state, at("13:20:00"))
    assert render(reports.explain(store, 7, viewer(1000), NOW))[0].startswith(said)


def test_a_gain_is_told_by_when_the_job_ends(story: Store, viewer: Callable[..., Any]) -> None:
    """An hour left at half the speed: it ends half an hour later; nothing of that where what is left is unknown."""
    facts = reports.explain(story, 1215, viewer(0, admin=True), NOW)
    cause = facts.last_resize.cause
    evidence = replace(cause.evidence, samples_per_s_from=1000.0, samples_per_s_to=500.0)
    last = replace(facts.last_resize, cause=replace(cause, evidence=evidence))
    for left, said in ((3600.0, "(1215: 1000 -> 500 samples/s, -50%; ends 30 min later, 1218"), (None, "-50%, 1218")):
        job = replace(facts.job, left_s=left, samples_per_s=500.0)
        assert said in " ".join("\n".join(render(replace(facts, job=job, last_resize=last))).split())
    grown = replace(evidence, samples_per_s_from=250.0)
    last = replace(facts.last_resize, cause=replace(cause, evidence=grown))
    job = replace(facts.job, left_s=3600.0, samples_per_s=500.0)
    assert "ends 60 min sooner" in " ".join("\n".join(render(replace(facts, job=job, last_resize=last))).split())
