"""selasticd as a process of its own on a real Slurm: grow, give way, shrink, release, end, die and come back.

Supervisors are stubs that speak the real protocol and submit real companions (stub_supervisor.py); jobs belong to
another user than the daemon.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from live_daemon import REQUEST, ROOT, USER, Selasticd, live_daemon
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox


@pytest.fixture
def selasticd(empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Selasticd]:
    """A running daemon on an empty cluster."""
    with live_daemon(empty_sandbox, monkeypatch) as daemon:
        yield daemon


def test_grow_give_way_take_back_and_end(selasticd: Selasticd) -> None:
    """The story: a job grows by a companion, gives way to a rigid job, takes it back, and ends leaving nothing."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4")
    selasticd.settles_at(job, 12)
    assert selasticd.companions()[0].user == USER
    rigid = selasticd.rigid(7)
    wait_until(lambda: selasticd.jobs()[rigid].running, 30, selasticd.log)
    selasticd.settles_at(job, 4)
    selasticd.sandbox.run(["scancel", str(rigid)])
    selasticd.settles_at(job, 12)
    selasticd.finish(job)
    wait_until(lambda: job not in selasticd.jobs() and not selasticd.companions(), 30, selasticd.log)
    wait_until(lambda: "ended" in selasticd.events(job), 30, selasticd.log)
    explained = selasticd.client().get(f"/v1/jobs/{job}/explain")
    assert explained is not None
    advice = selasticd.selastic("advise", str(job), "--deadline=now+1day", "--samples=9000000").stdout
    assert "WAIT: by Slurm's own (sbatch --test-only)" in advice and "first is the cheapest" in advice
    lines = [line.removeprefix("#SBATCH ") for line in advice.splitlines() if line.startswith("#SBATCH ")]
    tried = selasticd.sandbox.run(["sbatch", "--test-only", *" ".join(lines).split(), "--wrap=true"])
    assert "to start at" in tried.stderr and "--comment=elastic:gpus=" in lines[-1]


def test_rigid_jobs_start_as_they_would_without_the_daemon(selasticd: Selasticd) -> None:
    """Three ordinary jobs that fit beside an elastic one at its minimum: with all 32 GPUs in its hands they start in
    the time that their room takes to be made, not later, and so do all three."""

    def waits() -> list[float]:
        jobs = [selasticd.rigid(nodes) for nodes in (3, 3, 1)]
        wait_until(lambda: all(selasticd.jobs()[job].running for job in jobs), 90, selasticd.log)
        found = [selasticd.jobs()[job] for job in jobs]
        selasticd.sandbox.run(["scancel", *map(str, jobs)])
        wait_until(lambda: not set(jobs) & selasticd.jobs().keys(), 60, selasticd.log)
        return [job.start_time - job.submit_time for job in found if job.start_time is not None]

    selasticd.kill(signal.SIGTERM)
    job = selasticd.submit("-N1", "--gres=gpu:a100:4", comment="elastic:gpus=4-32,step=4,batch=240-3840")
    wait_until(lambda: selasticd.held(job) == 4, 60, selasticd.log)
    alone = waits()
    selasticd.start()
    selasticd.settles_at(job, 32, 90)
    beside = waits()
    print("waits of rigid jobs in s, without and with the daemon:", alone, beside)
    assert len(alone) == len(beside) == 3
    # Seconds: the order, the agreed step, the release, and Slurm's next look at its queue.
    assert max(b - a for a, b in zip(alone, beside, strict=True)) <= 20


def test_a_base_is_shrunk_in_place_for_a_rigid_job(selasticd: Selasticd) -> None:
    """No companion to give: the base itself gives up its second node, and keeps its batch host."""
    job = selasticd.submit("-N2", "--gres=gpu:a100:4", comment="elastic:gpus=4-8,step=4,batch=240-3840")
    selasticd.settles_at(job, 8)
    host = selasticd.jobs()[job].batch_host
    rigid = selasticd.rigid(7)
    wait_until(lambda: selasticd.jobs()[rigid].running, 30, selasticd.log)
    base = selasticd.jobs()[job]
    assert base.running and base.nodes == (host,)


def test_a_pin_that_nothing_leads_to_says_so(selasticd: Selasticd) -> None:
    """Two nodes of four GPUs make no six. Whoever pins is told, and `explain` says it for as long as it holds."""
    job = selasticd.submit("-N2", "--gres=gpu:a100:4", comment="elastic:gpus=2-8,step=2,batch=240-3840,via=shrink")
    wait_until(lambda: selasticd.trains_on(job) == 8, 60, selasticd.log)
    # Whoever pins before a round has seen the job is told by `explain` alone.
    wait_until(lambda: "sizes in reach: 4, 8" in selasticd.selastic("pin", str(job), "6").stdout, 60, selasticd.log)
    told = unwrapped("it is pinned to 6 GPUs, and from the 8 that it has")
    wait_until(lambda: told in unwrapped(selasticd.selastic("explain", str(job)).stdout), 60, selasticd.log)
    assert "in reach" not in selasticd.selastic("pin", str(job), "4").stdout
    selasticd.settles_at(job, 4)


def test_a_heterogeneous_component_is_released(selasticd: Selasticd) -> None:
    """A component is cancelled by its own id; the base and its script run on."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4", ":", "-N1", "--gres=gpu:a100:4", comment=REQUEST)
    wait_until(lambda: selasticd.held(job) >= 8, 60, selasticd.log)
    rigid = selasticd.rigid(7)
    wait_until(lambda: selasticd.jobs()[rigid].running, 60, selasticd.log)
    selasticd.settles_at(job, 4)
    assert selasticd.jobs()[job].running


def test_two_elastic_jobs_share(selasticd: Selasticd) -> None:
    """An elastic job that waits for its starting size is let in by one that has more than its minimum."""
    first = selasticd.submit("-N1", "--gres=gpu:a100:4", comment="elastic:gpus=4-32,step=4,batch=240-3840")
    selasticd.settles_at(first, 32, 90)
    second = selasticd.submit("-N2", "--gres=gpu:a100:4", comment="elastic:gpus=8-12,step=4,batch=240-3840")
    wait_until(lambda: selasticd.trains_on(second) >= 8, 40, selasticd.log)
    assert 4 <= selasticd.held(first) <= 24


def test_a_dead_base_takes_its_companions_with_it(selasticd: Selasticd) -> None:
    """The base is killed with its supervisor, and nobody but the daemon is left to clean up."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4")
    selasticd.settles_at(job, 12)
    selasticd.sandbox.run(["scancel", "--signal=KILL", "--full", str(job)])
    wait_until(lambda: job not in selasticd.jobs() and not selasticd.companions(), 30, selasticd.log)


@pytest.mark.parametrize("stage", ["accepted", "granted", "ready"])
def test_a_killed_daemon_goes_on_where_it_was(selasticd: Selasticd, stage: str) -> None:
    """SIGKILL in the middle of a resize, the resize goes on without it, and the next daemon ends at the same size."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4", hold=stage)
    log = selasticd.stubs / f"{job}.log"
    wait_until(lambda: log.exists() and f"holds at {stage}" in log.read_text(), 30, selasticd.log)
    selasticd.kill()
    (selasticd.stubs / f"{job}.go").touch()
    wait_until(lambda: "running 12" in log.read_text(), 30, selasticd.log)
    selasticd.start()
    selasticd.settles_at(job, 12)
    wait_until(lambda: "resize_done" in selasticd.events(job), 30, selasticd.log)
    assert log.read_text().count("running") == 1


def test_a_daemon_killed_during_a_release_finishes_it(selasticd: Selasticd) -> None:
    """What the switch gave up is released by the daemon that comes next."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4", hold="ready")
    log = selasticd.stubs / f"{job}.log"
    go = selasticd.stubs / f"{job}.go"
    wait_until(lambda: log.exists() and "holds at ready" in log.read_text(), 30, selasticd.log)
    go.touch()
    selasticd.settles_at(job, 12)
    go.unlink()
    rigid = selasticd.rigid(7)
    wait_until(lambda: log.read_text().count("holds at ready") == 2, 30, selasticd.log)
    selasticd.kill()
    go.touch()
    wait_until(lambda: log.read_text().count("running") == 2, 30, selasticd.log)
    assert not selasticd.jobs()[rigid].running
    selasticd.start()
    wait_until(lambda: selasticd.jobs()[rigid].running, 30, selasticd.log)
    selasticd.settles_at(job, 4)


@pytest.mark.parametrize(
    ("request_text", "sentence"),
    [
        ("gpus=8-4,batch=240", "gpus=8-4 has its minimum above its maximum"),
        ("gpu=4-8,batch=240", "unknown key 'gpu' in the elastic request (did you mean gpus?)"),
        ("gpus=4-8,step=4,batch=7", "batch=7 cannot be shared out evenly at any size in gpus=4-8"),
        ("gpus=8-16,batch=64", "the job starts with 4 GPUs"),
    ],
)
def test_malformed_requests_are_told_and_the_job_is_left_alone(
    selasticd: Selasticd, request_text: str, sentence: str
) -> None:
    """Its log and `selastic explain` have the sentence, also once it is over; meanwhile another job is resized."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4", comment=f"elastic:{request_text}")
    log = selasticd.stubs / f"{job}.log"
    wait_until(lambda: log.exists() and "managed=False" in log.read_text(), 30, selasticd.log)
    assert sentence in log.read_text()
    wait_until(lambda: "not_managed" in selasticd.events(job), 30, selasticd.log)
    assert_explained(selasticd, job, sentence)
    host = selasticd.jobs()[job].nodes
    other = selasticd.submit("-N1", "--gres=gpu:a100:4")
    selasticd.settles_at(other, 12)
    left = selasticd.jobs()[job]
    assert left.running and (left.nodes, left.gpus) == (host, 4)
    assert not {"managed", "resize_issued", "released"} & set(selasticd.events(job))
    assert {companion.name for companion in selasticd.companions()} == {f"selastic-{other}"}
    selasticd.finish(job)
    wait_until(lambda: "ended" in selasticd.events(job), 60, selasticd.log)
    assert_explained(selasticd, job, sentence)


def test_a_request_that_the_site_cannot_meet_is_told_once_and_the_job_is_left_alone(
    selasticd: Selasticd, request: pytest.FixtureRequest
) -> None:
    """A minimum above what the partition holds: status and explain say so, the log has it once; the job, which waits in
    Slurm's queue, is not touched. A type of GPU that the site lacks Slurm itself refuses."""
    sandbox = selasticd.sandbox

    def scontrol(*words: str) -> None:
        answer = sandbox.run(["scontrol", *words])
        assert answer.returncode == 0, answer.stderr

    def delete() -> bool:
        return sandbox.run(["scontrol", "delete", "PartitionName=tiny"]).returncode == 0

    # Some releases refuse a job that is larger than its partition, so the partition becomes smaller when it is there.
    scontrol("create", "PartitionName=tiny", "Nodes=n1,n2", "State=DOWN")
    comment = "elastic:gpus=8-16,batch=64-640"
    job = selasticd.submit("-N2", "--gres=gpu:a100:4", "--partition=tiny", comment=comment)
    request.addfinalizer(lambda: (sandbox.run(["scancel", str(job)]), wait_until(delete, 60)))
    scontrol("update", "PartitionName=tiny", "Nodes=n1")
    scontrol("update", "PartitionName=tiny", "State=UP")
    said = f"job {job} ({USER}): not managed: gpus=8-16"
    wait_until(lambda: said in selasticd.log(), 60, selasticd.log)
    assert_explained(selasticd, job, "gpus=8-16: partition tiny has 4 GPUs in all")
    assert "impossible" in selasticd.selastic("status").stdout
    before = selasticd.jobs()[job]
    other = selasticd.submit("-N1", "--gres=gpu:a100:4")
    selasticd.settles_at(other, 12)
    assert selasticd.events(job) == ["not_managed"] and selasticd.log().count(said) == 1
    now = selasticd.jobs()[job]
    assert replace(now, reason=before.reason) == before and before.pending  # Slurm looks at it now and then
    command = ["sbatch", "-N1", "--gres=gpu:h100:1", "--comment=elastic:gpus=1-4,batch=64", "--wrap", "true"]
    assert "configuration is not available" in sandbox.run(command).stderr


def assert_explained(selasticd: Selasticd, job: int, sentence: str) -> None:
    """The command line says why the job is not managed: in its words, wrapped at will, and in its JSON."""
    told = selasticd.selastic("explain", str(job), "--json")
    assert told.returncode == 0, told.stderr
    row = json.loads(told.stdout)["job"]
    assert row["managed"] is False and sentence in row["detail"]
    printed = selasticd.selastic("explain", str(job))
    assert printed.returncode == 0, printed.stderr
    assert unwrapped(row["detail"]) in unwrapped(printed.stdout)


def unwrapped(text: str) -> str:
    """Without what wrapping and the start of a sentence change."""
    return "".join(text.split()).casefold()


def test_check_says_that_all_is_well(selasticd: Selasticd) -> None:
    """`selasticd --check` tries settings, database, munge and Slurm."""
    command = [sys.executable, "-m", "slurm_elastic.daemon.selasticd.main", "--check"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "packaging/namespace")}
    config = str(selasticd.folder / "selasticd.toml")
    answer = subprocess.run([*command, "--config", config], capture_output=True, text=True, env=env, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "8 nodes, 32 GPUs" in answer.stdout and "all is well" in answer.stdout
    assert "rights: root may change all jobs\n" in answer.stdout


def test_a_users_own_daemon_manages_only_their_jobs(selasticd: Selasticd) -> None:
    """`selasticd --user`: another user's elastic job is an ordinary one, and comes first when it waits."""
    assert selasticd.kill(signal.SIGTERM) == 0
    selasticd.options = ["--user"]
    selasticd.start()
    mine = selasticd.submit("-N1", "--gres=gpu:a100:4", user=None)
    selasticd.settles_at(mine, 12)
    command = ["sbatch", "--parsable", "--output=/dev/null", "-N7", "--gres=gpu:a100:4", "--time=10"]
    comment = "--comment=elastic:gpus=4-32,step=4,batch=240"
    answer = selasticd.sandbox.run([*command, comment, "--wrap", "sleep 600"], user=USER)
    theirs = int(answer.stdout)
    wait_until(lambda: selasticd.jobs()[theirs].running, 30, selasticd.log)
    selasticd.settles_at(mine, 4)
    listed = selasticd.client().get("/v1/jobs") or {"jobs": []}
    assert [row["job_id"] for row in listed["jobs"]] == [mine]
