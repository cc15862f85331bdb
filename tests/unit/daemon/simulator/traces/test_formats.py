"""Traces: every accepted form is read as meant, every broken row is refused with file, line and what was expected."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_elastic.daemon.cli.commands import simulate as command
from slurm_elastic.daemon.optimizer.policies import DEFAULT_POLICY
from slurm_elastic.daemon.planner.running.eligibility import cooldown_s
from slurm_elastic.daemon.selasticd import settings as daemon_settings
from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.metrics import per_job
from slurm_elastic.daemon.simulator.programs import builtin
from slurm_elastic.daemon.simulator.replay import misfit, recorded, simulate
from slurm_elastic.daemon.simulator.traces.formats import TOLD_AGAIN, TraceError, TraceJob, load, read, write
from slurm_elastic.protocol.errors import ConfigError

DEFAULTS = daemon_settings.Settings()
OWN = """job_id,submit_s,program,gpus,batch,duration_s
a,10,compute,2,64,300
b,0,balanced,1,,600
"""
SACCT = """JobID|JobName|Submit|ElapsedRaw|AllocTRES|Comment
100|train|2026-10-01T00:00:00|3600|cpu=8,gres/gpu=4,node=1|
100.batch|batch|2026-10-01T00:00:00|3600|cpu=8,gres/gpu=4,node=1|
101|train|2026-10-01T00:10:00|60|cpu=8,gres/gpu:a100=2|elastic:gpus=1-8,batch=64-512
102|cpuonly|2026-10-01T00:10:00|60|cpu=8|
103|never|2026-10-01T00:10:00|0|gres/gpu=1|
"""
PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,8,0.1,0
1,16,0.15,0
2,8,0.12,0.01
11,8,0.2,0.1
44,16,0.3,0.1
"""
VALIDATION = "progress,iteration,metric,grad_sqr,grad_var\n50,50,0,1.0,10.0\n100,100,0,0.5,20.0\n"


def test_sacct_lines_as_sites_have_them() -> None:
    """Elapsed with and without hours and days, array tasks, a MIG type; components of a heterogeneous job are one."""
    lines = """JobID|Submit|Elapsed|AllocTRES
7_1|2026-10-01T00:00:00|1-00:01:00|cpu=1,gres/gpu:2g.10gb=1
8+0|2026-10-01T00:00:00|00:05:00|cpu=1,gres/gpu=1
8+1|2026-10-01T00:00:00|00:05:00|cpu=1,gres/gpu=2
9|2026-10-01T00:00:00|05:00.123|cpu=1,gres/gpu=2
"""
    figures = [(r.job_id, r.gpus, r.duration_s) for r in read(lines)]
    assert figures == [("7_1", 1, 86460.0), ("8", 3, 300.0), ("9", 2, 300.0)]


MONTH = """JobID|JobName|State|Submit|Eligible|Start|ElapsedRaw|AllocTRES|Comment
1|"quoted|COMPLETED|2026-10-01T00:00:00|2026-10-01T00:00:00|2026-10-01T00:00:10|60|gres/gpu=2|
2|a|b|CANCELLED by 123|2026-10-01T00:01:00|2026-10-01T00:05:00|2026-10-01T00:05:30|60|gres/gpu:a100=1,gres/gpu=1|
12+0|het|COMPLETED|2026-10-01T00:00:00|2026-10-01T00:00:00|2026-10-01T00:00:00|9|gres/gpu=1|
3|x|RUNNING|2026-10-01T00:02:00|2026-10-01T00:02:00|2026-10-01T00:02:00|60|gres/gpu=1|two
lines
12+1|het|COMPLETED|2026-10-01T00:00:00|2026-10-01T00:00:00|2026-10-01T00:00:00|9|gres/gpu=2|
4|cpu|COMPLETED|2026-10-01T00:00:00|2026-10-01T00:00:00|2026-10-01T00:00:00|60|cpu=1|
5|no|CANCELLED by 0|2026-10-01T00:00:00|2026-10-01T00:00:00|None|0|gres/gpu=1|
1|again|COMPLETED|2026-10-01T00:09:00|2026-10-01T00:09:00|2026-10-01T00:09:00|60|gres/gpu=2|
"""


def test_a_month_of_a_site_as_sacct_prints_it() -> None:
    """Names with quotes and bars, comments with line breaks, components apart, a job told twice; it waits from when it
    might start; what is left out or taken for something else is said."""
    found = load(MONTH)
    figures = {job.job_id: (job.gpus, job.submit_s, job.wait_s) for job in found.jobs}
    assert figures == {"1": (2, 0.0, 10.0), "12": (3, 0.0, 0.0), "3": (1, 120.0, 0.0), "2": (1, 300.0, 30.0),
                       "1#2": (2, 540.0, 0.0)}  # fmt: skip
    assert {job.job_id: job.program for job in found.jobs}["2"] == "a|b"
    said = "; ".join(found.notes)
    for words in ("1 jobs that held no GPU", "1 jobs that never ran", "1 still ran", "1 CANCELLED", "2026-10-01 00:09"):
        assert words in said


def test_what_is_no_dump_of_sacct_is_told_how_to_make_one() -> None:
    """No header, columns that are missing, lines cut into columns, a month without a GPU."""
    for text, words in (
        (MONTH.partition("\n")[2], "no header line; expected one, from sacct without --noheader: sacct -a -X -P"),
        ("JobID|Submit\n1|2026-10-01T00:00:00\n", "not all columns .* are there; expected: sacct -a -X -P"),
        ("JobID   JobName\n-----\n", "not all columns"),
        ("JobID|Submit|ElapsedRaw|AllocTRES\n1|2026-10-01T00:00:00|9|cpu=1\n", "1 jobs that held no GPU.*AccountingSt"),
        ('{"jobs": 7}', "not what sacct --json prints; expected an object with `jobs`"),
        ('{"jobs": [{"job_id": 7}]}', r"jobs\[0\]: not as sacct --json prints a job \(KeyError: 'time'\)"),
    ):
        with pytest.raises(TraceError, match=words):
            read(text)


def test_sacct_as_json_is_what_its_lines_are() -> None:
    """Numbers as 22.05 writes them and as later releases do; array tasks, components, the job's own comment."""
    tres = {"allocated": [{"type": "cpu", "name": None, "count": 1}, {"type": "gres", "name": "gpu", "count": 2}]}
    old = {"submission": 1795336283, "eligible": 1795336290, "start": 1795336300, "elapsed": 5}
    new = {key: {"set": True, "infinite": False, "number": value} for key, value in old.items()}
    task = {"job_id": {"set": False, "number": 0}, "job_offset": 0}
    jobs = [
        {"job_id": 9, "name": "t", "array": {"job_id": 8, "task_id": 5}, "het": {"job_id": 0, "job_offset": None},
         "time": old, "state": {"current": "COMPLETED"}, "tres": tres,
         "comment": {"job": "elastic:gpus=1-8,batch=64-512"}},
        {"job_id": 12, "name": "h", "array": {"job_id": 0}, "het": {"job_id": 12, "job_offset": 0}, "time": old,
         "state": {"current": "COMPLETED"}, "tres": tres},
        {"job_id": 13, "name": "h", "array": {"job_id": 0}, "het": {"job_id": 12, "job_offset": 1}, "time": old,
         "state": {"current": ["CANCELLED"]}, "tres": tres},
        {"job_id": 20, "name": "n", "array": {"job_id": 0}, "het": task, "time": new,
         "state": {"current": ["COMPLETED"]}, "tres": tres},
    ]  # fmt: skip
    rows = read(json.dumps({"jobs": jobs}))
    assert [(r.job_id, r.gpus, r.duration_s, r.wait_s, r.max_gpus) for r in rows] == [
        ("8_5", 2, 5.0, 10.0, 8), ("12", 4, 5.0, 10.0, 0), ("20", 2, 5.0, 10.0, 0)]  # fmt: skip


def test_whose_a_job_is_comes_with_it() -> None:
    """User and account in lines and JSON of sacct and in our own format; what does not say it is nobody's."""
    lines = "JobID|User|Account|Submit|ElapsedRaw|AllocTRES\n1|ann|lab|2026-10-01T00:00:00|9|gres/gpu=1\n"
    tres = {"allocated": [{"type": "gres", "name": "gpu", "count": 2}]}
    job = {"job_id": 9, "user": "bob", "account": "opt", "state": {"current": "COMPLETED"},
           "time": {"submission": 1795336283, "elapsed": 5}, "tres": tres}  # fmt: skip
    own = "job_id,submit_s,program,gpus,duration_s,user,account\n1,0,compute,1,9,cyd,lab\n"
    found = [read(text)[0] for text in (lines, json.dumps({"jobs": [job]}), own, OWN)]
    assert [(row.user, row.account) for row in found] == [("ann", "lab"), ("bob", "opt"), ("cyd", "lab"), ("", "")]


def test_fairness_is_told_where_the_trace_says_whose_jobs_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three more columns with their meaning, and between whom it was; nothing of that for nobody's jobs."""
    rows = "".join(f"{i},0,compute,2,64,900,{who}\n" for i, who in enumerate(("ann", "bob", "bob")))
    path = tmp_path / "jobs.csv"
    path.write_text(f"job_id,submit_s,program,gpus,batch,duration_s,user\n{rows}")
    assert command.run(arguments(str(path), "--cluster", "4x4", "--policy", "auto", "--fairness", "user")) == 0
    out = capsys.readouterr().out
    assert "JAIN" in out and "WORST-RHO" in out and "RHO: time" in out
    assert "fair between users (--fairness); the jobs are those of 2 users" in " ".join(out.split())
    path.write_text(OWN)
    assert command.run(arguments(str(path), "--cluster", "4x4", "--policy", "auto")) == 0
    assert "JAIN" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("gpus", "apart_s", "cell"), [(1, 100, "half-one"), (4, 100, "full-tuned"), (4, 50, "double-tuned")]
)
def test_the_cell_that_a_trace_resembles_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gpus: int, apart_s: int, cell: str
) -> None:
    """By the GPU time that the jobs had, of all that there was while they came, and by what the middle one asks for."""
    rows = "".join(f"{i},{i * apart_s},compute,{gpus},64,300\n" for i in range(9))
    path = tmp_path / "jobs.csv"
    path.write_text(f"job_id,submit_s,program,gpus,batch,duration_s\n{rows}")
    assert command.run(arguments(str(path), "--cluster", "1x6", "--policy", "static")) == 0
    assert f"this trace is most like the cell {cell}: " in " ".join(capsys.readouterr().out.split())


def test_what_happened_stands_beside_what_would_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trace's own start times are a row; a cluster smaller than what was held at once, and that no job is elastic,
    is said before anything else; times read like sacct's."""
    trace = tmp_path / "t.txt"
    trace.write_bytes(MONTH.encode("utf-16"))
    assert command.run(arguments(str(trace), "--cluster", "1x2", "--policy", "auto")) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[3].split()[:4] == ["recorded", "5", "00:00:08", "00:00:57"]
    assert (
        told.startswith("THIS CLUSTER, OF 2 GPUs, DOES NOT LOOK LIKE THAT OF THE JOBS: 1 of the jobs")
        and "NO JOB IS ELASTIC" in told
    )
    own = (cooldown_s(most, 30.0, DEFAULTS) for most in (DEFAULTS.cooldown_grow_s, DEFAULTS.cooldown_shrink_s))
    assert "{:g} s before a grow, {:g} s before a shrink".format(*own) in " ".join(told.split())
    assert "DROPPED" not in told and "INWINDOW" not in told
    assert recorded(read(OWN), SimulationSettings(4)) is None, "nobody wrote down when they started"


def test_nothing_is_assumed_of_a_job_that_is_not_said() -> None:
    """A rigid job that cannot run is left out and counted; one made elastic has bounds, and the notes tell them; with a
    batch that its GPUs cannot share it still takes as long as it took."""
    rows = [TraceJob("a", 0.0, "x", 8, duration_s=100.0), TraceJob("b", 0.0, "x", 2, duration_s=100.0)]
    outcome, notes = simulate(rows, builtin(), "static", SimulationSettings(4))
    assert [job.trace.job_id for job in outcome.jobs] == ["b"] and any(
        "1 job, larger than the cluster" in n for n in notes
    )
    outcome, notes = simulate(rows, builtin(), "auto", SimulationSettings(64, stretch=2.0), "balanced")
    assert [(job.sizes[0][0], job.sizes[-1][0]) for job in outcome.jobs] == [(4, 16), (1, 4)]
    assert [job.batches(job.asked)[-1] for job in outcome.jobs] == [512, 128]
    assert any("2 jobs, without an elastic request: taken to accept 1/2 to 2 times the GPUs" in note for note in notes)
    small = TraceJob("c", 0.0, "balanced", 16, 32, duration_s=1000.0)
    outcome, _ = simulate([small], builtin(), "static", SimulationSettings(16))
    assert outcome.jobs[0].end_s == pytest.approx(1000.0)


def test_a_job_of_unknown_length_is_refused() -> None:
    """A trace that names a program and no run time needs that program; nothing is made up."""
    trace = "job_id,submit_s,program,gpus,batch\ncifar10-0,107,cifar10,6,2048\n"
    for declared in ("", "balanced"):
        with pytest.raises(TraceError, match=r"job cifar10-0: the trace has no run time .* 'cifar10' is not known"):
            simulate(read(trace), builtin(), "static", SimulationSettings(64), declared)


@pytest.mark.parametrize("until", ["epochs", "quality"])
def test_without_elasticity_jobs_take_as_long_as_they_took(until: str) -> None:
    """sacct records no batch: what is compared with has to be what happened, whatever is assumed."""
    lines = """JobID|Submit|ElapsedRaw|AllocTRES|Comment
101|2026-10-01T00:00:00|36000|gres/gpu=8|
102|2026-10-01T00:00:00|7200|gres/gpu=4|elastic:gpus=2-16,batch=256-4096
103|2026-10-01T00:00:00|900|gres/gpu=3|elastic:gpus=1-4,batch=48-96
"""
    outcome, _ = simulate(read(lines), builtin(), "static", SimulationSettings(16, until=until), "balanced")
    took = {job.job_id: job.completion_s for job in per_job(outcome)}
    assert took == pytest.approx({"101": 36000.0, "102": 7200.0, "103": 900.0}, rel=1e-3)


def test_own_format_is_sorted_and_starts_at_zero() -> None:
    """Rows come out by submit time; missing optional cells are zero."""
    rows = read(OWN)
    assert [r.job_id for r in rows] == ["b", "a"]
    assert rows[1] == TraceJob("a", 10.0, "compute", 2, 64, duration_s=300.0)


def test_own_format_round_trips() -> None:
    """What `write` writes, `read` gives back."""
    rows = read(OWN)
    assert read(write(rows)) == rows


def test_sacct_output() -> None:
    """GPU jobs that ran are kept, steps and others left out, the elastic request in the comment is honoured."""
    rows = read(SACCT)
    figures = [(r.job_id, r.gpus, r.submit_s, r.duration_s) for r in rows]
    assert figures == [("100", 4, 0.0, 3600.0), ("101", 2, 600.0, 60.0)]
    assert (rows[1].min_gpus, rows[1].max_gpus, rows[1].min_batch, rows[1].max_batch) == (1, 8, 64, 512)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"x\.csv:1: empty"),
        ("a,b\n1,2\n", r"x\.csv:1: header 'a,b' is of no known trace; accepted: .*sacct"),
        (OWN + "c,1,compute\n", r"x\.csv:4: 3 columns; expected 6"),
        (OWN + "c,now,compute,1,64,1\n", r"x\.csv:4: submit_s is 'now'; expected a number of 0 or more"),
        (OWN + "c,1,compute,0,64,1\n", r"x\.csv:4: gpus is '0'; expected a number of 1 or more"),
        (OWN + "c,1,compute,nan,64,1\n", r"x\.csv:4: gpus is 'nan'"),
        (OWN.replace("duration_s", "until"), r"x\.csv:2: until is '300'; expected epochs or quality, or nothing"),
        (
            SACCT.partition("100|")[0] + "104|x|yesterday|60|gres/gpu=1|\n",
            r"x\.csv: no jobs in it: 1 \(x\.csv:2: Submit is 'yesterday'; expected a time like [-0-9T:]+\) that cannot",
        ),
        ("job_id,submit_s,program,gpus\n", r"x\.csv: no jobs"),
    ],
)
def test_broken_rows_are_refused_with_their_line(text: str, words: str) -> None:
    """The message names file, line, the value and what was expected."""
    with pytest.raises(TraceError, match=words):
        read(text, "x.csv")


@pytest.mark.parametrize(
    ("row", "jobs", "note"),
    [
        ("9|t|2026-10-01T00:10:00|60|gres/gpu=1|elastic:gpus=8-2", 3, "1 (9) with an elastic request"),
        ("9|t|2026-10-01T00:10:00|60|gres/gpu=1|elastic:gpus=9-1,batch=1-2", 3, "taken to be rigid"),
        ("9|t|Unknown|60|gres/gpu=1|", 2, "1 jobs without a time of submission, left out"),
        ("9|t|1970-01-01T01:00:00|60|gres/gpu=1|", 2, "1 jobs without a time of submission, left out"),
        ("9|t|yesterday|60|gres/gpu=1|", 2, "1 (x.csv:7: Submit is 'yesterday'; expected a time"),
        ("9|t|2026-10-01T00:10:00|-60|gres/gpu=1|", 2, "1 (x.csv:7: ElapsedRaw is '-60'"),
        ("9|t|2026-10-01T00:10:00|60|gres", 2, "1 (x.csv:7: 5 columns; expected 6"),
        ("9.batch||2026-10-01T00:10:00|60|gres/gpu=1|", 2, ""),
        ("\n".join(f"{i}|t|x|6|gres/gpu=1|" for i in range(9)), 2, "2026-11-20T13:20:41, ...) that cannot be read"),
    ],
)  # fmt: skip
def test_one_odd_row_of_sacct_leaves_the_others(row: str, jobs: int, note: str) -> None:
    """What users or the database have made odd is left out, or taken for a rigid job; the notes count and name it."""
    found = load(SACCT + row + "\n", "x.csv")
    assert len(found.jobs) == jobs
    assert note in "; ".join(found.notes), found.notes
    assert not any(said.startswith("0 ") or said.startswith(", ") for said in found.notes)
    assert len(found.notes) == 3 + bool(note)


def test_one_odd_job_of_json_leaves_the_others() -> None:
    """Without times, or without a state."""
    job = {"job_id": 9, "state": {"current": ["COMPLETED"]}, "time": {"submission": 1795336283, "elapsed": 5},
           "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 2}]}}  # fmt: skip
    odd = [{"job_id": 7}, {**job, "job_id": 8, "state": {"current": []}}]
    found = load(json.dumps({"jobs": [*odd, job]}))
    assert [row.job_id for row in found.jobs] == ["9"]
    assert "2 (trace: jobs[0]: not as sacct --json prints a job (KeyError: 'time'), trace: jobs[1]" in found.notes[0]


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


def test_the_command_prints_a_table_json_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`selastic simulate` gives the same figures in all three forms."""
    trace, html = tmp_path / "t.csv", tmp_path / "out.html"
    trace.write_text(OWN)
    assert (
        command.run(arguments(str(trace), "--cluster", "2x4", "--policy", "static,throughput", "--html", str(html)))
        == 0
    )
    out = capsys.readouterr().out
    assert "static" in out and "assumed class" in out
    assert "<svg" in html.read_text()
    assert command.run(arguments(str(trace), "--cluster", "2x4", "--policy", "static,throughput", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert [p["policy"] for p in document["policies"]] == ["static", "throughput"]
    assert document["policies"][0]["completed"] == 2
    assert len(document["policies"][0]["per_job"]) == 2


def test_every_job_is_shown_under_every_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--jobs: a row for each job and policy, those of one job together."""
    trace = tmp_path / "t.csv"
    trace.write_text(OWN)
    assert command.run(arguments(str(trace), "--cluster", "2x4", "--policy", "static,throughput", "--jobs")) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("JobID"))
    rows = [line.split() for line in lines[head + 2 :]]
    assert [row[2] for row in rows] == ["static", "throughput"] * 2
    assert rows[0][0] == rows[1][0] != rows[2][0] == rows[3][0]


def test_the_policies_compared_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --policy the daemon's default is compared with what Slurm does and with the paper's two."""
    trace = tmp_path / "t.csv"
    trace.write_text(OWN)
    assert command.run(arguments(str(trace), "--cluster", "2x4", "--json")) == 0
    shown = [p["policy"] for p in json.loads(capsys.readouterr().out)["policies"]]
    assert shown == ["backfill", "fixed-batch", "throughput", DEFAULT_POLICY]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluster", "16"], "--cluster 16: expected NODESxGPUS"),
        (["--policy", "magic"], "--policy magic: accepted: auto, throughput"),
        (["--assume", "magic"], "--assume magic: accepted: balanced"),
        (["--horizon", "0"], "--horizon 0.0"),
        (["--pause", "-1"], "--pause -1.0"),
        (["--stretch", "0.5"], "--stretch 0.5: expected a number from 1 to 1024"),
        (["--html", "/nonexistent/x.html"], "--html /nonexistent/x.html cannot be written"),
    ],
)
def test_wrong_options_are_explained(words: list[str], message: str, tmp_path: Path) -> None:
    """A wrong option names itself, its value and what is accepted."""
    trace = tmp_path / "t.csv"
    trace.write_text(OWN)
    with pytest.raises(ConfigError, match=message):
        command.run(arguments(str(trace), *words))


def test_a_missing_trace_is_explained(tmp_path: Path) -> None:
    """A file that is not there is an error in words."""
    with pytest.raises(ConfigError, match=r"none\.csv cannot be read \(No such file or directory\)"):
        command.run(arguments(str(tmp_path / "none.csv")))


def test_months_put_together_tell_each_run_once() -> None:
    """A second header, with other columns; a job and a component of one that ran over the end of the month are told
    twice, the second time as longer; two runs of a requeued job are two; the same of --json."""
    first = """JobID|Submit|Start|ElapsedRaw|AllocTRES
1|2026-10-31T23:00:00|2026-10-31T23:00:00|3600|gres/gpu=2
2+0|2026-10-31T23:00:00|2026-10-31T23:10:00|3000|gres/gpu=1
2+1|2026-10-31T23:00:00|2026-10-31T23:10:00|3000|gres/gpu=4
3|2026-10-31T23:00:00|2026-10-31T23:00:00|60|gres/gpu=1
3|2026-10-31T23:05:00|2026-10-31T23:06:00|60|gres/gpu=1
"""
    second = """JobID|AllocTRES|Submit|Start|ElapsedRaw|Comment
1|gres/gpu=2|2026-10-31T23:00:00|2026-10-31T23:00:00|7200|
2+0|gres/gpu=1|2026-10-31T23:00:00|2026-10-31T23:10:00|6600|
2+1|gres/gpu=4|2026-10-31T23:00:00|2026-10-31T23:10:00|6600|
4|gres/gpu=1|2026-11-01T00:00:00|2026-11-01T00:00:00|60|
"""
    found = load(first + second)
    figures = {job.job_id: (job.gpus, job.duration_s) for job in found.jobs}
    assert figures == {"1": (2, 7200.0), "2": (5, 6600.0), "3": (1, 60.0), "3#2": (1, 60.0), "4": (1, 60.0)}
    assert f"3 {TOLD_AGAIN}, left out" in found.notes
    job = {"job_id": 9, "state": {"current": ["COMPLETED"]}, "time": {"submission": 1795336283, "elapsed": 5},
           "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 2}]}}  # fmt: skip
    assert len(read(json.dumps({"jobs": [job]}) + "\n" + json.dumps({"jobs": [job, {**job, "job_id": 8}]}))) == 2


@pytest.mark.parametrize("shown", ["2026-10-01T02:00:30+0200", "2026-09-30T19:30:30-04:30", "2026-10-01T00:00:30Z"])
def test_times_may_have_an_offset(shown: str) -> None:
    """SLURM_TIME_FORMAT=%FT%T%z: times of clusters of several zones, and of an hour that comes twice, are in order."""
    lines = f"JobID|Submit|ElapsedRaw|AllocTRES\n1|2026-10-01T00:00:00+00:00|9|gres/gpu=1\n2|{shown}|9|gres/gpu=1\n"
    assert [(job.job_id, job.submit_s) for job in read(lines)] == [("1", 0.0), ("2", 30.0)]


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        (2, "1 of the jobs held more GPUs"),
        (5, "the jobs held 6 GPUs at once at most, as recorded"),
        (6, ""),
        (12, ""),
        (16, "the jobs held 6 GPUs at once at most"),
    ],
)
def test_jobs_that_look_like_those_of_another_cluster(gpus: int, why: str) -> None:
    """Too large ones, more or far less held at once than there is; a job takes at once what another one gives back."""
    jobs = [
        TraceJob(name, at, "x", size, duration_s=100.0, wait_s=5.0)
        for name, at, size in (("a", 0.0, 2), ("b", 50.0, 4), ("c", 150.0, 2))
    ]
    said = misfit(jobs, SimulationSettings(gpus))
    assert (why in said and f"OF {gpus} GPUs" in said) if why else said == ""
    unknown = [replace(job, wait_s=-1.0) for job in jobs]
    assert bool(misfit(unknown, SimulationSettings(gpus))) == (gpus < 4), "who does not know when says nothing of it"


def test_policies_in_processes_of_their_own_come_to_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Side by side as one after the other; what a policy cannot simulate is the command's error."""
    trace = tmp_path / "t.csv"
    trace.write_text(OWN)
    shown = []
    for cores in ({0}, {0, 1, 2}):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
        words = (str(trace), "--cluster", "2x4", "--policy", "backfill,throughput,auto", "--json")
        assert command.run(arguments(*words)) == 0
        shown.append(capsys.readouterr().out)
        missing = tmp_path / "missing.csv"
        missing.write_text("job_id,submit_s,program,gpus,batch\na,1,cifar10,6,2048\n")
        with pytest.raises(TraceError, match="no run time"):
            command.run(arguments(str(missing), "--policy", "backfill,auto"))
    assert shown[0] == shown[1]
