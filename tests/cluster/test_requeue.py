"""Jobs put back into the queue on a real Slurm, by the daemon or by Slurm: they come back at another size, and soon."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from live_daemon import OTHER, Selasticd, live_daemon
from sandbox_jobs import cancel_all
from training_job import Start
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox

BEGIN_S = 121
"""How long Slurm by itself keeps a job that was put back from starting."""


@pytest.fixture
def selasticd(empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Selasticd]:
    """A running daemon on an empty cluster."""
    with live_daemon(empty_sandbox, monkeypatch) as daemon:
        yield daemon


@pytest.fixture
def tiers(empty_sandbox: Sandbox) -> Iterator[None]:
    """Two more partitions over all nodes: jobs of `urgent` preempt those of `scavenger`, which are requeued."""
    made = {"scavenger": ["PriorityTier=1", "PreemptMode=REQUEUE"], "urgent": ["PriorityTier=20", "PreemptMode=OFF"]}
    for name, options in made.items():
        words = ["scontrol", "create", f"PartitionName={name}", "Nodes=n[1-8]", "State=UP", *options]
        answer = empty_sandbox.run(words)
        assert answer.returncode == 0, answer.stderr
    yield
    cancel_all(empty_sandbox)
    for name in made:
        wait_until(lambda name=name: empty_sandbox.run(["scontrol", "delete", f"PartitionName={name}"]).returncode == 0)


def test_half_a_node_is_reached_by_requeue_and_nobody_comes_between(selasticd: Selasticd) -> None:
    """What neither shrink nor companion reaches: the job starts anew on 2 of a node's 4 GPUs, though another job waits
    for every node; nothing stays reserved."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4", comment="elastic:gpus=1-4,batch=240-3840,via=shrink+requeue")
    wait_until(lambda: selasticd.trains_on(job) == 4, 60, selasticd.log)
    rigid = selasticd.rigid(8)
    wait_until(lambda: selasticd.jobs()[rigid].pending, 30, selasticd.log)
    pinned = selasticd.selastic("pin", str(job), "2")
    assert pinned.returncode == 0, pinned.stderr
    selasticd.settles_at(job, 2, 90)
    base = selasticd.jobs()[job]
    assert (base.num_nodes, base.gpus_per_node, base.restarts) == (1, 2, 1)
    assert base.start_time is not None and base.eligible_time <= base.start_time
    assert selasticd.jobs()[rigid].pending
    wait_until(lambda: selasticd.events(job)[-1] == "resize_done", 60, selasticd.log)
    assert "No reservations" in selasticd.sandbox.run(["scontrol", "show", "reservation"]).stdout
    kinds = selasticd.events(job)
    steps = [kind for kind in kinds[kinds.index("requeue") :] if kind in ("requeue", "resume", "free", "resize_done")]
    assert steps == ["requeue", "resume", "free", "resize_done"]


def test_training_goes_on_from_a_checkpoint_written_before_the_requeue(selasticd: Selasticd, start: Start) -> None:
    """Real training, pinned to half of its GPUs: its supervisor writes a checkpoint on selasticd's order and says so
    before the job is put back, and every sample is seen exactly once."""
    comment = "--comment=elastic:gpus=1-2,batch=16-64,via=shrink+requeue"
    options = f"-N1 --gres=gpu:a100:2 --requeue --time=60 --mem=1G {comment}"
    job = start(options, 9000, alone=True, words="--checkpoint-every 1", env=selasticd.found)
    wait_until(lambda: selasticd.trains_on(job.id) == 2, 120, job.story)
    assert selasticd.selastic("pin", str(job.id), "1").returncode == 0
    wait_until(lambda: "resize_done" in selasticd.events(job.id), 120, job.story)
    selasticd.settles_at(job.id, 1, 60)
    kinds = selasticd.events(job.id)
    kinds = kinds[kinds.index("resize_saved") - 1 :]
    order = [kind for kind in kinds if kind in ("resize_accepted", "resize_saved", "requeue", "resume", "resize_done")]
    assert order == ["resize_accepted", "resize_saved", "requeue", "resume", "resize_done"], kinds
    assert job.finish().restarts == 1


def test_with_notice_a_job_gives_way_and_is_never_preempted(selasticd: Selasticd, tiers: None) -> None:
    """A job of a higher tier that may start only in some seconds, as job_submit.lua says for such partitions, finds its
    nodes free: the elastic one has given way in place, without being put back or losing a step."""
    job = selasticd.submit(
        *("-N4", "--gres=gpu:a100:4", "--partition=scavenger"), comment="elastic:gpus=4-16,step=4,batch=240-3840"
    )
    wait_until(lambda: selasticd.trains_on(job) == 16, 60, selasticd.log)
    notice = ["--begin=now+55", "-N7", "--gres=gpu:a100:4", "--partition=urgent"]
    answer = selasticd.sandbox.run(
        ["sbatch", "--parsable", "--output=/dev/null", *notice, "--wrap", "sleep 600"], user=OTHER
    )
    urgent = int(answer.stdout)
    selasticd.settles_at(job, 4, 50)
    assert selasticd.jobs()[urgent].pending
    # The time is over, as far as Slurm can tell; the test need not sit it out.
    assert selasticd.sandbox.run(["scontrol", "update", f"jobid={urgent}", "starttime=now"]).returncode == 0
    wait_until(lambda: selasticd.jobs()[urgent].running, 60, selasticd.log)
    base = selasticd.jobs()[job]
    assert base.running and base.restarts == 0 and selasticd.trains_on(job) == 4


def test_a_preempted_job_trains_on_what_is_left(selasticd: Selasticd, tiers: None) -> None:
    """A job of a higher tier takes 6 of 8 nodes: the elastic one gives way in place or comes back on what is left, long
    before Slurm by itself would let it start again."""
    job = selasticd.submit(
        *("-N4", "--gres=gpu:a100:4", "--partition=scavenger"), comment="elastic:gpus=4-16,step=4,batch=240-3840"
    )
    wait_until(lambda: selasticd.trains_on(job) == 16, 60, selasticd.log)
    command = ["sbatch", "--parsable", "--output=/dev/null", "-N6", "--gres=gpu:a100:4", "--partition=urgent"]
    answer = selasticd.sandbox.run([*command, "--wrap", "sleep 600"], user=OTHER)
    urgent = int(answer.stdout)
    wait_until(lambda: selasticd.jobs()[urgent].running, 60, selasticd.log)
    selasticd.settles_at(job, 8, 110)
    jobs = selasticd.jobs()
    began, back = jobs[urgent].start_time, jobs[job].start_time
    print(f"requeued {jobs[job].restarts} times, runs {(back or 0) - (began or 0):.0f} s after the other's start")
    assert jobs[urgent].running and began is not None and back is not None and back - began < BEGIN_S


def test_a_job_that_has_no_room_starts_small_and_grows(empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six of eight nodes are taken and four asked for: the job runs on one GPU of one of the two that are idle, in
    place of waiting, grows onto all of both, and has the rest of what it asked for when the six are free."""
    with live_daemon(empty_sandbox, monkeypatch) as selasticd:
        rigid = selasticd.rigid(6)
        wait_until(lambda: selasticd.jobs()[rigid].running, 60, selasticd.log)
        job = selasticd.submit("-N4", "--gres=gpu:a100:4", comment="elastic:gpus=1-16,batch=240-3840")
        selasticd.settles_at(job, 8, 120)
        base = selasticd.jobs()[job]
        assert base.running and (base.num_nodes, base.gpus) == (1, 1) and selasticd.jobs()[rigid].running
        assert "resume" in selasticd.events(job)
        assert empty_sandbox.run(["scancel", str(rigid)]).returncode == 0
        selasticd.settles_at(job, 16, 120)


def test_a_job_that_started_small_grows_alone_where_the_daemon_stays_away(
    empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    """It trains on one of the two GPUs that its script asks for when the daemon is killed. Once the other is idle it
    has that, too, as a companion; the daemon that comes back finds it so, and leaves it."""
    with live_daemon(empty_sandbox, monkeypatch, "alone_after_s = 2.0\n") as selasticd:
        command = ["sbatch", "--parsable", "--output=/dev/null", "-N1", "--wrap", "sleep 600"]
        taken = [selasticd.rigid(7), int(empty_sandbox.run([*command, "--gres=gpu:a100:3"]).stdout)]
        wait_until(lambda: all(selasticd.jobs()[one].running for one in taken), 60, selasticd.log)
        comment = "--comment=elastic:gpus=1-4,batch=16-64"
        job = start(f"-N1 --gres=gpu:a100:2 --time=60 --mem=1G {comment}", 9000, alone=True, env=selasticd.found)
        wait_until(lambda: selasticd.trains_on(job.id) == 1 and "manages this job" in job.story(), 120, job.story)
        selasticd.kill()
        for one in taken:
            assert empty_sandbox.run(["scancel", str(one)]).returncode == 0
        wait_until(lambda: "1 -> 2 workers" in job.story(), 120, job.story)
        assert selasticd.held(job.id) == 2 and "selasticd is silent" in job.story()
        selasticd.more = 'mode = "review"\n'  # else it would grow the job further
        selasticd.start()
        selasticd.settles_at(job.id, 2, 60)
        rounds = selasticd.client().get("/v1/health")["rounds"]
        wait_until(lambda: selasticd.client().get("/v1/health")["rounds"] > rounds + 4, 60, selasticd.log)
        assert selasticd.held(job.id) == 2
        job.finish()


def test_jobs_start_at_what_the_plan_gives_them_and_ordinary_ones_are_left_alone(
    empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of eight nodes are idle. With `first_size = "plan"` an elastic job that asks for four starts on all three;
    an array's tasks and a held job, which ask for as much, wait as they were submitted, and so does a job that did not
    opt in. A daemon that dies right after that changes nothing."""
    with live_daemon(empty_sandbox, monkeypatch, 'first_size = "plan"\n') as selasticd:
        rigid = selasticd.rigid(5)
        wait_until(lambda: selasticd.jobs()[rigid].running, 60, selasticd.log)
        request = "elastic:gpus=4-16,step=4,batch=240-3840"
        held = selasticd.submit("-N4", "--gres=gpu:a100:4", "--hold", comment=request)
        job = selasticd.submit("-N4", "--gres=gpu:a100:4", comment=request)
        array = selasticd.submit("-N4", "--gres=gpu:a100:4", "--array=1-2", comment=request)
        ordinary = selasticd.rigid(4)
        wait_until(lambda: selasticd.trains_on(job) == 12, 120, selasticd.log)
        selasticd.kill()
        jobs = selasticd.jobs()
        assert jobs[job].running and jobs[job].num_nodes == 3 and jobs[job].restarts == 0
        waiting = [jobs[number] for number in (held, array, ordinary)]
        assert [(one.pending, one.num_nodes, one.asked_per_node) for one in waiting] == [(True, 4, 4)] * 3
        selasticd.start()
        resumes = [event for event in selasticd.events(job) if event == "resume"]
        assert resumes and not {"resume", "requeue"} & {*selasticd.events(held), *selasticd.events(array)}


def test_a_job_whose_node_failed_and_is_back_waits_slurms_two_minutes(selasticd: Selasticd) -> None:
    """Started at once on that node, it would be ended by what Slurm sent to end its first run. It waits for the time
    that Slurm has set, though it would fit."""
    job = selasticd.submit("-N2", "--gres=gpu:a100:4", comment="elastic:gpus=4-8,step=4,batch=240-3840")
    wait_until(lambda: selasticd.trains_on(job) == 8, 60, selasticd.log)
    flapping = selasticd.jobs()[job].nodes[-1]
    command = ["scontrol", "update", f"nodename={flapping}", "state=down", "reason=flaps"]
    assert selasticd.sandbox.run(command).returncode == 0
    wait_until(lambda: selasticd.jobs()[job].pending, 60, selasticd.log)
    wait_until(lambda: selasticd.sandbox.status().nodes[flapping] == "idle", 60, selasticd.log)
    waits = selasticd.jobs()[job]
    # By then it would have been given its size in the rounds before: two seconds after its end.
    wait_until(lambda: time.time() > waits.submit_time + 6, 30)
    rounds = selasticd.client().get("/v1/health")["rounds"]
    wait_until(lambda: selasticd.client().get("/v1/health")["rounds"] > rounds + 4, 60, selasticd.log)
    now = selasticd.jobs()[job]
    assert now.pending and now.eligible_time == waits.eligible_time > waits.submit_time + BEGIN_S - 2
    assert "resume" not in selasticd.events(job)
