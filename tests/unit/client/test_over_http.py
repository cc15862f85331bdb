"""The command line against the real API over a real socket, on the story's store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from live_api import Daemon, Run

from slurm_elastic.client import options
from slurm_elastic.client.commands import status as status_command
from slurm_elastic.client.commands.status import _natural
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.rows import PredictionRow
from slurm_elastic.protocol.answers.site import Remembered
from slurm_elastic.protocol.api import routes
from slurm_elastic.protocol.api.client import Client
from slurm_elastic.protocol.errors import DaemonUnreachable, ElasticError
from slurm_elastic.protocol.messages import Probed, Tried, Unreached


def test_status_shows_my_jobs(daemon: Daemon, run: Run) -> None:
    """A user sees the own jobs, with squeue's header, in columns."""
    status, out, _ = run("status")
    header, *rows = out.splitlines()
    assert status == 0
    assert header.split() == [
        *("JOBID", "PARTITION", "NAME", "USER", "ST", "TIME", "NODES", "GPUS", "TARGET"),
        *("MIN-MAX", "BATCH", "SAMPLES/S", "SPEEDUP", "REASON"),
    ]
    assert [row.split()[0] for row in rows] == ["1207", "1215", "1221"]
    assert rows[1].split()[6:] == ["1", "2", "2", "1-8", "256", "496", "1.92", "keep_cooldown"]
    assert rows[0].split()[8] == "4*"


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        (["-a"], ["1207", "1215", "1218", "1220", "1221"]),
        (["-j", "1215,1218"], ["1215", "1218"]),
        (["-u", "alice"], ["1207", "1215", "1221"]),
        (["-u", "bob"], []),
        (["-a", "-s", "PD"], ["1218"]),
        (["-s", "running", "-A", "physics", "-r", "gpu"], ["1207", "1215", "1221"]),
        (["-A", "chemistry"], []),
        (["-a", "-t", "PD"], ["1218"]),
        (["-a", "--states", "R,PD", "--me"], ["1207", "1215", "1221"]),
        (["-a", "--sort=-GPUs,jobid"], ["1207", "1215", "1218", "1220", "1221"]),
    ],
)
def test_status_filters(words: list[str], jobs: list[str], daemon: Daemon, run: Run) -> None:
    """sacct's letters choose jobs; another user's hidden facts match no filter."""
    status, out, _ = run("status", "-nP", "-o", "jobid", *words)
    assert (status, out.split()) == (0, jobs)


def test_status_sorts_by_size_of_numbers_and_times(daemon: Daemon, run: Run) -> None:
    """Several columns, each in its own direction; what is not known comes last."""
    _, out, _ = run("status", "-anP", "-o", "gpus,jobid", "--sort=-gpus,-jobid")
    rows = [line.split("|") for line in out.split()]
    known = [(int(gpus), int(job)) for gpus, job in rows if gpus]
    assert known == sorted(known, reverse=True) and not any(gpus for gpus, _ in rows[len(known) :])
    texts = ["9:59", "10:00", "1:00:00", "2-00:00:00"]
    assert sorted(reversed(texts), key=_natural) == texts and sorted(["10", "4*", "(8)"], key=_natural)[0] == "4*"


def test_status_asks_slurm_when_waiting_jobs_start(
    daemon: Daemon, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--start: waiting jobs only, with squeue's time; N/A stays unknown; without squeue one sentence."""
    daemon.caller.viewer = Viewer(0, admin=True)
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nprintf '1218|2026-11-20T15:00:00\\n9|N/A\\n'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run("status", "--start", "-anP", "-o", "jobid,start")[1].split() == ["1218|2026-11-20T15:00:00"]
    squeue.write_text("#!/bin/sh\nexit 1\n")
    status, _, error = run("status", "--start", "-a")
    assert status == 1 and "squeue --start does not say when jobs start" in error


def test_status_again_and_again_until_ctrl_c(daemon: Daemon, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """-i: the time and the table, twice here, though selasticd is away for the second one; Ctrl-C is a clean end."""
    waited = list[float]()

    def away(_: object) -> None:
        raise DaemonUnreachable("selasticd does not answer")

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        monkeypatch.setattr(status_command, "current", away)
        if len(waited) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(options.time, "sleep", sleep)
    status, out, _ = run("status", "-i", "5", "-o", "jobid")
    assert (status, waited, out.count("JOBID")) == (0, [5.0, 5.0], 1)
    assert "selasticd does not answer" in out


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("words", [("acct", "-j", "1215"), ("events", "1215"), ("status", "-al")])
def test_tables_fit_the_terminal(
    words: tuple[str, ...], width: int, daemon: Daemon, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is longer than the terminal, and `acct` and `events` cut nothing: texts are told in several lines."""
    nodes = [f"gpu-node-{number:04}" for number in range(20)]
    daemon.store.events.add(1215, "resize_issued", "selasticd", {"nodes": nodes}, steady_now())
    wide = run(*words)[1]
    monkeypatch.setattr(options, "terminal_width", lambda: width)
    narrow = run(*words)[1]
    assert max(map(len, narrow.splitlines())) <= width < max(map(len, wide.splitlines()))
    assert "+" not in narrow or words[0] == "status"


def test_status_shows_what_stands_still(daemon: Daemon, run: Run) -> None:
    """--stalled: those jobs only, and for how long."""
    daemon.store.allocations.stall(1215, steady_now() - 3000)
    status, out, _ = run("status", "--stalled", "-nP", "-o", "jobid,samples/s,stalled")
    assert status == 0 and out.startswith("1215|0.00|50:") and out.count("\n") == 1
    _, out, _ = run("status", "--no-step", "-anP", "-o", "jobid,st")
    assert out.split() == ["1215|R", "1221|R"], "nothing speaks for the second one"


def test_root_sees_everybody_with_names(daemon: Daemon, run: Run) -> None:
    """Without -a an admin who is root sees all jobs, as with sacct."""
    daemon.caller.viewer = Viewer(0, admin=True)
    _, out, _ = run("status", "-nP", "-o", "jobid,user,st,name")
    assert "1218|bob|PD|secret" in out.splitlines()


def test_json_has_every_field(daemon: Daemon, run: Run) -> None:
    """--json gives the daemon's rows, unrounded and with null for what is not known."""
    _, out, _ = run("status", "--json")
    rows = {row["job_id"]: row for row in json.loads(out)["jobs"]}
    assert rows[1215]["speedup"] == 1.922
    assert rows[1221]["samples_per_s"] is None


def test_acct_shows_a_row_per_size(daemon: Daemon, run: Run) -> None:
    """Start, GPUs, steps, samples, GPU-hours, pause and reason of each size, underlined as by sacct."""
    fields = "jobid,state,start,elapsed,gpus,nodes,batch,steps,samples,samples/s,gpuhours,pause,reason"
    status, out, _ = run("acct", "-j", "1215", "-o", fields)
    _, rule, first, second = out.splitlines()
    assert status == 0
    assert set(rule) == {"-", " "}
    assert first.split() == [
        *("1215", "RESIZED", "2026-11-20T13:00:05", "00:20:36", "4", "2", "512"),
        *("1850", "947200", "766", "1.37", "-", "-"),
    ]
    assert second.split()[:3] == ["1215", "RUNNING", "2026-11-20T13:20:41"]
    assert second.split()[-2:] == ["0.80", "shrink_for_job"]


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        (["-S", "2026-11-20", "-E", "2026-11-20T12:00"], ["1210"]),
        (["-S", "2026-11-20T12:00", "-E", "2026-11-20T13:10"], ["1207", "1215"]),
        (["-S", "2026-11-20T09:00", "-X"], ["1207", "1210", "1215"]),
        (["-S", "2026-11-20T09:00", "-s", "CD"], ["1210"]),
        (["-S", "2026-11-20T09:00", "-u", "bob"], []),
    ],
)
def test_acct_filters_by_time_user_and_state(words: list[str], jobs: list[str], daemon: Daemon, run: Run) -> None:
    """-S and -E keep the sizes that touch that time; -X gives one row per job."""
    status, out, _ = run("acct", "-nP", "-o", "jobid", *words)
    assert (status, out.split()) == (0, jobs)


def test_acct_per_job_adds_up(daemon: Daemon, run: Run) -> None:
    """-X starts with the first size and sums steps, samples and pause over all of them."""
    _, out, _ = run("acct", "-j", "1215", "-X", "--json")
    (row,) = json.loads(out)["allocations"]
    sizes = json.loads(run("acct", "-j", "1215", "--json")[1])["allocations"]
    assert (row["start"], row["gpus"]) == (sizes[0]["start"], 2)
    for key in ("steps", "samples", "gpu_hours", "pause_s"):
        assert row[key] == pytest.approx(sum(size[key] for size in sizes), rel=1e-3)
    assert row["samples_per_s"] == pytest.approx(row["samples"] / row["elapsed_s"])


@pytest.mark.parametrize("command", ["status", "acct", "plan"])
def test_a_job_that_is_not_known_is_said(command: str, daemon: Daemon, run: Run) -> None:
    """A mistyped id ends with 1 and its sentence; with others known, after their rows and in any form."""
    status, out, err = run(command, "-j", "99")
    assert (status, out) == (1, "")
    assert err.startswith("selastic: job 99 is not known to selasticd: ")
    assert "(--comment=elastic:gpus=MIN-MAX,batch=MIN-MAX)" in err and err.endswith("(try again in a few seconds)\n")
    for form in (["-nP", "-o", "jobid"], ["--json"]):
        status, out, err = run(command, "-j", "99,1215,98", *form)
        assert (status, "1215" in out) == (1, True)
        assert err.startswith("selastic: jobs 98, 99 are not known to selasticd: ")


def test_a_job_that_is_known_without_a_row_is_no_error(daemon: Daemon, run: Run) -> None:
    """A job that has ended has a row of status when it is named; a waiting one has no size in acct, and that is fine;
    a filter that leaves a known job out is no unknown job."""
    assert run("status", "-nP", "-o", "jobid,state", "-j", "1210,1215") == (0, "1210|COMPLETED\n1215|RUNNING\n", "")
    assert run("acct", "-nP", "-j", "1218") == (0, "", "")
    assert run("plan", "-nP", "-j", "1210") == (0, "", "")
    assert run("status", "-nP", "-j", "1215", "-s", "PD") == (0, "", "")


def test_plan_as_json_has_the_rows_of_the_table(daemon: Daemon, run: Run) -> None:
    """-j, -a and the default to one's own jobs choose the same jobs in every form."""

    def jobs(*words: str) -> list[int]:
        return [row["job_id"] for row in json.loads(run("plan", "--json", *words)[1])["jobs"]]

    assert jobs() == [1207, 1215]
    assert jobs("-a") == [1207, 1215, 1218]
    assert jobs("-j", "1215") == [1215]
    assert jobs("--dry-run", "-j", "1207") == [1207]


def test_explain_events_plan_and_top(daemon: Daemon, run: Run) -> None:
    """The remaining views answer over the same socket."""
    assert run("explain", "1215")[1].startswith("Job 1215 shrank from 4 to 2 GPUs at ")
    assert json.loads(run("explain", "1215", "--json")[1])["last_resize"]["gpus_to"] == 2
    status, out, _ = run("events", "1215", "-n", "-o", "kind,who,detail")
    assert (status, out.splitlines()[1].split()) == (0, ["resize_running", "supervisor", "generation=2", "pause_s=0.8"])
    assert run("plan")[1].splitlines()[-1] == "1 of 2 running jobs to be resized"
    assert run("plan", "-a")[1].splitlines()[-1] == "1 of 2 running jobs to be resized, 1 waiting"
    assert run("plan", "--dry-run", "-nP", "-o", "jobid,from,to")[1].splitlines() == ["1207|2|4", "1215|2|2"]
    assert run("events", "0")[0] == 1 and run("events", "0")[2].endswith("shown to admins only\n")
    daemon.caller.viewer = Viewer(1000, admin=True)
    assert run("events", "0", "-n")[:2] == (0, "")
    daemon.caller.viewer = Viewer(1000)


def test_review_and_report_answer(daemon: Daemon, run: Run, tmp_path: Path) -> None:
    """Both reach the daemon, show one's own jobs, and end with 1 for a job that is not known."""
    status, out, _ = run("review", "-S", "2026-11-20", "-nP", "-o", "jobid,moves")
    assert (status, out.splitlines()) == (0, ["1207|0", "1215|0"])
    window = routes.WindowQuery(0.0, steady_now())
    assert Client().call(routes.ADVICE, query=window) == Client().call(routes.REVIEW, query=window)
    status, out, err = run("review", "-j", "99")
    assert (status, out) == (1, "") and "job 99 is not known" in err
    status, out, _ = run("report", "-S", "2026-11-20", "--page")
    assert status == 0 and out.startswith("<!DOCTYPE html>") and "resnet" in out and "secret" not in out


def test_explain_in_columns(daemon: Daemon, run: Run) -> None:
    """A script takes the explanation apart with sacct's options; without them it is the text."""
    status, out, _ = run("explain", "1215", "--parsable2", "--noheader")
    assert status == 0
    assert out.splitlines()[0].startswith("Outcome|Job 1215 shrank from 4 to 2 GPUs at ")
    assert all(line.count("|") == 1 for line in out.splitlines())
    header, first, *_ = run("explain", "1215", "--format=label%8")[1].splitlines()
    assert (header, first) == (" " * 3 + "LABEL", " Outcome")
    assert run("explain", "1215", "-p")[1].startswith("LABEL|TEXT|\n")
    assert run("explain", "1215", "-n")[1] == run("explain", "1215")[1]
    assert run("explain", "--helpformat")[1].split()[0] == "Label"


def test_predict_in_every_form(daemon: Daemon, run: Run) -> None:
    """A row for each size, below it what it is made from; a script gets the rows alone, or every field as JSON."""
    status, out, _ = run("predict", "1215")
    header, *rows = out.splitlines()
    assert status == 0
    assert header.split()[:4] == ["GPUS", "BATCH", "SAMPLES/S", "INTERVAL"]
    assert [row.split()[0] for row in rows[:8]] == [str(gpus) for gpus in range(1, 9)]
    assert rows[8].startswith("job 1215 trains on 2 GPUs at batch 256; predicted from 13 reports at 2 sizes, the rest")
    status, out, _ = run("predict", "1215", "--gpus", "2:4", "-nP", "-o", "gpus,observed,atbatch")
    assert (status, out) == (0, "2|496|256\n3||\n4|800|512\n")
    answer = json.loads(run("predict", "1215", "--gpus", "4", "--json")[1])
    assert (answer["job_id"], [size["gpus"] for size in answer["sizes"]]) == (1215, [4])
    assert run("predict", "--helpformat")[1].split()[0] == "GPUs"


def test_sbatch_says_whether_a_deadline_will_be_kept(
    daemon: Daemon, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below what sbatch says, on stderr; sbatch's exit status is ours, and where selasticd does not answer, so is that
    said. What has no deadline becomes sbatch."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "sbatch").write_text('#!/bin/sh\necho Submitted batch job 1215 of "$1"\nexit $CODE\n')
    (tmp_path / "sbatch").chmod(0o755)
    row = daemon.store.jobs.get(1215)
    assert row is not None
    daemon.store.jobs.upsert(replace(row, request=f"{row.request},deadline=now+1minute", submit_time=steady_now()))
    words = "sbatch", "--elastic=gpus=1-4,batch=64,deadline=now+1minute", "job.sh"
    monkeypatch.setenv("CODE", "0")
    status, out, error = run(*words)
    assert (status, out) == (
        0,
        "Submitted batch job 1215 of --comment=elastic:gpus=1-4,batch=64,deadline=now+1minute\n",
    )
    assert error.startswith("selastic: its deadline ")
    monkeypatch.setenv("CODE", "3")
    monkeypatch.setenv("SELASTIC_URL", "http://127.0.0.1:1")
    status, _, error = run(*words)
    assert status == 3 and error.startswith("selastic: whether its deadline and its budget will be kept is not known: ")


SBATCH = """#!/bin/sh
case "$*" in
*--test-only*--nodes=1*) echo "sbatch: Job 9 to start at $(date -d '+2 hours' +%FT%T) using 4 processors on n1" >&2;;
*) echo "allocation failure: Requested node configuration is not available" >&2; exit 1;;
esac
"""


def test_advise_asks_slurm_for_waits(daemon: Daemon, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where selasticd foretells none: what Slurm refuses is no choice, what it starts later is later. The first
    choice's lines stand below; without Slurm's commands that is said; a size that is not a number is one sentence."""
    monkeypatch.setenv("PATH", str(tmp_path))
    words = "advise", "1215", "--samples", "1000000", "--deadline", "now+10hours"
    status, out, _ = run(*words)
    assert status == 0 and "WAIT: not counted: Slurm cannot be asked here\n" in out
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    status, out, _ = run(*words)
    lines = out.splitlines()
    waits = next(
        line for line in lines if line.startswith("WAIT: by Slurm's own (sbatch --test-only); Slurm refuses main//")
    )
    assert status == 0 and waits.endswith("allocation failure: Requested node configuration is not available")
    assert lines[-4].startswith("# ") and lines[-3] == "#SBATCH --partition=main"
    assert lines[-1].startswith("#SBATCH --comment=elastic:gpus=")
    answer = json.loads(run(*words, "--json")[1])
    assert {choice["nodes"] for choice in answer["choices"]} == {1}
    assert all(7100 < choice["wait_s"] < 7300 for choice in answer["choices"])
    assert answer["choices"][0]["probability"] >= 0.95
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'allocation failure: Invalid account' >&2; exit 1\n")
    for wrong, said in (
        (words, "selastic: Slurm refuses main//"),
        (("advise",), "the following arguments are required: JOB"),
        (("advise", "x"), "'x' is not a job id"),
        ((*words[:4], "--deadline", "2001-01-01"), "--deadline 2001-01-01 has passed; accepted: a later time"),
        ((*words[:2], "--samples", "-5"), "samples=-5 is not accepted"),
        ((*words[:2], "--samples", str(10**15)), "job 1215 accepts nothing that was measured and can start"),
        ((*words[:4], "--budget", "nan"), "budget=nan is not accepted"),
        ((*words[:4], "--confidence", "100"), "confidence=100.0 is not accepted"),
        ((*words[:4], "--qos", "none"), "--qos none is not known to sacctmgr"),
    ):
        status, out, error = run(*wrong)
        assert status and not out and said in error and len(error.splitlines()) <= 2


def test_the_errors_of_predictions(daemon: Daemon, run: Run) -> None:
    """A row for each program, their sum below; nothing to show is said; a job and --errors do not go together."""
    assert run("predict", "--errors", "-n")[:2] == (0, "")
    assert run("predict", "--errors")[1].splitlines()[-1].startswith("no job was resized to a size never measured")
    said = PredictionRow(1215, 1.0, "alice:train.py", "h100", 4, 2, 512, 880.0, 0.2, 800.0)
    daemon.store.outcomes.save_predictions([said])
    status, out, _ = run("predict", "--errors", "-nP", "-o", "program,type,predictions,error,bias,covered")
    assert (status, out) == (0, "alice:train.py|h100|1|10%|+10%|100%\n")
    overall = run("predict", "--errors")[1].splitlines()[-1]
    assert overall == "1 prediction: median error 10%; intervals of 80% held 100%"
    refused = "selastic: predict takes a job or --errors; accepted: selastic predict JOB, selastic predict --errors\n"
    for words in ([], ["1215", "--errors"]):
        assert run("predict", *words)[::2] == (2, refused)


def test_hosts_are_listed_and_cleared(daemon: Daemon, run: Run) -> None:
    """A user sees the pairs that own jobs found out, with the time until when, and clears them, in any order."""
    for user in ("alice", "alice", "alice", "bob"):
        daemon.store.host_pairs.note(user, [Unreached("n2", "n3", "10.0.0.3")], steady_now())
    status, out, _ = run("hosts", "-nP", "-o", "host,other,user,address,failures")
    assert (status, out) == (0, "n2|n3|alice|n3 at 10.0.0.3|3\n")
    assert "LEFT_OUT_UNTIL" in run("hosts")[1]
    status, _, error = run("hosts", "--clear", "n2,n4")
    assert status == 1 and "nothing is known against hosts n2 and n4" in error
    assert run("hosts", "--clear", "n3,n2")[:2] == (0, "Hosts n2 and n3 may be put on one job again\n")
    assert [pair.user for pair in daemon.store.host_pairs.all()] == ["bob"]
    daemon.caller.viewer = Viewer(0, admin=True)
    status, out, _ = run("hosts", "--clear", "n3", "--json")
    assert status == 0 and [pair["user"] for pair in json.loads(out)["pairs"]] == ["bob"]
    assert daemon.woken == ["hosts"] * 2
    for wrong in ("", "n1,n1", "n1,n2,n3", "n1,"):
        assert run("hosts", "--clear", wrong)[0] == 2


def test_what_sleeps_is_told(daemon: Daemon, run: Run) -> None:
    """Each node, and in words what its sleep has brought."""
    status, out, _ = run("power", "-nP", "-o", "node,pool,state")
    assert status == 0 and out == "n1|main/a100|asleep\n"
    assert run("power")[1].splitlines()[-1] == "2.5 node-hours."
    assert json.loads(run("power", "--json")[1])["waits_s"] == [95.0]


def test_the_queue_is_foretold(daemon: Daemon, run: Run) -> None:
    """Times, bounds and what a place goes by; under the table, that nothing of it is done, and what the site lacks."""
    status, out, _ = run("queue", "-nP", "-o", "jobid,gpus,timelimit,runs,sitefactor,because")
    assert (status, out) == (0, "8|4|10:00|1:00|700|probably runs for 1 min on 4 GPUs\n")
    assert run("queue")[1].splitlines()[2:] == [
        "Nothing of this order is done: the service queue only reviews.",
        "It could not act: there is no slurmdbd.",
    ]
    assert json.loads(run("queue", "--json")[1])["jobs"][0]["end"] == 150.0


def test_pin_and_unpin(daemon: Daemon, run: Run) -> None:
    """A pin holds the size named or the one it has, reaches the store and wakes the daemon; unpin undoes it."""
    assert run("pin", "1215")[:2] == (0, "Job 1215 is pinned to 2 GPUs; to let it go: selastic unpin 1215\n")
    assert daemon.store.jobs.pinned(1215) == 2
    assert run("pin", "1215", "4", "--json")[0] == 0
    assert daemon.store.jobs.pinned(1215) == 4
    assert run("unpin", "1215")[0] == 0
    assert daemon.store.jobs.pinned(1215) is None
    assert daemon.woken == ["pin"] * 3


def test_probes_are_remembered_for_whom_they_count(daemon: Daemon, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An admin's for the site, a user's for that user's jobs; each sees the own ones and the site's."""
    tried = (Tried("salloc", "refused", "use sbatch"), Tried("sbatch", "works", "on n1", 0.5))
    daemon.caller.viewer = Viewer(0, admin=True)
    assert options.ask(Remembered, message=Probed("gpu", tried)).user == ""
    for uid in (2, 60):
        daemon.caller.viewer = Viewer(uid)
        assert options.ask(Remembered, message=Probed("gpu", tried[1:])).user == daemon.caller.viewer.name
    status, out, _ = run("probe", "--show", "-nP", "-o", "partition,user,name,outcome,seconds,said")
    assert (status, out.splitlines()) == (
        0,
        [
            "gpu||salloc|refused||use sbatch",
            "gpu||sbatch|works|0.5|on n1",
            f"gpu|{daemon.caller.viewer.name}|sbatch|works|0.5|on n1",
        ],
    )
    daemon.caller.viewer = Viewer(0, admin=True)
    assert len(run("probe", "--show", "-n")[1].splitlines()) == 4
    assert [event.kind for event in daemon.store.events.of(0)] == ["probed"] * 3
    monkeypatch.setattr(options, "clock", lambda: steady_now() + 91 * 86400)
    assert run("probe", "--show")[1].endswith(
        "older than 90 days: salloc in gpu, sbatch in gpu; probe again, or --forget\n"
    )
    assert run("probe", "--forget", "-r", "gpu")[:2] == (
        0,
        "What was found for all jobs of partition gpu is forgotten\n",
    )
    assert {line.split("|")[1] for line in run("probe", "--show", "-nP")[1].splitlines()} == {
        Viewer(2).name,
        Viewer(60).name,
    }
    for wrong in (
        Probed("p" * 256),
        Probed("gpu", tried * 30),
        Probed("gpu", (Tried("salloc", "refused", "x" * 2001),)),
    ):
        with pytest.raises(ElasticError, match="accepted: a partition's name"):
            options.ask(Remembered, message=wrong)


@pytest.mark.parametrize("words", [["--gres=gpu"], ["--gres=cpu:1"], ["--jobs=0"], ["--jobs=x"], ["--minutes=61"]])
def test_what_a_probe_may_use_is_bounded(words: list[str], run: Run) -> None:
    """Refused before Slurm is asked, with what is accepted."""
    status, _, error = run("probe", *words)
    assert status == 2 and "accepted: " in error
