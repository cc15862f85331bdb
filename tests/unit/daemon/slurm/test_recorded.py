"""What every supported Slurm printed for the same jobs is read as the same.

Recorded by tests/support/record_slurm.py from real ones; a change of the commands needs them recorded anew."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from record_slurm import RECORDED, SEPARATOR, scenario

from slurm_elastic.daemon.slurm import CommandClient, Job, Snapshot, commands
from slurm_elastic.daemon.slurm.accounting import SlurmLimit
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.protocol.errors import SlurmRefused, SlurmUnparsable, SlurmUnreachable

FILES = sorted(RECORDED.glob("slurm-*.json"))


class Replay(CommandClient):
    """A CommandClient whose commands print what was recorded, in the same order."""

    def __init__(self, release: str, calls: list[dict[str, Any]]) -> None:
        super().__init__("/some/slurm.conf")
        self._release, self.calls = release, iter(calls)

    def release(self) -> tuple[int, int]:
        year, month = self._release.removeprefix("slurm-").split(".")
        return int(year), int(month)

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        call = next(self.calls)
        assert command == call["command"], "the client asks otherwise than when this was recorded"
        return subprocess.CompletedProcess(command, call["returncode"], call["stdout"], call["stderr"])


class Recorded:
    """One file replayed: the outcome of every call of the scenario, and of three while slurmctld was down."""

    def __init__(self, path: Path) -> None:
        known = json.loads(path.read_text())
        self.release = path.stem
        self.ids: dict[str, int] = known["ids"]
        client = Replay(self.release, known["calls"])
        self.outcome = scenario(client, self.ids)
        self.down: list[type[Exception]] = []
        plain = self.ids["plain"]
        for call in (client.snapshot, lambda: client.shrink(plain, ["n1"]), lambda: client.cancel(plain)):
            with pytest.raises((SlurmUnreachable, SlurmRefused, SlurmUnparsable)) as raised:
                call()
            self.down.append(raised.type)
        assert next(client.calls, None) is None

    @property
    def snapshot(self) -> Snapshot:
        found = self.outcome["snapshot"]
        assert isinstance(found, Snapshot)
        return found

    def job(self, name: str) -> Job:
        return self.snapshot.jobs[self.ids[name]]


@pytest.fixture(params=FILES, ids=[path.stem for path in FILES])
def recorded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setattr(commands, "_separator", lambda: SEPARATOR)
    return Recorded(request.param)


def test_there_are_records_of_every_supported_release() -> None:
    """Those that `make test` and `make test-matrix` run on."""
    assert {"slurm-22.05", "slurm-24.11", "slurm-26.05"} <= {path.stem for path in FILES}


def test_running_jobs(recorded: Recorded) -> None:
    """GPUs in every form of asking, the batch host, processors and memory, whose it is."""
    plain, whole, typed, total = (recorded.job(name) for name in ("plain", "whole", "typed", "total"))
    assert (plain.nodes, plain.batch_host, plain.gpus, plain.gpus_per_node) == (("n1", "n2"), "n1", 4, 2)
    assert (plain.user, plain.uid, plain.account, plain.qos) == ("games", 5, "research", "normal")
    assert (plain.state, plain.comment, plain.reason) == ("RUNNING", "elastic:gpus=2-8,batch=64-512", "")
    assert plain.time_limit_s == 5400
    assert plain.ends_at is not None and plain.start_time is not None
    assert plain.time_limit_s <= plain.ends_at - plain.start_time  # it was recorded long ago
    assert plain.start_time is not None and plain.start_time >= plain.submit_time > 1.7e9
    assert (whole.gpus, whole.asked_per_node, whole.cpus, whole.mem_mb, whole.required_nodes) == (4, 4, 8, 700, ("n3",))
    assert (typed.gpus, typed.gpu_type, typed.name, typed.comment) == (1, "a100", "a b", "two\nlines ~ and |pipes|")
    assert (total.gpus, total.gpus_per_node, total.asked_per_node, total.gpu_type) == (2, 2, 0, "a100")


def test_waiting_jobs(recorded: Recorded) -> None:
    """What they ask for, why they wait and from when on they may start."""
    waits, later = recorded.job("waits"), recorded.job("later")
    assert (waits.state, waits.reason, waits.nodes, waits.start_time) == ("PENDING", "Resources", (), None)
    assert (waits.num_nodes, waits.gpus, waits.asked_per_node) == (2, 8, 4)
    assert waits.exclusive and not later.exclusive and not recorded.job("whole").exclusive
    assert (later.reason, later.gpus, later.asked_per_node, later.time_limit_s) == ("BeginTime", 4, 0, None)
    assert later.eligible_time - later.submit_time > 7000


def test_arrays_components_and_companions(recorded: Recorded) -> None:
    """Tasks and components are records of their own; a companion has no batch host."""
    task, waiting, part = (recorded.job(name) for name in ("task", "array", "component"))
    assert (task.array_job_id, task.array_task, task.running) == (recorded.ids["array"], "0", True)
    assert (waiting.array_job_id, waiting.array_task, waiting.pending) == (recorded.ids["array"], "1-4%1", True)
    first = recorded.ids["component"] - 1
    assert (part.het_job_id, part.het_offset, part.num_nodes, part.gpus) == (first, 1, 2, 2)
    assert [one.job_id for one in recorded.snapshot.components(first)] == [first, part.job_id]
    companion = recorded.job("companion")
    assert (companion.batch_host, companion.nodes, companion.gpus, companion.name) == ("", ("n2",), 1, "selastic-1")


def test_nodes(recorded: Recorded) -> None:
    """GPUs, used ones, processors, memory, the drained one; the partition."""
    nodes = recorded.snapshot.nodes
    assert {name: node.gpus_used for name, node in nodes.items()} == {"n1": 2, "n2": 4, "n3": 4, "n4": 3, "n5": 0}
    assert {(node.gpus, node.gpu_type, node.cpus, node.partitions) for node in nodes.values()} == {
        (4, "a100", 16, ("main",))
    }
    assert (nodes["n3"].cpus_used, nodes["n3"].mem_alloc_mb) == (8, 700)
    assert [name for name, node in nodes.items() if not node.schedulable] == ["n5"]
    main = recorded.snapshot.partitions["main"]
    assert (main.tier, main.preempt_mode) == (1, "OFF")


def test_limits_and_reservations(recorded: Recorded) -> None:
    """What sacctmgr set, for whom; the reservation with its nodes and times."""
    site = recorded.outcome["site"]
    assert isinstance(site, Site)
    assert site.parents == {"research": "root"}
    for limit in (
        SlurmLimit("research", 5, tres={"gres/gpu": 16.0, "jobs": 9.0}),
        SlurmLimit("research", 5, tres={"gres/gpu": 12.0}, scope="job"),
        SlurmLimit(qos="normal", tres={"cpu": 500.0}),
        SlurmLimit(qos="normal", tres={"node": 4.0}, scope="job"),
        SlurmLimit(qos="normal", tres={"gres/gpu": 18.0}, scope="user"),
    ):
        assert limit in site.limits
    (kept,) = site.reservations
    assert (kept.name, kept.nodes, kept.end - kept.start) == ("maint", ("n5",), 3600)


def test_what_works_and_what_is_refused(recorded: Recorded) -> None:
    """A refusal is told from a success, in every command and on every release."""
    refused = {name for name, outcome in recorded.outcome.items() if isinstance(outcome, SlurmRefused)}
    assert refused == {
        "shrink without the batch host",
        "shrink nothing",
        "requeue what waits",
        "requeue without a script",
        "resize what runs",
        "cancel a waiting component",
    }
    unclear = (SlurmUnreachable, SlurmUnparsable)
    assert not [outcome for outcome in recorded.outcome.values() if isinstance(outcome, unclear)]


def test_a_slurmctld_that_is_down_has_refused_nothing(recorded: Recorded) -> None:
    """squeue, scontrol and scancel each say it in words of their own."""
    assert recorded.down == [SlurmUnreachable] * 3
