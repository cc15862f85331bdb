"""How Slurm's commands are called, and how what they say on failure is understood. The commands here are stand-ins
that print what the real ones (22.05) were seen to print."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_elastic.daemon.slurm import CommandClient, SlurmClient, commands
from slurm_elastic.protocol.errors import SlurmError, SlurmRefused, SlurmUnparsable, SlurmUnreachable

Install = Callable[..., None]

STAND_IN = """#!/usr/bin/env python3
import json, os, sys, time
with open({log!r}, "a") as log:
    log.write(json.dumps([{name!r}, sys.argv[1:], dict(os.environ), os.getcwd()]) + "\\n")
time.sleep({wait})
sys.stdout.write({out!r})
sys.stderr.write({err!r})
sys.exit({status})
"""


class Client(CommandClient):
    """One that knows the release without asking."""

    def release(self) -> tuple[int, int]:
        return 22, 5


@pytest.fixture
def client(tmp_path: Path) -> CommandClient:
    """A client that finds only the stand-ins."""
    return Client("/some/slurm.conf", timeout_s=5, path=f"{tmp_path}:/usr/bin:/bin")


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """install("squeue", out="", err="", status=0, wait=0): put a stand-in there."""

    def put(name: str, *, out: str = "", err: str = "", status: int = 0, wait: float = 0) -> None:
        log = str(tmp_path / "calls")
        script = STAND_IN.format(log=log, name=name, out=out, err=err, status=status, wait=wait)
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)

    return put


def calls(tmp_path: Path) -> list[tuple[str, list[str], dict[str, str], str]]:
    return [tuple(json.loads(line)) for line in (tmp_path / "calls").read_text().splitlines()]


def test_a_snapshot_is_one_squeue_and_one_sinfo(client: CommandClient, install: Install, tmp_path: Path) -> None:
    """Two commands for the whole cluster however many jobs it has; hidden partitions too; a separator of its own."""
    install("squeue")
    install("sinfo")
    for _ in range(2):
        snapshot = client.snapshot()
        assert (dict(snapshot.jobs), dict(snapshot.nodes)) == ({}, {})
        assert abs(snapshot.at - time.time()) < 5
    made = calls(tmp_path)
    assert [name for name, *_ in made] == ["squeue", "sinfo"] * 2
    assert all("-a" in words and "-h" in words for _, words, *_ in made)
    assert made[0][1] != made[2][1], "a separator that is known before could be written into a comment"


def test_the_callers_environment_does_not_reach_slurm(
    client: CommandClient, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQUEUE_FORMAT, SLURM_JOB_ID, SLURM_CLUSTERS and the like would change what the commands do."""
    for name in (
        "SQUEUE_STATES",
        "SQUEUE_FORMAT2",
        "SLURM_JOB_ID",
        "SLURM_CLUSTERS",
        "SLURM_TIME_FORMAT",
        "LD_PRELOAD_X",
    ):
        monkeypatch.setenv(name, "surprise")
    install("squeue")
    install("sinfo")
    client.snapshot()
    for _, _, environment, folder in calls(tmp_path):
        own = {key: value for key, value in environment.items() if key not in ("PWD", "SHLVL", "_", "LC_CTYPE")}
        assert set(own) == {"PATH", "HOME", "LANG", "SLURM_CONF", "SLURM_TIME_FORMAT"}
        assert (own["SLURM_CONF"], own["SLURM_TIME_FORMAT"], folder) == ("/some/slurm.conf", "%s", "/")


def test_words_are_passed_as_they_are(client: CommandClient, install: Install, tmp_path: Path) -> None:
    """No shell; nodes are folded into a list."""
    install("scontrol")
    install("scancel")
    client.shrink(7, ["n3", "n1", "n2"])
    client.cancel(7)
    assert [words for _, words, *_ in calls(tmp_path)] == [
        ["update", "JobId=7", "NodeList=n[1-3]"],
        ["-v", "7"],
    ]


@pytest.mark.parametrize("job_id", [0, -1, 2**32, "7", "7,8", True, 7.0, None])
def test_only_plain_job_ids_are_passed_on(
    client: CommandClient, install: Install, tmp_path: Path, job_id: object
) -> None:
    """An id that is not a positive whole number never becomes a word of a command."""
    install("scontrol")
    install("scancel")
    for call in (lambda: client.cancel(job_id), lambda: client.requeue(job_id)):  # type: ignore[arg-type]
        with pytest.raises(SlurmRefused, match="job_id="):
            call()
    assert not (tmp_path / "calls").exists()


NO_ANSWER = [
    "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
    "slurm_load_partitions: Unable to contact slurm controller (connect failure)",
    "slurm_load_jobs error: Socket timed out on send/recv operation",
    "slurm_load_jobs error: Protocol authentication error",
    "slurm_load_jobs error: Zero Bytes were transmitted or received",
    "squeue: error: ClusterName needs to be specified\nsqueue: fatal: Unable to process configuration file",
]


@pytest.mark.parametrize("said", NO_ANSWER)
@pytest.mark.parametrize("command", ["squeue", "sinfo"])
def test_no_listing_is_unreachable(client: CommandClient, install: Install, command: str, said: str) -> None:
    """If either of the two commands fails there is no snapshot at all, and the reason is kept."""
    install("squeue")
    install("sinfo")
    install(command, err=said + "\n", status=1)
    with pytest.raises(SlurmUnreachable, match="No answer from") as error:
        client.snapshot()
    assert said.splitlines()[-1] in str(error.value)


ACTIONS: dict[str, Callable[[SlurmClient], None]] = {
    "shrink": lambda client: client.shrink(7, ["n1"]),
    "requeue": lambda client: client.requeue(7),
    "cancel": lambda client: client.cancel(7),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    "said",
    [
        "scancel: error: Kill job error on job id 7: Unable to contact slurm controller (connect failure)",
        "scancel: error: Kill job error on job id 7: Socket timed out on send/recv operation",
        "Unexpected message received for job 7",
        "Job update not available right now, the DB index is being set, try again in a bit for job 7",
    ],
)
def test_an_action_without_an_answer_is_unreachable(
    client: CommandClient, install: Install, action: str, said: str
) -> None:
    """Its effect is unknown: never taken for a refusal, never for a success."""
    install("scontrol", err=said + "\n", status=1)
    install("scancel", err=said + "\n", status=8)
    with pytest.raises(SlurmUnreachable):
        ACTIONS[action](client)


@pytest.mark.parametrize(
    "said",
    [
        "Invalid user id for job 7",
        "Invalid node name specified for job 7",
        "Job is no longer pending execution for job 7",
        "Job has already finished for job 7",
        "Invalid job id specified for job 7",
        "something that no Slurm has said so far",
    ],
)
def test_a_refused_update_says_why(client: CommandClient, install: Install, said: str) -> None:
    """Slurm's own words are in the error."""
    install("scontrol", err=said + "\n", status=1)
    with pytest.raises(SlurmRefused, match=f"Slurm refused to change job 7: {said}"):
        client.shrink(7, ["n1"])


@pytest.mark.parametrize(
    "said, status, error",
    [
        ("Job/step already completing or completed", 0, None),
        ("Job/step already completing or completed", 1, None),
        ("Access/permission denied", 210, SlurmRefused),
        ("Operation not permitted on individual component of heterogeneous job", 60, SlurmRefused),
    ],
)
def test_what_scancel_says(
    client: CommandClient, install: Install, said: str, status: int, error: type[SlurmError] | None
) -> None:
    """An ended job is a success whatever the status; another's job and a pending component are refusals."""
    install(
        "scancel",
        err=f"scancel: Terminating job 7\nscancel: error: Kill job error on job id 7: {said}\n",
        status=status,
    )
    if error is None:
        client.cancel(7)
    else:
        with pytest.raises(error, match=said):
            client.cancel(7)


def test_cancel_of_an_unknown_job_asks_once_whether_it_is_a_task(
    client: CommandClient, install: Install, tmp_path: Path
) -> None:
    """Only when scancel does not know the id is squeue asked, and a job that nobody knows is a success."""
    said = "Kill job error on job id 7: Invalid job id specified"
    install("scancel", err=f"scancel: Terminating job 7\nscancel: error: {said}\n")
    install("squeue", err="slurm_load_jobs error: Invalid job id specified\n", status=1)
    client.cancel(7)
    assert [name for name, *_ in calls(tmp_path)] == ["scancel", "squeue"]


def test_a_field_that_slurm_does_not_know_is_unparsable(client: CommandClient, install: Install) -> None:
    """22.05 leaves such a field empty and exits with 0: the word on stderr counts."""
    install("squeue", err="squeue: error: Invalid job format specification: HetJobID\n")
    install("sinfo")
    with pytest.raises(SlurmUnparsable, match="HetJobID"):
        client.snapshot()


def test_output_of_another_form_is_unparsable(client: CommandClient, install: Install) -> None:
    """A table in place of fields is not read as an empty cluster."""
    install("squeue", out="JOBID PARTITION NAME\n 1 main x\n")
    install("sinfo")
    with pytest.raises(SlurmUnparsable, match="squeue"):
        client.snapshot()


def test_a_command_that_hangs_is_unreachable(install: Install, tmp_path: Path) -> None:
    """The daemon's round never waits longer than timeout_s for one command."""
    install("squeue", wait=3600)
    with pytest.raises(SlurmUnreachable, match=r"squeue did not end within 0\.\d+ s"):
        Client(timeout_s=0.5, path=f"{tmp_path}:/usr/bin:/bin").snapshot()


def test_a_missing_command_is_unreachable(tmp_path: Path) -> None:
    """No Slurm on this machine: one sentence, not a traceback."""
    with pytest.raises(SlurmUnreachable, match="squeue cannot be run"):
        Client(path=str(tmp_path)).snapshot()


def test_the_prefix_comes_first(install: Install, tmp_path: Path) -> None:
    """("sudo", "-n") and the like run each command."""
    install("become")
    install("scontrol")
    CommandClient(prefix=("become", "-n"), path=f"{tmp_path}:/usr/bin:/bin").requeue(7)
    assert [(name, words) for name, words, *_ in calls(tmp_path)] == [("become", ["-n", "scontrol", "requeue", "7"])]


def test_the_commands_of_one_call_share_its_time(
    client: CommandClient, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many it takes: a slurmctld that is slow at each of them does not make a round long."""
    for name in ("squeue", "sinfo", "scontrol"):
        install(name)
    given: list[float] = []
    run, now = subprocess.run, [100.0]
    monkeypatch.setattr(commands.time, "monotonic", lambda: now[0])

    def slow(*words: object, timeout: float, **more: object) -> object:
        given.append(timeout)
        now[0] += 2.0
        return run(*words, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(commands.subprocess, "run", slow)
    client.snapshot()
    client.site()
    assert given == [5.0, 3.0, 5.0, 3.0, 1.0]
    client.shrink(7, ["n1"])
    assert given[5:] == [5.0]


@pytest.mark.parametrize(
    ("uid", "level", "orders"), [(0, "None", True), (2, "Operator", True), (2, "None", False), (987_654, "None", False)]
)
def test_who_may_order_the_queue(
    client: CommandClient, install: Install, monkeypatch: pytest.MonkeyPatch, uid: int, level: str, orders: bool
) -> None:
    """root, SlurmUser and operators, where priorities have factors; a user without a name here is none of them."""
    install("scontrol", out="PriorityType = priority/multifactor\nSlurmUser = slurm(64030)\n")
    install("sacctmgr", out=f"bin|{level}\n")
    monkeypatch.setattr(commands.os, "geteuid", lambda: uid)
    site = client.site()
    assert site.multifactor and site.orders_queue == orders


@pytest.mark.parametrize(
    ("uid", "level", "may"),
    [(0, "None", True), (2, "Administrator", True), (2, "Operator", False), (987_654, "", False)],
)
def test_who_may_put_nodes_to_sleep(
    client: CommandClient, install: Install, monkeypatch: pytest.MonkeyPatch, uid: int, level: str, may: bool
) -> None:
    """root, SlurmUser and administrators; Slurm lets no operator change a node. And which nodes never sleep."""
    install(
        "scontrol",
        out="SlurmUser = slurm(64030)\nSuspendProgram = /sbin/off\nSuspendTime = 300 sec\n"
        "SuspendExcNodes = n[1-2]:1,n7\nSuspendExcParts = debug,login\n",
    )
    install("sacctmgr", out=f"bin|{level}\n")
    monkeypatch.setattr(commands.os, "geteuid", lambda: uid)
    site = client.site()
    assert site.power_saving and site.administers == may
    assert site.never_sleep == {"n1", "n2", "n7", "debug", "login"}


def test_how_a_node_is_put_to_sleep_and_woken(client: CommandClient, install: Install, tmp_path: Path) -> None:
    install("scontrol")
    client.set_power("n3", False)
    client.set_power("n3", True)
    down, up = (words for _, words, _, _ in calls(tmp_path))
    assert down == ["update", "NodeName=n3", "State=POWER_DOWN_ASAP"] and up[-1] == "State=POWER_UP"
    with pytest.raises(SlurmRefused, match="single nodes"):
        client.set_power("n[3-4]", False)
