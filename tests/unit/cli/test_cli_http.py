"""The command line against the real API over a real socket, on the story's store."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomllib
import uvicorn

from slurm_elastic.daemon import cli, reports
from slurm_elastic.daemon.api import create_app
from slurm_elastic.daemon.auth import Viewer
from slurm_elastic.daemon.settings import Settings
from slurm_elastic.db.store import Store
from slurm_elastic.trainer_shim import munge
from slurm_elastic.trainer_shim.errors import DaemonUnreachable
from slurm_elastic.trainer_shim.secret_proof import Verifier

SELASTIC = [sys.executable, "-m", "slurm_elastic.daemon.cli"]


@dataclass
class StoredController:
    """The daemon's part of the API, as far as the command line reaches: what the store knows, and that it was woken."""

    store: Store
    woken: list[str]

    def owner(self, job_id: int) -> tuple[int, str] | None:
        job = self.store.job(job_id)
        return None if job is None or job.end_time is not None else (job.uid, job.user)

    def dry_plan(self) -> dict[str, Any]:
        return reports.plan(self.store, Viewer(0, admin=True))

    def prior(self, job_id: int) -> None:
        return None

    def wake(self, why: str) -> None:
        self.woken.append(why)

    def health(self) -> dict[str, Any]:
        return {"models": {"prior": "9 earlier runs of this cluster", "runs": 9, "programs": 2, "learned_at": 0.0}}


class Caller:
    """Says that every request comes from this user."""

    def __init__(self) -> None:
        self.viewer = Viewer(1000)
        self.proofs = Verifier("of-the-test")

    def who(self, authorization: str | None, method: str, target: str, body: bytes) -> Viewer:
        scheme, _, proof = (authorization or "").partition(" ")
        assert scheme == "Secret"
        self.proofs.check(proof, munge.bind(method, target, body))
        return self.viewer


@dataclass
class Daemon:
    """A served API: whom it takes the caller for, what it was told, and where it is."""

    caller: Caller
    store: Store
    woken: list[str]
    client_conf: Path


@pytest.fixture
def daemon(story: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """The real API in a thread, found by the command line through its client file."""
    caller, woken = Caller(), []  # type: ignore[var-annotated]
    app = create_app(story, StoredController(story, woken), Settings(), caller)  # type: ignore[arg-type]
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    conf = tmp_path / "client.json"
    conf.write_text(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}", "secret": "of-the-test"}))
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(conf))
    # The listening socket is open: a request that comes before the server's first turn waits for it.
    monkeypatch.setattr("os.geteuid", lambda: caller.viewer.uid)
    yield Daemon(caller, story, woken, conf)
    server.should_exit = True
    thread.join(30)
    listener.close()
    assert not thread.is_alive()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process: exit status, output, errors."""

    def command(*words: str) -> tuple[int, str, str]:
        try:
            status = cli.main(words)
        except SystemExit as ended:
            status = int(ended.code or 0)
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return command


Run = Callable[..., tuple[int, str, str]]


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
    ],
)
def test_status_filters(words: list[str], jobs: list[str], daemon: Daemon, run: Run) -> None:
    """sacct's letters choose jobs; another user's hidden facts match no filter."""
    status, out, _ = run("status", "-nP", "-o", "jobid", *words)
    assert (status, out.split()) == (0, jobs)


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
    assert "(--comment=elastic:gpus=MIN-MAX,batch=MIN-MAX)" in err and err.endswith("or it came after the last round\n")
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
    assert (status, out.splitlines()[1].split()) == (0, ["running", "supervisor", "generation=2", "pause_s=0.8"])
    assert run("plan")[1].splitlines()[-1] == "1 of 2 running jobs to be resized"
    assert run("plan", "-a")[1].splitlines()[-1] == "1 of 2 running jobs to be resized, 1 waiting"
    assert run("plan", "--dry-run", "-nP", "-o", "jobid,from,to")[1].splitlines() == ["1207|2|4", "1215|2|2"]
    top = run("top", "--once")[1].splitlines()
    assert "3 running on 4 GPUs, 0 waiting, 1 resizing" in top[0]
    assert top[2].split()[0] == "JOBID"
    over = run("top", "--once", "-j", "1210")[1].splitlines()
    assert over[-1].split()[:5] == ["1210", "gpu", "old", "alice", "CD"]
    status, out, err = run("top", "-j", "99")
    assert (status, out) == (1, "") and "job 99 is not known to selasticd" in err


def test_advise_and_report_answer(daemon: Daemon, run: Run, tmp_path: Path) -> None:
    """Both reach the daemon, show one's own jobs, and end with 1 for a job that is not known."""
    status, out, _ = run("advise", "-S", "2026-11-20", "-nP", "-o", "jobid,moves")
    assert (status, out.splitlines()) == (0, ["1207|0", "1215|0"])
    status, out, err = run("advise", "-j", "99")
    assert (status, out) == (1, "") and "job 99 is not known" in err
    status, out, _ = run("report", "-S", "2026-11-20")
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


def test_pin_and_unpin(daemon: Daemon, run: Run) -> None:
    """A pin holds the size named or the one it has, reaches the store and wakes the daemon; unpin undoes it."""
    assert run("pin", "1215")[:2] == (0, "Job 1215 is pinned to 2 GPUs; to let it go: selastic unpin 1215\n")
    assert daemon.store.pinned(1215) == 2
    assert run("pin", "1215", "4", "--json")[0] == 0
    assert daemon.store.pinned(1215) == 4
    assert run("unpin", "1215")[0] == 0
    assert daemon.store.pinned(1215) is None
    assert daemon.woken == ["pin"] * 3


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["explain", "99"], 1, "job 99 is not known"),
        (["explain", "1218"], 1, "job 1218 belongs to another user"),
        (["events", "1218"], 1, "job 1218 belongs to another user"),
        (["pin", "1218", "2"], 1, "job 1218 belongs to another user"),
        (["pin", "1215", "99"], 1, "gpus=99 is not a size that the job accepts"),
        (["pin", "1210"], 1, "job 1210 has ended"),
        (["pin", "1221"], 1, "name one: selastic pin 1221 GPUS"),
        (["status", "-o", "jobid,bogus"], 2, "unknown field 'bogus'"),
        (["status", "--json", "-o", "jobid"], 2, "--format does not go with --json"),
        (["acct", "-S", "whenever"], 2, "time 'whenever' is not one of Slurm's forms"),
        (["status", "-s", "ASLEEP"], 2, "unknown state 'ASLEEP'"),
        (["explain", "twelve"], 2, "'twelve' is not a job id"),
        (["status", "-p", "--json"], 2, "not allowed with argument"),
        (["frobnicate"], 2, "there is no command 'frobnicate'; accepted: status, acct,"),
        (["statsu"], 2, "(did you mean status?)"),
        (["sandbox", "dwon"], 2, "(did you mean down?); accepted: up, down, status\n"),
        (["acct", "-j", "abc"], 2, "selastic acct: argument -j/--jobs: 'abc' is not a job id"),
        (["acct", "-S", "2026-11-21", "-E", "2026-11-20"], 2, "lies after --endtime 2026-11-20T00:00:00"),
        (["advise", "-E", "now-2days"], 2, "lies after --endtime"),
        (["report", "-S", "now", "-E", "now-1hour"], 2, "lies after --endtime"),
        ([], 2, "status    what every job has now"),
    ],
)
def test_what_goes_wrong_has_a_status_and_a_sentence(
    words: list[str], status: int, said: str, daemon: Daemon, run: Run
) -> None:
    """1: not found or refused, 2: wrong usage; the reason is on stderr, and nothing on stdout."""
    ended, out, err = run(*words)
    assert (ended, out) == (status, "")
    assert said in err
    assert "Traceback" not in err


def test_a_page_is_not_written_to_a_terminal(daemon: Daemon, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`selastic report` typed by itself says where the page can go; into a pipe it goes as ever."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    status, out, err = run("report", "-a")
    assert (status, out) == (2, "") and "accepted: --html FILE" in err
    assert run("report", "-a", "--json")[0] == 0


def test_no_daemon_is_status_3(daemon: Daemon, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that does not listen, or of which nothing is known, is told apart from a refusal."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    conf = tmp_path / "dead.json"
    conf.write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "secret": "x"}))
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(conf))
    status, out, err = run("status")
    assert (status, out) == (3, "")
    assert f"selasticd at http://127.0.0.1:{port} does not answer" in err
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(tmp_path / "absent.json"))
    status, _, err = run("explain", "1215")
    assert status == 3
    assert err.endswith("gives its address; start `selasticd --user`, or ask your admin\n")


def test_no_munged_is_status_3(daemon: Daemon, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can prove who asks, the daemon is out of reach: that is no refusal."""
    where = json.loads(daemon.client_conf.read_text())
    conf, slurm_conf = tmp_path / "site.json", tmp_path / "slurm.conf"
    conf.write_text(json.dumps({"url": where["url"]}))
    slurm_conf.write_text(f"AuthInfo=socket={tmp_path}/no-munged\n")
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(conf))
    monkeypatch.setenv("SLURM_CONF", str(slurm_conf))
    status, out, err = run("status")
    assert (status, out) == (3, "")
    assert "MUNGE" in err


def test_usage_errors_come_before_the_daemon_is_asked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong option is wrong usage even while the daemon is away."""
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(tmp_path / "absent.json"))
    for words in (["status", "-o", "x"], ["acct", "-S", "x"], ["plan", "-o", "x"], ["events", "1", "-o", "x"]):
        assert run(*words)[0] == 2, words


def test_a_closed_pipe_is_silent(daemon: Daemon) -> None:
    """`| head` ends the command without a word, whatever was left to print."""
    environment = os.environ | {"PYTHONPATH": "packaging/namespace"}
    command = [*SELASTIC, "status", "-a", "--json"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()  # the reader is gone before the first byte
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")


def test_top_says_that_the_daemon_is_away_and_goes_on(
    daemon: Daemon, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A restart of the daemon does not end a running top; Ctrl-C is its clean end."""
    from slurm_elastic.daemon import cli_top

    answers = iter([DaemonUnreachable("selasticd does not answer"), None])
    real = cli_top._rows

    def rows(args: Any) -> Any:
        error = next(answers, KeyboardInterrupt())
        if error is not None:
            raise error
        return real(args)

    monkeypatch.setattr(cli_top, "_rows", rows)
    status, out, _ = run("top", "-d", "0.2")
    assert status == 0
    assert out.index("selasticd does not answer") < out.index("3 running on 4 GPUs")


def test_config_show_tells_what_the_models_start_from(daemon: Daemon, run: Run, tmp_path: Path) -> None:
    """The settings stay a file that can be read back; what the running daemon has learned follows as a comment."""
    file = tmp_path / "selasticd.toml"
    file.write_text('mode = "advise"\n')
    status, out, _ = run("config", "show", str(file))
    assert status == 0
    assert tomllib.loads(out)["mode"] == "advise"
    assert out.splitlines()[-1].startswith("# selasticd at http://127.0.0.1:")
    assert "from 9 earlier runs of this cluster; programs with one of their own: 2." in out


def test_config_show_needs_no_daemon(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no daemon answers, the settings are shown, and how one would talk to Slurm."""
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(tmp_path / "none.json"))
    file = tmp_path / "selasticd.toml"
    file.write_text('slurm_client = "commands"\n')
    status, out, _ = run("config", "show", str(file))
    assert status == 0
    told = [line for line in out.splitlines() if line.startswith("#")]
    assert told == [
        '# selasticd with these settings talks to Slurm through Slurm\'s commands, as slurm_client = "commands" says.'
    ]


def test_top_fits_the_terminal() -> None:
    """What is cut says so, at the edge and at the end; nothing is cut where there is room."""
    from slurm_elastic.daemon.cli_top import fitted

    lines = ["totals of the cluster", "", "JOBID REASON", "    7 keep_best", "    8 keep_best"]
    assert fitted(lines, 80, 24) == lines
    assert fitted(lines, 10, 4) == ["totals of+", "", "JOBID REA+", "... and 2+"]
    assert fitted(lines, 80, 4)[-1] == "... and 2 more"


def test_top_in_a_narrow_terminal_is_not_bold_to_its_end(daemon: Daemon, tmp_path: Path) -> None:
    """On a real terminal of 60 columns: the bold of the first line ends with it, and no line is longer."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 60, 0, 0))
    env = {**os.environ, "SELASTIC_CLIENT_CONF": str(daemon.client_conf), "TERM": "xterm"}
    child = subprocess.Popen(
        [*SELASTIC, "top", "-a", "-d", "3600"],
        stdin=follower,
        stdout=follower,
        env=env,
        # As a terminal's shell starts it: tests that run in the background of a script inherit that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(follower)
    try:
        shown = b""
        while b"JOBID" not in shown or not shown.endswith(b"\n"):
            shown += os.read(leader, 65536)
    finally:
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0
        os.close(leader)
    first, *rest = shown.decode().replace("\x1b[H\x1b[2J", "").splitlines()
    assert first.startswith("\x1b[1m") and first.endswith("+\x1b[0m")
    assert max(map(len, rest)) == 60 and not any("\x1b" in line for line in rest)


def test_config_without_a_file_shows_the_defaults(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like the daemon, which starts with them; a file that is named has to be there."""
    from slurm_elastic.daemon import cli_config, settings

    for module in (cli_config, settings):
        monkeypatch.setattr(module, "DEFAULT_FILE", tmp_path / "none.toml")
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(tmp_path / "none.json"))
    assert 'mode = "advise"' in run("config", "show")[1]
    assert run("config", "check")[1].endswith("none.toml: not there; selasticd would start with its defaults\n")
    status, _, err = run("config", "check", str(tmp_path / "other.toml"))
    assert status == 2 and "other.toml cannot be read (No such file or directory)" in err
