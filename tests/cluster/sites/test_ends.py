"""How grown jobs end on a real Slurm: what was trained is in a checkpoint, but for the step under way at most."""

from __future__ import annotations

import kill_targets
from local_run import children, kill
from site_cluster import GRACE_S, SiteCluster
from training import TRAIN, on
from training_job import Start, TrainingJob
from waiting import wait_until

MODEL = "torch.nn.Linear(4, 3)"
PARTS = TRAIN.replace(MODEL, f"torch.nn.Sequential(torch.nn.Linear(4, 4), {MODEL})").replace(
    "lr=0.1))", "lr=0.1), strategy='fsdp')"
)


def test_nothing_but_the_step_under_way_is_lost(site: SiteCluster, start: Start) -> None:
    """All at once, grown by a companion: scancel and requeue, with `exec` and without, replicas and parts; a batch host
    whose step takes longer than the job has; a supervisor that dies with its batch script before it can do anything."""
    gpu = "--gres=gpu:1"
    cancelled = start(gpu, 100_000, script="{run}")
    requeued = start(f"{gpu} --requeue", 100_000)
    parts = start(gpu, 100_000, train=PARTS)
    slow = start(gpu, 100_000)
    killed = start(gpu, 100_000)
    jobs = [cancelled, requeued, parts, slow, killed]
    ordered = [(job, job.order(job.base(), on())) for job in jobs]
    companions = [job.resized(number).pieces[1] for job, number in ordered]
    (slow.folder / "stuck").touch()
    batch = supervisors(killed).union(*map(children, supervisors(killed)))
    assert len(batch) >= 3  # the supervisor, its parent, and an srun: what dies with its batch script under cgroups
    site.sandbox.run(["scontrol", "requeue", str(requeued.id)])
    site.sandbox.run(["scancel", *(str(job.id) for job in jobs if job is not requeued)])
    kill(*batch)
    for job in jobs:
        job.comes_to("CANCELLED", "PENDING")
    for job in jobs:
        assert job.saved() >= job.trained() - 1, f"{job.saved()} of {job.trained()} steps\n{job.text()}"
    for companion in companions[:-1]:
        wait_until(lambda companion=companion: site.squeue(companion.slurm_job_id, "%T") == "CANCELLED", 90)


def supervisors(job: TrainingJob) -> set[int]:
    """The supervisor and its parent."""
    return set(kill_targets.supervisors(job.sandbox, job.id))


def test_a_supervisor_that_is_killed_ends_no_job(site: SiteCluster, start: Start) -> None:
    """Out of memory, say: the job trains on from the step where it was."""
    job = start("--gres=gpu:1", 100_000)
    job.grow()
    before = len(job.daemon.registrations)
    both = supervisors(job)
    [supervisor] = [pid for one in both for pid in children(one) if pid in both]
    kill(supervisor)
    job.says("starting it again")
    wait_until(lambda: len(job.daemon.registrations) > before, 150, job.text)
    job.trained_once()
    assert job.state() == "RUNNING"


def test_a_grace_is_used(site: SiteCluster, start: Start) -> None:
    """Preempted with a grace of 20 s: a job trains through it, and what it has trained then is in a checkpoint."""
    alone = start("--gres=gpu:1 -plow -w n1 --requeue", 100_000)
    grown = start("--gres=gpu:1 -plow -w n2 --requeue", 100_000, script="{run}")
    grown.grow("n3")
    alone.trains_past(5)
    site.sbatch("-purgent", "-N2", "-wn1,n2", "--gres=gpu:4")
    wait_until(lambda: alone.saved() and grown.saved(), 60, alone.text)
    before = {job: job.saved() for job in (alone, grown)}
    for job in (alone, grown):
        job.comes_to("PENDING")
        assert job.saved() > before[job]
        assert job.saved() >= job.trained() - 1, f"{job.saved()} of {job.trained()} steps\n{job.text()}"


def test_companions_that_slurm_wants_are_left_at_once(site: SiteCluster, start: Start) -> None:
    """With a grace of ten minutes: one that is preempted is given back while its base trains on; so is one that
    selasticd takes while its base is preempted; one that is suspended stops nobody; one that loses a node keeps the
    other; one whose own time is over, though its base's is not, costs no step."""
    grace = ["scontrol", "update", "PartitionName=low"]
    assert site.sandbox.run([*grace, "GraceTime=600"]).returncode == 0
    try:
        gpu = "--gres=gpu:1"
        short = start(f"{gpu} -w n5 --time=2", 100_000)
        ordered = {short: short.order(short.base(), on("n6"))}
        short.daemon.wait_phase(1, "granted")
        assert site.sandbox.run(["scontrol", "update", f"JobId={short.id}", "TimeLimit=30"]).returncode == 0
        preempted = start(f"{gpu} -plow -w n1", 100_000)
        base = start(f"{gpu} -plow -w n3", 100_000)
        suspended = start(f"{gpu} -w n5", 100_000)
        failed = start(f"{gpu} -w n7", 100_000)
        jobs = {preempted: ("n2",), base: ("n4",), suspended: ("n6",), failed: ("n7", "n8")}
        ordered |= {job: job.order(job.base(), on(*nodes)) for job, nodes in jobs.items()}
        companions = {job: job.resized(number).pieces[1] for job, number in ordered.items()}
        waits = [site.sbatch("-purgent", f"-w{node}", "--gres=gpu:4") for node in ("n2", "n3")]
        base.says("about to end")
        [kept, _] = base.daemon.wait_phase(1, "running").pieces
        assert base.resize((kept,), steps=0).pieces == (kept,)
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
            job.trains_on(5)
            assert job is failed or "starting again" not in job.text(), job.text()
    finally:
        site.sandbox.run([*grace, f"GraceTime={GRACE_S}"])
