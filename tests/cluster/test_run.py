"""`selastic run` on a real Slurm: real jobs, real companions, real training; the test acts as selasticd would."""

from __future__ import annotations

import os
import signal
import sys

import kill_targets
from training import TRAIN, on
from training_job import Start
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.daemon.slurm import CommandClient, Size
from slurm_elastic.protocol.messages import Piece, Shape
from slurm_elastic.trainer_shim.allocation import job_dir

INIT_DISTRIBUTED = """
import os, torch
if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
    rank = int(os.environ["RANK"])
elif "SLURM_PROCID" in os.environ:
    rank = int(os.environ["SLURM_PROCID"])
else:
    rank = None
if rank is not None:
    world_size = int(os.environ.get("WORLD_SIZE") or os.environ["SLURM_NTASKS"])
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world_size)
"""
"""As public scripts begin."""


def test_trains_without_a_daemon(start: Start) -> None:
    """Two nodes of two GPUs train as one world; with no daemon anywhere the job ends COMPLETED. A worker is no task of
    srun's: an `init_distributed_mode` of the usual kind goes past all its branches."""
    options = "-N2 --gres=gpu:a100:2 -c4 --ntasks-per-node=1"
    job = start(options, 200, 2, 0, alone=True, train=INIT_DISTRIBUTED + TRAIN)
    job.finish()
    assert "4 workers (2 x 2 of base)" in job.text()
    assert "trained 400 samples" in job.text()


def test_srun_in_front(start: Start) -> None:
    """Two tasks, on one node or on two, are refused in one sentence before anything starts; one task trains. The step
    in which the job was asked for counts for none of them, though a batch script has its variables."""
    lines = (
        "srun -n2 -N1 {run} || echo refused with $?",
        f"srun -n2 -N1 {sys.executable} -m slurm_elastic.client.main rehearse train.py || echo rehearsed with $?",
        "srun -N2 {run} || echo refused with $?",
        "run='{run}'; ${{run/--audit/--dry-run --audit}} && echo not refused for $SLURM_STEP_NUM_TASKS of another step",
        "exec srun -N1 -n1 {run}",
    )
    options = "-N2 --gres=gpu:1 --ntasks-per-node=2"
    job = start(options, 200, 1, 0, alone=True, script="\n".join(lines), within="-N1 -n3")
    job.finish()
    text = job.text()
    assert text.count("srun has started selastic run 2 times (SLURM_STEP_NUM_TASKS)") == 1, text
    assert text.count("srun has started selastic run 4 times (SLURM_STEP_NUM_TASKS)") == 1, text
    assert text.count("FAIL  started once  srun has started the training 2 times") == 1, text
    assert text.count("rehearsed with 1\n") == 1, text
    assert text.count("refused with 2\n") == 2 and text.count("generation 1: 2 workers") == 1, text
    assert "not refused for 3 of another step\n" in text, text


def test_grows_by_a_companion_and_shrinks_in_place(start: Start) -> None:
    """Two base nodes and a companion train together; then a base node and the companion are given back to Slurm."""
    job = start("-N2 --gres=gpu:1 --ntasks-per-node=1", 16000)
    [base] = job.base()
    assert (base.slurm_job_id, base.gpus) == (job.id, 2)
    grown = job.resize((base,), Shape(1, 2, 2, gpu_type="a100"), batch=48)
    companion = grown.pieces[1]
    assert job.field("JobName", companion.slurm_job_id) == f"selastic-{job.id}"
    assert job.field("Comment", companion.slurm_job_id) == f"selastic:companion-of={job.id};resize=1"
    changed = job.resize(grown.pieces, batch=40)
    assert (changed.batch, changed.pieces, changed.generation) == (40, grown.pieces, grown.generation + 1)
    assert [told for told in job.daemon.told() if told[0] == 2] == [(2, "accepted"), (2, "running")]
    left = Piece(job.id, "base", base.nodes[:1], 1)
    assert job.resize((left,), batch=32).pieces[0].nodes == left.nodes
    job.slurm("scontrol", "update", f"JobId={job.id}", f"NodeList={left.nodes[0]}")
    job.slurm("scancel", str(companion.slurm_job_id))
    wait_until(lambda: not job.others(), 30, job.others)
    job.resize(job.daemon.happenings[-1].pieces, Shape(1, 1, 1), batch=16)
    job.finish()
    wait_until(lambda: not job.others(), 30, job.others)
    assert "starting again" not in job.text()


HANGS = TRAIN.replace(
    "        job.step(",
    """        while job.rank == 1 and job.generation == 1 and job.global_step == 99:
            time.sleep(0.05)
        job.step(""",
)


def test_a_job_that_stands_still_gives_up_a_node(start: Start) -> None:
    """One rank hangs and agrees on nothing. The other one's node is kept: the state of the last step is written there,
    and the training goes on from it while Slurm takes the node that hung. No sample is lost or repeated."""
    job = start("-N2 --gres=gpu:1 --ntasks-per-node=1", 4000, 1, 0.02, words="--hang-after 2", train=HANGS)
    [base] = job.base()
    assert "rank 1 on" in job.daemon.wait_phase(0, "stalled").detail
    left = Piece(job.id, "base", base.nodes[:1], 1)
    assert job.resize((left,), batch=32).pieces[0].nodes == left.nodes
    job.slurm("scontrol", "update", f"JobId={job.id}", f"NodeList={left.nodes[0]}")
    wait_until(lambda: job.field("NumNodes") == "1", 30, job.text)
    job.finish()
    assert "starting again from the checkpoint of step 99" in job.text(), job.text()


def test_a_node_that_slurm_did_not_take_trains_again(start: Start) -> None:
    """The training has left a node of the base, and Slurm still holds it: new workers start there beside the step that
    goes on, every sample is trained on once, and no work is lost."""
    job = start("-N2 --gres=gpu:1 --ntasks-per-node=1", 4000)
    [base] = job.base()
    job.resize((Piece(job.id, "base", base.nodes[:1], 1),), batch=16)
    assert job.resize((base,), batch=32).pieces == (base,)
    job.finish()
    assert "starting again" not in job.text()


def test_companion_that_cannot_be_had_is_withdrawn(start: Start) -> None:
    """No nodes within the wait: the request leaves the queue, the job trains on as it is."""
    job = start("-N1 --gres=gpu:1", 8000)
    base = job.base()
    job.slurm("sbatch", "-N8", "--gres=gpu:3", "-o/dev/null", "--wrap", "sleep 600")
    wait_until(lambda: "RUNNING" in " ".join(job.others()), 30, job.others)
    number = job.order(base, Shape(1, 4), wait=2)
    assert "granted no companion" in job.daemon.wait_phase(number, "withdrawn").detail
    job.gives_back()
    job.finish()


def test_killed_worker_and_cancelled_companion(start: Start) -> None:
    """kill -9 of a worker: restart from the checkpoint. A companion cancelled by somebody: the job goes on without."""
    job = start("-N1 --gres=gpu:1", 16000, words="--checkpoint-every 1")
    base = job.base()
    companion = job.grow().slurm_job_id
    [worker] = job.worker_pids(companion)
    os.kill(worker, signal.SIGKILL)
    job.says("was killed by signal 9; starting again from the checkpoint")
    job.says("2 workers (1 x 1 of base, 1 x 1 of companion), from checkpoint")
    job.slurm("scancel", str(companion))
    job.says("2 -> 1 workers")
    wait_until(lambda: job.daemon.happenings[-1].pieces == base, 30, job.daemon.told)
    job.finish()
    assert job.text().count("starting again") == 1


def test_a_slurmd_that_dies_and_comes_back_costs_nothing(empty_sandbox: Sandbox, start: Start) -> None:
    """That of the base's node: no step is trained twice, and the job grows to a companion beside it afterwards."""
    job = start("-N1 -wn1 --gres=gpu:1", 2000)
    base = job.base()
    job.daemon.wait_phase(0, "running")
    kill_targets.kill_daemon(empty_sandbox, "slurmd-n1")
    empty_sandbox.start_daemon("slurmd-n1")
    assert job.resize(base, on("n1")).pieces[1].nodes == ("n1",)
    job.finish()
    assert "again" not in job.text()


def test_base_that_is_killed_leaves_no_companion(start: Start) -> None:
    """When the base job is gone without a chance to say so, its companion ends by itself."""
    job = start("-N1 --gres=gpu:1", 160000, 1, 0.02, env={"SELASTIC_ORPHAN_S": "1"})
    job.grow()
    job.slurm("scancel", "--signal=KILL", "--full", str(job.id))
    wait_until(lambda: not job.others(), 40, job.others)


def test_put_back_at_another_size_and_preempted_it_goes_on(start: Start) -> None:
    """A directory that an earlier Slurm's job of this number has left is not the job's. As selasticd requeues it writes
    a checkpoint, and on two nodes, not one, it finds its own directory and goes on from there; so it does when a job
    of a higher tier takes its nodes, and every sample is seen once. That its script is edited then changes nothing."""
    job = start("-N1 --gres=gpu:2 --hold", 8000, alone=True)
    foreign = job.folder / ".selastic" / str(job.id)
    for name in ("logs", "checkpoints/step-000000000060"):
        (foreign / name).mkdir(parents=True)
    (foreign / "checkpoints/step-000000000060/checkpoint.json").write_text("{}")
    command = ("train.py", "8000", "1", "0.1")
    job_dir.write(foreign, job_dir.Run(command, "sandbox", 9, "2025-01-01T00:00:00"))
    job.slurm("scontrol", "release", str(job.id))
    slurm = CommandClient(job.sandbox.env["SLURM_CONF"])
    job.says("generation 1: 2 workers (1 x 2 of base), from fresh")
    slurm.requeue(job.id)
    job.comes_back(Size(2, 2))
    assert list(job.folder.glob(f".selastic/{job.id}-2/checkpoints/step-*/checkpoint.json")), job.text()
    job.says("generation 2: 4 workers (2 x 2 of base), from checkpoint", 90)
    (job.folder / "train.py").write_text("unfinished(")
    job.slurm("scontrol", "create", "PartitionName=urgent", "Nodes=n[1-8]", "State=UP", "PriorityTier=20")
    urgent = job.slurm("sbatch", "--parsable", "-purgent", "-N8", "--gres=gpu:4", "-o/dev/null", "--wrap", "sleep 600")
    wait_until(lambda: job.field("Restarts") == "2", 60, job.text)
    job.slurm("scancel", urgent.strip())
    job.comes_back(Size(2, 2))
    job.says("generation 3: 4 workers (2 x 2 of base), from checkpoint", 90)
    job.says("train.py was edited since this job began")
    wait_until(lambda: job.sandbox.run(["scontrol", "delete", "PartitionName=urgent"]).returncode == 0)
    job.finish()


def test_put_back_by_slurm_after_its_node_failed_it_goes_on(empty_sandbox: Sandbox, start: Start) -> None:
    """Its node dies with all that runs there, supervisor and workers, and Slurm starts it again on another one: it goes
    on from its checkpoint, and every sample counts once."""
    job = start("-N1 --gres=gpu:2", 4000, words="--checkpoint-every 1", alone=True)
    wait_until(lambda: [*job.folder.glob(f".selastic/{job.id}/checkpoints/step-*/checkpoint.json")], 60, job.text)
    node = job.field("NodeList")
    try:
        kill_targets.end_node(empty_sandbox, node)
        job.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        job.comes_back(Size(1, 2))
        job.says("generation 2: 2 workers (1 x 2 of base), from checkpoint", 90)
        assert job.field("Restarts") == "1" and job.field("NodeList") != node
    finally:
        job.slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")
        empty_sandbox.start_daemon(f"slurmd-{node}")
    job.finish()


def test_component_is_dropped(start: Start) -> None:
    """A heterogeneous job trains over both components, and on one after the other was cancelled."""
    job = start("-N1 --gres=gpu:1 : -N1 --gres=gpu:2", 8000)
    base, component = job.base()
    assert (base.gpus, component.gpus, component.kind) == (1, 2, "component")
    assert job.resize((base,), batch=16).pieces == (base,)
    job.slurm("scancel", str(component.slurm_job_id))
    wait_until(lambda: job.field("JobState", component.slurm_job_id) == "CANCELLED", 30, job.others)
    job.finish()
