"""`selastic probe` on a real Slurm: what it finds, what is remembered, and what is left of it."""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
from pathlib import Path

import pytest
from live_daemon import live_daemon
from probing import probing
from waiting import wait_until

from slurm_elastic.daemon.probe.checks import CHECKS
from slurm_elastic.daemon.sandbox import Sandbox

NAMES = [name for name, _, _ in CHECKS]


def left_of_probes(sandbox: Sandbox) -> str:
    return sandbox.run(["squeue", "-h", "-t", "PD,R,CF,S", "-o", "%i %j"]).stdout


def test_everything_is_tried_and_remembered_for_the_users_jobs(
    empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an ordinary user, on a Slurm that refuses nothing: nothing is to be set, and nothing stays in the queue."""
    with live_daemon(empty_sandbox, monkeypatch) as daemon, probing("-P", "-n") as probe:
        assert probe.ended() == 0, probe.said
        rows = probe.rows()
        assert {name: outcome for name, (outcome, _, _) in rows.items()} == dict.fromkeys(NAMES, "works")
        assert {name for name, (_, seconds, _) in rows.items() if seconds} == {
            *("base", "salloc", "sbatch", "epilog", "requeue", "component")
        }
        assert "the batch job sees 0, the companion beside it 1" in rows["gpus"][2]
        assert (
            rows["signals"][2]
            == "USR1 to the batch script reaches the batch script; USR1 to the steps reaches the steps"
        )
        assert re.search(r"n\d reaches n\d at \d", rows["network"][2])
        assert left_of_probes(empty_sandbox) == ""
        known = json.loads(daemon.selastic("probe", "--show", "--json").stdout)["findings"]
        assert {(row["user"], row["partition"]) for row in known} == {("games", "main")}
        assert [row["name"] for row in known] == NAMES


def test_without_rights_and_within_its_jobs(
    empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A selasticd that may change nobody's jobs, no free node for a second one, and two jobs: said in the table."""
    monkeypatch.setenv("SLURM_CONF", empty_sandbox.env["SLURM_CONF"])
    conf = Path(f"/tmp/selastic-probe-client-{os.getpid()}.json")
    conf.write_text(json.dumps({"url": "http://127.0.0.1:9", "uid": pwd.getpwnam("daemon").pw_uid}))
    conf.chmod(0o644)
    monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(conf))
    others = ["sbatch", "--output=/dev/null", "-N7", "--gres=gpu:4", "--wrap", "sleep 300"]
    try:
        assert empty_sandbox.run(others).returncode == 0
        running = ["squeue", "-h", "-t", "R"]
        wait_until(lambda: empty_sandbox.run(running).stdout != "", 60)
        with probing("-P", "-n", "--jobs", "2") as probe:
            assert probe.ended() == 0, probe.said
            rows = probe.rows()
            assert rows["rights"][0] == "refused" and "daemon, whom selasticd runs as, may not" in rows["rights"][2]
            assert rows["network"][2] == rows["shrink"][2] == "only one node was free"
            assert rows["sbatch"][0] == rows["component"][0] == "not tried"
            assert rows["sbatch"][2] == "its 2 jobs were used up (--jobs)"
            assert rows["salloc"][0] == rows["gpus"][0] == rows["requeue"][0] == "works"
    finally:
        conf.unlink()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_after_a_signal(
    empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """In the middle, with a job that runs: it is cancelled, and the exit status is that of an interrupt. Also where a
    script has started it in the background, whose processes ignore SIGINT."""
    monkeypatch.setenv("SLURM_CONF", empty_sandbox.env["SLURM_CONF"])
    with probing(ignored=signal.SIGINT) as probe:
        wait_until(lambda: "1/11" in probe.said, 60, lambda: probe.said)
        assert "selastic-probe-" in left_of_probes(empty_sandbox)
        os.kill(probe.pid, number)
        assert probe.ended() == 130
        assert left_of_probes(empty_sandbox) == "" and probe.out == ""
