"""How grown jobs end on a real Slurm: what was trained is in a checkpoint, but for the step under way at most."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from local_run import children
from site_cluster import GRACE_S, SiteCluster
from site_training import Training
from waiting import wait_until


def test_nothing_but_the_step_under_way_is_lost(site: SiteCluster, start: Callable[..., Training]) -> None:
    """All at once, grown by a companion: scancel and requeue, with `exec` and without, replicas and parts; a batch host
    whose step takes longer than the job has; a supervisor that dies with its batch script before it can do anything."""
    cancelled = start("cancelled", run="")
    requeued = start("requeued", options="--requeue")
    parts = start("parts", strategy="fsdp")
    slow = start("slow")
    killed = start("killed")
    jobs = [cancelled, requeued, parts, slow, killed]
    for job in jobs:
        job.grow()
    companions = [job.grown() for job in jobs]
    (slow.folder / "stuck").touch()
    batch = supervisors(killed).union(*map(children, supervisors(killed)))
    assert len(batch) >= 3  # the supervisor, its parent, and an srun: what dies with its batch script under cgroups
    site.sandbox.run(["scontrol", "requeue", str(requeued.id)])
    site.sandbox.run(["scancel", *(str(job.id) for job in jobs if job is not requeued)])
    for pid in batch:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for job in jobs:
        job.comes_to("CANCELLED", "PENDING")
    for job in jobs:
        assert job.saved() >= job.trained() - 1, f"{job.saved()} of {job.trained()} steps\n{job.text()}"
    for companion in companions[:-1]:
        wait_until(lambda companion=companion: site.squeue(companion.slurm_job_id, "%T") == "CANCELLED", 90)


def supervisors(job: Training) -> set[int]:
    """The supervisor and its parent."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ours = f"\0SLURM_JOB_ID={job.id}\0".encode() in (path / "environ").read_bytes()
            if ours and (path / "cwd").resolve() == job.folder and b"supervisor.cli" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
    return found


def test_a_supervisor_that_is_killed_ends_no_job(site: SiteCluster, start: Callable[..., Training]) -> None:
    """Out of memory, say: the job trains on from the step where it was."""
    job = start("killed")
    job.grow()
    job.grown()
    before = len(job.daemon.registrations)
    both = supervisors(job)
    [supervisor] = [pid for one in both for pid in children(one) if pid in both]
    os.kill(supervisor, signal.SIGKILL)
    job.says("starting it again")
    wait_until(lambda: len(job.daemon.registrations) > before, 150, job.text)
    job.trained_once()
    assert job.state() == "RUNNING"


def test_a_grace_is_used(site: SiteCluster, start: Callable[..., Training]) -> None:
    """Preempted with a grace of 20 s: a job trains through it, and what it has trained then is in a checkpoint."""
    alone = start("alone", options="-plow -w n1 --requeue")
    grown = start("grown", options="-plow -w n2 --requeue", run="")
    grown.grow("n3")
    grown.grown()
    wait_until(lambda: alone.trained() > 5, 60, alone.text)
    site.sbatch("-purgent", "-N2", "-wn1,n2", "--gres=gpu:4")
    wait_until(lambda: alone.saved() and grown.saved(), 60, alone.text)
    before = {job: job.saved() for job in (alone, grown)}
    for job in (alone, grown):
        job.comes_to("PENDING")
        assert job.saved() > before[job]
        assert job.saved() >= job.trained() - 1, f"{job.saved()} of {job.trained()} steps\n{job.text()}"


def test_companions_that_slurm_wants_are_left_at_once(site: SiteCluster, start: Callable[..., Training]) -> None:
    """With a grace of ten minutes: one that is preempted is given back while its base trains on; so is one that
    selasticd takes while its base is preempted; one that is suspended stops nobody; one that loses a node keeps the
    other; one whose own time is over, though its base's is not, costs no step."""
    grace = ["scontrol", "update", "PartitionName=low"]
    assert site.sandbox.run([*grace, "GraceTime=600"]).returncode == 0
    try:
        short = start("short", options="-w n5 --time=2")
        short.grow("n6")
        short.daemon.wait_phase(1, "granted")
        assert site.sandbox.run(["scontrol", "update", f"JobId={short.id}", "TimeLimit=30"]).returncode == 0
        preempted = start("preempted", options="-plow -w n1")
        base = start("base", options="-plow -w n3")
        suspended = start("suspended", options="-w n5")
        failed = start("failed", options="-w n7")
        jobs = {preempted: ("n2",), base: ("n4",), suspended: ("n6",), failed: ("n7", "n8")}
        for job, nodes in jobs.items():
            job.grow(*nodes)
        companions = {job: job.grown() for job in [*jobs, short]}
        waits = [site.sbatch("-purgent", f"-w{node}", "--gres=gpu:4") for node in ("n2", "n3")]
        base.says("about to end")
        [kept, _] = base.daemon.wait_phase(1, "running").pieces
        base.daemon.order(2, base.id, (kept,))
        assert base.daemon.wait_phase(2, "running").pieces == (kept,)
        stopped = companions[suspended].slurm_job_id
        assert site.sandbox.run(["scontrol", "suspend", str(stopped)]).returncode == 0
        down = ["scontrol", "update", "NodeName=n8", "State=DOWN", "Reason=test"]
        assert site.sandbox.run(down).returncode == 0
        failed.says("2 workers (1 x 1 of base, 1 x 1 of companion), from checkpoint")
        assert site.squeue(companions[failed].slurm_job_id, "%N") == "n7"
        wait_until(lambda: site.squeue(waits[0], "%T") == "RUNNING", 90, preempted.text)
        wait_until(lambda: site.squeue(stopped, "%T") == "CANCELLED", 90, suspended.text)
        ends = companions[short].slurm_job_id
        wait_until(lambda: site.squeue(ends, "%T") == "TIMEOUT", 150, short.text)
        short.says("going on without it")
        short.trained_once()
        for job in [*jobs, short]:
            assert job.state() == "RUNNING", job.text()
            step = job.trained()
            wait_until(lambda job=job, step=step: job.trained() > step + 5, 60, job.text)
            assert job is failed or "starting again" not in job.text(), job.text()
    finally:
        site.sandbox.run([*grace, f"GraceTime={GRACE_S}"])
