"""pyslurm's client with a stand-in for pyslurm: what is called, what is not left to it, and what happens when it fails.

The stand-in has the attributes that pyslurm 25.11's sources show. The contract suite runs on the real one where it is
installed.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_elastic.daemon.slurm import CommandClient, Size, SlurmClient
from slurm_elastic.daemon.slurm.pyslurm import records
from slurm_elastic.daemon.slurm.pyslurm.client import PySlurmClient, PyslurmUnusable, release_of
from slurm_elastic.daemon.slurm.select import choose
from slurm_elastic.protocol.errors import ConfigError, SlurmError, SlurmRefused, SlurmUnparsable, SlurmUnreachable

STAND_IN = """
import json, os, sys, time
from types import SimpleNamespace

__version__ = {version!r}
{top}


class RPCError(Exception):
    def __init__(self, errno, text):
        super().__init__(text)
        self.errno = errno


def note(*what):
    with open({log!r}, "a") as log:
        log.write(json.dumps(what) + "\\n")


class JobSubmitDescription:
    def __init__(self, **changes):
        self.changes = changes


class Job:
    {requested} = None

    def __init__(self, job_id):
        self.id = job_id

    def modify(self, description):
        note("modify", self.id, description.changes)
        {then}

    def requeue(self):
        note("requeue", self.id)


class Listing:
    @staticmethod
    def load():
        print("noise of pyslurm's")
        return {listed}


Jobs = Nodes = Partitions = Listing
slurmctld = SimpleNamespace(
    Config=SimpleNamespace(load=lambda: SimpleNamespace(accounting_storage_tres={tres!r})))
"""


class Bench:
    """A folder with a stand-in for pyslurm and stand-ins for Slurm's commands, which note how they are called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.log = folder, folder / "calls"
        monkeypatch.setenv("PYTHONPATH", str(folder))
        for name in ("scontrol", "scancel", "squeue", "sinfo"):
            script = folder / name
            noted = f'echo "[\\"{name}\\", \\"$1\\"]" >>{self.log}'
            script.write_text(f'#!/bin/sh\n[ "$1" = -V ] && echo slurm 25.11.7 && exit\n{noted}\n')
            script.chmod(script.stat().st_mode | stat.S_IXUSR)
        self.clients: list[PySlurmClient] = []

    def pyslurm(
        self,
        *,
        then: str = "pass",
        version: str = "25.11.2",
        top: str = "",
        requested: str = "requested_tres",
        tres: tuple[str, ...] = ("cpu", "gres/gpu"),
        listed: str = "{}",
    ) -> None:
        values = {"then": then, "version": version, "top": top, "requested": requested, "tres": list(tres)}
        values["listed"] = listed
        (self.folder / "pyslurm.py").write_text(STAND_IN.format(log=str(self.log), **values))

    def client(self, timeout_s: float = 60, **options: Any) -> PySlurmClient:
        self.pyslurm(**options)
        path = f"{self.folder}:/usr/bin:/bin"
        self.clients.append(PySlurmClient("/some/slurm.conf", timeout_s=timeout_s, path=path))
        return self.clients[-1]

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(tmp_path, monkeypatch)
    yield made
    for client in made.clients:
        client.close()


def test_what_pyslurm_does_and_what_it_is_spared(bench: Bench) -> None:
    """Shrink by required_nodes and never by nodes, comment and requeue by pyslurm; all else by commands, the empty
    comment too, which pyslurm would drop without a word."""
    client = bench.client()
    assert client.snapshot().jobs == {}
    client.shrink(7, ["n3", "n1"])
    client.set_comment(7, "tagged")
    client.requeue(7)
    client.set_comment(7, "")
    client.cancel(7)
    client.unreserve("selastic-7")
    assert bench.calls() == [
        '["modify", 7, {"required_nodes": ["n3", "n1"]}]',
        '["modify", 7, {"comment": "tagged"}]',
        '["requeue", 7]',
        '["scontrol", "update"]',
        '["scancel", "-v"]',
        '["scontrol", "delete"]',
    ]
    assert client.about() == "pyslurm 25.11.2"


@pytest.mark.parametrize(
    "call",
    [lambda c: c.shrink(7, ["n[1-2]"]), lambda c: c.shrink(7, []), lambda c: c.shrink(0, ["n1"])],
    ids=["folded", "none", "no job"],
)
def test_what_commands_refuse_is_refused_before_pyslurm_sees_it(
    bench: Bench, call: Callable[[SlurmClient], None]
) -> None:
    """The same words are accepted by both clients; pyslurm takes an empty list for no change at all."""
    with pytest.raises(SlurmRefused):
        call(bench.client())
    assert bench.calls() == []


@pytest.mark.parametrize(
    ("errno", "text", "error"),
    [
        (2017, "Invalid job id specified", SlurmRefused),
        (2001, "Requested node configuration is not available", SlurmRefused),
        (1800, "Unable to contact slurm controller (connect failure)", SlurmUnreachable),
        (5004, "Socket timed out on send/recv operation", SlurmUnreachable),
        (2022, "Slurm backup controller in standby mode", SlurmUnreachable),
        (111, "Connection refused", SlurmUnreachable),
        (0, "Unspecified", SlurmUnreachable),
    ],
)
def test_slurms_errno_tells_refused_from_unreachable(
    bench: Bench, errno: int, text: str, error: type[SlurmError]
) -> None:
    """Only slurmctld's own no is a refusal; of anything else nobody knows whether it had an effect."""
    with pytest.raises(error, match=text.partition(" (")[0]):
        bench.client(then=f"raise RPCError({errno}, {text!r})").shrink(7, ["n1"])


def test_a_worker_that_dies_is_an_unknown_outcome_and_another_one_works_on(bench: Bench) -> None:
    """libslurm ends its process at what it calls fatal: the daemon lives, says unreachable, and starts a new one."""
    client = bench.client(then=f"os.path.exists({str(bench.folder / 'well')!r}) or os._exit(1)")
    with pytest.raises(SlurmUnreachable, match=r"its process ended with status 1\."):
        client.shrink(7, ["n1"])
    (bench.folder / "well").touch()
    client.shrink(7, ["n1"])
    assert len(bench.calls()) == 2


@pytest.mark.parametrize(
    "listed", ["os._exit(1)", "{7: SimpleNamespace(id=7, state='RUNNING')}", "[].pop()"], ids=["dies", "job", "raises"]
)
def test_a_job_that_pyslurm_cannot_read_hides_nobody(
    bench: Bench, listed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own parser fails at what Slurm lets a user write (--gres=gpu): commands tell the jobs, said once; the rest
    still goes through pyslurm."""
    client = bench.client(listed=listed)
    assert client.snapshot().jobs == client.snapshot().jobs == {}
    client.shrink(7, ["n1"])
    listing = ['["squeue"', '["sinfo"']
    assert [call.split(",")[0] for call in bench.calls()] == [*listing, *listing, '["modify"']
    assert sum("cannot read them" in line for line in caplog.messages) == 1


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ("os.kill(os.getpid(), 11)", "its process ended by signal 11 (SIGSEGV)"),
        ("time.sleep(600)", "nothing within 3 s"),
    ],
    ids=["crashes", "hangs"],
)
def test_pyslurm_that_fails_in_listings_is_given_up_after_two(
    bench: Bench, listed: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Commands give what it does not, at once; after the second time it is not asked again. Changes still are."""
    client = bench.client(timeout_s=3, listed=listed)
    for _ in range(3):
        assert client.snapshot().jobs == {}
    told = [line for line in caplog.messages if "used for listings from now on" in line]
    assert len(told) == 1 and said in told[0], caplog.messages
    client.shrink(7, ["n1"])
    assert bench.calls()[-1].startswith('["modify"')
    assert client.about() == "pyslurm 25.11.2 for changes, Slurm's commands for listings"


def test_pyslurm_that_crashes_in_changes_is_given_up_after_two(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Two in a row: neither is done again by itself, for it may have been done; the next one goes through commands. One
    that pyslurm answers, if only by a refusal, begins the count anew."""
    refuses = bench.folder / "refuses"
    client = bench.client(then=f"os.path.exists({str(refuses)!r}) or os._exit(3); raise RPCError(2017, 'no')")
    for crashes in (True, False, True, True):
        refuses.unlink(missing_ok=True) if crashes else refuses.touch()
        with pytest.raises(SlurmUnreachable if crashes else SlurmRefused):
            client.shrink(7, ["n1"])
    assert sum("used for changes from now on" in line for line in caplog.messages) == 1
    client.requeue(7)
    assert [call.split(",")[0] for call in bench.calls()] == ['["modify"'] * 4 + ['["scontrol"']
    assert client.snapshot().jobs == {}
    assert client.about() == "pyslurm 25.11.2 for listings, Slurm's commands for changes"


def test_a_slurmctld_that_does_not_answer_is_looked_for_anew(bench: Bench) -> None:
    """libslurm reads slurm.conf once: the next call finds a slurmctld that has moved, as Slurm's commands do."""
    client = bench.client(then="note(os.getpid()); raise RPCError(1800, 'Unable to contact slurm controller')")
    for _ in range(2):
        with pytest.raises(SlurmUnreachable):
            client.shrink(7, ["n1"])
    _, one, _, other = bench.calls()
    assert one != other


def test_a_call_that_hangs_ends_within_its_time(bench: Bench) -> None:
    """pyslurm cannot be told how long to wait for slurmctld: its worker is ended instead."""
    client = bench.client(timeout_s=4, then="time.sleep(600)")
    began = time.monotonic()
    with pytest.raises(SlurmUnreachable, match="nothing within 4 s"):
        client.shrink(7, ["n1"])
    assert 3 < time.monotonic() - began < 60
    assert client.snapshot().jobs == {}, "a new worker answers"


def test_pyslurm_of_another_slurm_is_not_used(bench: Bench) -> None:
    """libslurm has no stable interface: only a build for the installed release is used."""
    with pytest.raises(PyslurmUnusable, match=r"pyslurm 24\.11\.0 is not one for Slurm 25\.11, installed here"):
        bench.client(version="24.11.0")


def test_pyslurm_that_stops_fitting_gives_way_to_commands(bench: Bench) -> None:
    """Slurm is upgraded below a running daemon: when its worker has to be started anew, commands take over."""
    client = bench.client(then="os._exit(1)")
    bench.pyslurm(version="26.5.0")
    with pytest.raises(SlurmUnreachable):
        client.shrink(7, ["n1"])
    client.shrink(7, ["n1"])
    assert client.snapshot().jobs == {}
    assert [call.split(",")[0] for call in bench.calls()] == ['["modify"', '["scontrol"', '["squeue"', '["sinfo"']
    assert client.about() == "Slurm's commands"


@pytest.mark.parametrize(
    "options", [{"requested": "gres_per_node"}, {"tres": ("cpu", "mem")}], ids=["older pyslurm", "gpus not tracked"]
)
def test_listings_that_pyslurm_cannot_give_go_through_commands(bench: Bench, options: dict[str, Any]) -> None:
    """Releases before 25.11 do not tell what a job asks for, and an untracked GPU is in no TRES; changes still go
    through pyslurm."""
    client = bench.client(**options)
    client.snapshot()
    client.shrink(7, ["n1"])
    client.snapshot()
    listed = ['["squeue"', '["sinfo"']
    assert [call.split(",")[0] for call in bench.calls()] == [*listed, '["modify"', *listed]
    assert client.about() == "pyslurm 25.11.2 for changes, Slurm's commands for listings"


def test_choice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands when they are asked for, or when pyslurm does not load, with the reason; asked for pyslurm, an error."""
    assert choose("commands").why == 'Slurm\'s commands, as slurm_client = "commands" says'
    monkeypatch.syspath_prepend(bench.folder)
    bench.pyslurm(top="raise ImportError('libslurm.so.44: cannot open shared object file')")
    client, why = choose("auto")
    assert type(client) is CommandClient
    assert why == "Slurm's commands: pyslurm not importable (libslurm.so.44: cannot open shared object file)"
    with pytest.raises(ConfigError, match=r'slurm_client = "pyslurm": pyslurm not importable'):
        choose("pyslurm")


def test_releases() -> None:
    """pyslurm writes 22.5.3 where Slurm writes 22.05.8."""
    assert release_of("22.5.3") == release_of("22.05.8") == (22, 5)
    assert release_of("?") == (0, 0)


def tres(**counts: float) -> SimpleNamespace:
    """TrackableResources of pyslurm: mem in MiB, gres by name."""
    memory = SimpleNamespace(count=counts.pop("mem")) if "mem" in counts else None
    return SimpleNamespace(mem=memory, gres={name: SimpleNamespace(count=n) for name, n in counts.items()})


def source(**changes: Any) -> SimpleNamespace:
    """A pyslurm.Job that runs on two nodes with two GPUs each; absent things are None there, never 0 or ""."""
    values: dict[str, Any] = {
        "id": 7, "state": "RUNNING", "state_reason": "None", "user_id": 0, "name": "train", "comment": None,
        "account": "lab", "partition": "main", "qos": "normal", "allocated_nodes": "n[1-2]", "is_batch_job": True,
        "batch_host": "n1", "num_nodes": 2, "allocated_tres": tres(mem=4096, **{"gpu": 4, "gpu:a100": 4}),
        "requested_tres": tres(gpu=4), "gres_per_node": {"gres/gpu": 2}, "cpus": 8, "heterogeneous_id": None,
        "heterogeneous_offset": None, "array_id": None, "array_task_id": None, "array_tasks_waiting": None,
        "array_tasks_parallel": None, "priority": 5, "constraints": ["fast&big"], "required_nodes": None,
        "reservation": None, "resource_sharing": "OK", "time_limit": 60, "run_time": 600, "submit_time": 1000,
        "start_time": 1100, "eligible_time": 1000, "requeue_count": 1,
    }  # fmt: skip
    return SimpleNamespace(**values | changes)


def test_a_running_job_is_read() -> None:
    """What it holds, from the TRES that were allocated."""
    job = records.job(source(), 1705.0)
    assert job is not None
    assert (job.nodes, job.batch_host, job.num_nodes) == (("n1", "n2"), "n1", 2)
    assert (job.gpus, job.gpus_per_node, job.asked_per_node, job.gpu_type) == (4, 2, 2, "a100")
    assert (job.mem_mb, job.cpus, job.user, job.reason, job.comment) == (2048, 8, "root", "", "")
    assert (job.time_limit_s, job.ends_at, job.start_time, job.restarts) == (3600, 4700.0, 1100.0, 1)
    assert (job.features, job.het_job_id, job.array_job_id, job.array_task) == ("fast&big", 0, 0, "")


def test_a_waiting_job_is_read() -> None:
    """What it asks for, from the TRES that were requested; a guessed start is none."""
    waiting = {"state": "PENDING", "allocated_nodes": None, "batch_host": None, "allocated_tres": None}
    job = records.job(source(**waiting, state_reason="Resources", gres_per_node={}, time_limit=None), 1705.0)
    assert job is not None
    assert (job.nodes, job.batch_host, job.start_time, job.reason) == ((), "", None, "Resources")
    assert (job.num_nodes, job.gpus, job.gpus_per_node, job.asked_per_node) == (2, 4, 0, 0)
    assert (job.time_limit_s, job.ends_at) == (None, None)


def test_a_directory_that_was_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user whose name could not be looked up once is no number for as long as the daemon runs."""
    users: dict[int, str] = {}
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_name=users[uid]))
    assert records.user_name(4242) == "4242"
    users[4242] = "late"
    assert records.user_name(4242) == "late"


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"])
def test_ended_jobs_are_left_out(state: str) -> None:
    """slurmctld tells of them for MinJobAge more seconds; squeue leaves them out too."""
    assert records.job(source(state=state), 1705.0) is None


def test_task_zero_of_an_array_is_one() -> None:
    """pyslurm gives None for task 0, as for a job that is no task."""
    zero = records.job(source(array_id=7), 1705.0)
    waiting = records.job(source(array_id=7, array_tasks_waiting="3-5", array_tasks_parallel=2), 1705.0)
    assert zero is not None and waiting is not None
    assert (zero.array_job_id, zero.array_task, waiting.array_task) == (7, "0", "3-5%2")


def test_a_node_is_read() -> None:
    """GPUs by what is configured and what is allocated; states with all their flags."""
    node = records.node(
        SimpleNamespace(
            name="n1", state="MIXED+DRAIN", partitions=["main", "long"], configured_gres={"gpu:a100": 4, "nic": 1},
            allocated_tres={"cpu": 3, "gres/gpu": 3, "gres/gpu:a100": 3}, total_cpus=16, allocated_cpus=3,
            real_memory=4096, allocated_memory=None, available_features=["fast"],
        )
    )  # fmt: skip
    assert (node.gpus, node.gpus_used, node.gpu_type) == (4, 3, "a100")
    assert (node.flags, node.partitions, node.schedulable) == ({"MIXED", "DRAIN"}, ("main", "long"), False)
    assert (node.cpus, node.cpus_used, node.mem_mb, node.mem_alloc_mb) == (16, 3, 4096, 0)


def test_another_form_is_unparsable() -> None:
    """A release that renames what is read is an error that names the job, never a job without GPUs."""
    changed = source()
    del changed.allocated_tres
    with pytest.raises(SlurmUnparsable, match="job 7 from pyslurm"):
        records.job(changed, 1705.0)


def test_what_pyslurm_itself_cannot_read_is_unparsable() -> None:
    """Its parser of generic resources raises IndexError for --gres=gpu, which names no number."""

    class Unreadable(SimpleNamespace):
        @property
        def gres_per_node(self) -> dict[str, int]:
            raise IndexError("list index out of range")

    values = vars(source())
    values.pop("gres_per_node")
    with pytest.raises(SlurmUnparsable, match="job 7 from pyslurm"):
        records.job(Unreadable(**values), 1705.0)


def test_sizes_are_left_to_commands(bench: Bench) -> None:
    """A waiting job's new size needs NumNodes, which pyslurm does not send."""
    client = bench.client()
    with pytest.raises(SlurmError):
        client.resize_waiting(7, Size(2, 2))
    assert bench.calls() == ['["scontrol", "-o"]']
