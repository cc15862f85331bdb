"""The command line where something is not as it should be: no daemon, wrong words, a closed pipe, a narrow terminal."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli
from live_api import Daemon, Run

from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.protocol.errors import DaemonUnreachable
from slurm_elastic.protocol.messages import Piece

SELASTIC = [sys.executable, "-m", "slurm_elastic.client.main"]


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
        (["predict", "99"], 1, "job 99 is not known"),
        (["predict", "1218"], 1, "job 1218 belongs to another user"),
        (["predict", "1221"], 1, "nothing was measured of job 1221: it has sent no report"),
        (
            ["predict", "1215", "--gpus", "1000000"],
            1,
            "gpus=1000000 holds no size at which its batch can be shared out",
        ),
        (
            ["predict", "1215", "--gpus", "4:2"],
            2,
            "'4:2' is no range of GPUs; accepted: N, MIN-MAX or MIN:MAX, such as",
        ),
        (["predict", "1215", "--type", "a100"], 1, "job 1215 has not said which program it is"),
        (["explain", "twelve"], 2, "'twelve' is not a job id"),
        (["status", "-p", "--json"], 2, "not allowed with argument"),
        (["frobnicate"], 2, "there is no command 'frobnicate'; accepted: status, acct,"),
        (["statsu"], 2, "(did you mean status?)"),
        (["sandbox", "dwon"], 2, "(did you mean down?); accepted: up, down, status\n"),
        (["acct", "-j", "abc"], 2, "selastic acct: argument -j/--jobs: 'abc' is not a job id"),
        (["explain", "7_4_1"], 2, "'7_4_1' is not a job id; accepted: a number such as 1207, or 1207_3"),
        (["status", "--sort", "colour"], 2, "--sort 'colour' is no column"),
        (["status", "-i", "0"], 2, "'0' is not accepted; accepted: 0.2 to 3600 seconds"),
        (["status", "-l", "--start"], 2, "not allowed with argument"),
        (
            ["status", "-p", "gpu"],
            2,
            "unrecognized arguments: gpu (-p is --parsable, as in sacct; did you mean -r gpu?)",
        ),
        (["acct", "1215"], 2, "unrecognized arguments: 1215 (did you mean -j 1215?)"),
        (["acct", "-S", "now+1hour"], 2, "lies after now ("),
        (["review", "-S", "now+1hour"], 2, "lies after now ("),
        (["report", "-S", "now+1hour"], 2, "lies after now ("),
        (["unpin", "99"], 1, "job 99 is not known to selasticd: it never had"),
        (["acct", "-S", "2026-11-21", "-E", "2026-11-20"], 2, "lies after --endtime 2026-11-20T00:00:00"),
        (["review", "-E", "now-2days"], 2, "lies after --endtime"),
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
    """`selastic report --page` typed by itself says where the page can go; into a pipe it goes as ever."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    status, out, err = run("report", "-a", "--page")
    assert (status, out) == (2, "") and "accepted: --page FILE" in err
    assert run("report", "-a", "--json")[0] == 0


def test_json_cannot_steer_the_terminal(daemon: Daemon, run: Run) -> None:
    """Control characters beyond ASCII, and those that turn the direction of writing, are escaped; letters are not."""
    name = "é\x9b2J\x7f\u202e"
    daemon.store.jobs.upsert(replace(daemon.store.jobs.get(1215), name=name))
    out = run("status", "--json", "-j", "1215")[1]
    assert r'"é\u009b2J\u007f\u202e"' in out and json.loads(out)["jobs"][0]["name"] == name


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


def test_output_that_cannot_be_written_is_a_sentence(daemon: Daemon) -> None:
    """A full disk is named, in the middle of a table as after a look-up; a closed stdout takes nothing and harms
    nothing."""
    environment = os.environ | {"PYTHONPATH": "packaging/namespace"}
    for words in (["status", "-a"], ["--version"]):
        with open("/dev/full", "wb") as full:
            ended = subprocess.run(
                [*SELASTIC, *words], env=environment, stdout=full, stderr=subprocess.PIPE, timeout=60
            )
        assert ended.returncode == 1
        assert ended.stderr == b"selastic: the output cannot be written (No space left on device)\n"
    closed = ["bash", "-c", '"$@" >&-', "-", *SELASTIC, "explain", "1215"]
    ended = subprocess.run(closed, env=environment, stderr=subprocess.PIPE, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_name_that_the_locale_cannot_show_is_shown_as_far_as_it_can_be(daemon: Daemon) -> None:
    """Another user's job called in another alphabet does not end the table; JSON escapes it and loses nothing."""
    daemon.store.jobs.upsert(replace(daemon.store.jobs.get(1221), name="bös 日"))  # type: ignore[type-var]
    environment = os.environ | {"PYTHONPATH": "packaging/namespace", "PYTHONIOENCODING": "latin1"}

    def said(*words: str) -> bytes:
        command = [*SELASTIC, "status", "-j", "1221", *words]
        return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True).stdout

    assert said("-n", "-o", "name") == "bös ?\n".encode("latin1")
    assert json.loads(said("--json"))["jobs"][0]["name"] == "bös 日"


def test_job_ids_as_squeue_prints_them(daemon: Daemon, run: Run) -> None:
    """A component of a heterogeneous job stands for the whole; blanks after a comma do no harm."""
    assert run("status", "-n", "-j", "1207+1, 1215", "-o", "jobid")[1].split() == ["1207", "1215"]


def test_a_companion_is_told_from_a_job_that_nobody_knows(daemon: Daemon, run: Run) -> None:
    """squeue shows companions, so somebody asks about one: the answer names the job that it holds GPUs for, but for
    whom Slurm hides that job from."""
    pieces = (Piece(1215, "base", ("n1",), 2), Piece(1299, "companion", ("n2",), 2))
    daemon.store.allocations.note(1215, 3, pieces, 512, 2e9)
    assert run("explain", "1299")[::2] == (1, "selastic: job 1299 only holds GPUs for job 1215; accepted: 1215\n")
    daemon.caller.viewer = Viewer(4711, private=True)
    assert "job 1299 is not known" in run("explain", "1299")[2]


@pytest.mark.parametrize("command", ["status", "top"])
def test_a_repeated_status_says_that_the_daemon_is_away_and_goes_on(
    command: str, daemon: Daemon, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of the daemon does not end a running status -i, or top; Ctrl-C is its clean end."""
    from slurm_elastic.client.commands import status as module

    answers = iter([DaemonUnreachable("selasticd does not answer"), None])
    real = module.current

    def current(args: Any) -> Any:
        error = next(answers, KeyboardInterrupt())
        if error is not None:
            raise error
        return real(args)

    monkeypatch.setattr(module, "current", current)
    status, out, _ = run(command, "-i", "0.2")
    assert status == 0
    assert out.index("selasticd does not answer") < out.index("JOBID")


def test_config_show_tells_what_the_models_start_from(daemon: Daemon, run: Run, tmp_path: Path) -> None:
    """The settings stay a file that can be read back; what the running daemon has learned follows as a comment."""
    file = tmp_path / "selasticd.toml"
    file.write_text('mode = "observe"\n')
    status, out, _ = run("config", "show", str(file))
    assert status == 0
    assert tomli.loads(out)["mode"] == "observe"
    runs, models = out.splitlines()[-2:]
    assert runs.startswith("# selasticd at http://127.0.0.1:") and runs.endswith(" runs in mode review.")
    assert "from 9 earlier runs of this cluster; programs with one of their own: 2." in models


def test_config_show_needs_no_daemon(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no daemon answers, the settings are shown, and nothing is said of one."""
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(tmp_path / "none.json"))
    file = tmp_path / "selasticd.toml"
    file.write_text('mode = "act"\n')
    status, out, _ = run("config", "show", str(file))
    assert status == 0
    assert 'mode = "act"' in out.splitlines()
    assert "#" not in out


def test_config_without_a_file_shows_the_defaults(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like the daemon, which starts with them; a file that is named has to be there."""
    from slurm_elastic.daemon.cli.commands import config
    from slurm_elastic.daemon.selasticd import settings

    for module in (config, settings):
        monkeypatch.setattr(module, "DEFAULT_FILE", tmp_path / "none.toml")
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(tmp_path / "none.json"))
    assert 'mode = "review"' in run("config", "show")[1]
    assert json.loads(run("config", "show", "--json")[1])["mode"] == "review"
    assert run("config", "check")[1].endswith("none.toml: not there; selasticd would start with its defaults\n")
    status, _, err = run("config", "check", str(tmp_path / "other.toml"))
    assert status == 2 and "other.toml cannot be read (No such file or directory)" in err
