"""How Slurm tells what jobs ask for, in every form of asking."""

from __future__ import annotations

from typing import Any

from own_sandbox import OwnSandbox
from slurm_backends import gone, running, seen

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.daemon.slurm import CommandClient, Job

# What only the real one has: forms of asking for GPUs, arrays, and comments that break lines.


def sbatch(sandbox: Sandbox, *options: str) -> int:
    answer = sandbox.run(["sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", "sleep 900"])
    assert answer.returncode == 0, answer.stderr
    return int(answer.stdout.split(";")[0])


def gpu_requests(sandbox: Sandbox) -> dict[str, tuple[Job, Job]]:
    """Every form of asking for GPUs, seen waiting and running."""
    client = CommandClient(sandbox.env["SLURM_CONF"])
    forms = {
        "gres": ("-N2", "--gres=gpu:2"),
        "typed": ("-N1", "--gres=gpu:a100:3"),
        "per node": ("-N2", "--gpus-per-node=1"),
        "total": ("-N2", "-n2", "--gpus=6"),
        "per task": ("-N1", "-n2", "--gpus-per-task=2"),
        "none": ("-N1",),
    }
    ids = {form: sbatch(sandbox, "--hold", *options) for form, options in forms.items()}
    before = client.snapshot()
    sandbox.run(["scontrol", "release", *(str(job_id) for job_id in ids.values())])
    after = running(client, *ids.values())
    return {form: (before.jobs[job_id], after.jobs[job_id]) for form, job_id in ids.items()}


EXPECTED = {
    "gres": ((4, 2), (4, 2, "a100")),
    "typed": ((3, 3), (3, 3, "a100")),
    "per node": ((2, 1), (2, 1, "a100")),
    "total": ((6, 0), (6, 0, "a100")),  # four and two
    "per task": ((4, 0), (4, 4, "a100")),
    "none": ((0, 0), (0, 0, "")),
}


def _summary(found: dict[str, tuple[Job, Job]]) -> dict[str, Any]:
    return {
        form: ((waiting.gpus, waiting.gpus_per_node), (job.gpus, job.gpus_per_node, job.gpu_type))
        for form, (waiting, job) in found.items()
    }


def test_every_form_of_asking_for_gpus_is_counted(empty_sandbox: Sandbox) -> None:
    """--gres, --gpus, --gpus-per-node and --gpus-per-task give the right totals, waiting and running."""
    assert _summary(gpu_requests(empty_sandbox)) == EXPECTED


def test_gpus_are_counted_without_gpu_accounting(can_run_slurm: None) -> None:
    """A site whose AccountingStorageTRES does not name gres/gpu gets the same totals from what was asked for."""
    with OwnSandbox.up(SandboxSpec(nodes=8, with_accounting=False)) as plain:
        assert "AccountingStorageTRES" not in (plain.dir / "slurm.conf").read_text()
        assert _summary(gpu_requests(plain)) == EXPECTED


def test_task_of_an_array_is_cancelled_by_its_own_id(empty_sandbox: Sandbox) -> None:
    """Slurm 22.05's scancel ignores the raw id of an array's task and reports success; the client does not."""
    client = CommandClient(empty_sandbox.env["SLURM_CONF"])
    array = sbatch(empty_sandbox, "--array=1-5%2", "--gres=gpu:1")
    snapshot = seen(client, lambda s: sum(j.running for j in s.jobs.values()) == 2)
    tasks = sorted((j for j in snapshot.jobs.values() if j.running), key=lambda j: j.array_task)
    assert [(j.array_job_id, j.array_task) for j in tasks] == [(array, "1"), (array, "2")]
    waiting = [j for j in snapshot.jobs.values() if j.pending]
    assert [(j.job_id, j.array_task) for j in waiting] == [(array, "3-5%2")]
    client.cancel(tasks[0].job_id)
    after = seen(client, lambda s: gone(s, tasks[0].job_id))
    assert after.jobs[tasks[1].job_id].running


def test_the_last_task_of_an_array_is_shrunk_alone(empty_sandbox: Sandbox) -> None:
    """It carries the array's own id, which for Slurm's commands names all tasks; the other keeps its nodes."""
    client = CommandClient(empty_sandbox.env["SLURM_CONF"])
    array = sbatch(empty_sandbox, "--array=1-2", "-N2", "--gres=gpu:4")
    snapshot = seen(client, lambda s: sum(j.running for j in s.jobs.values()) == 2)
    other = next(job for job in snapshot.jobs.values() if job.task_name == f"{array}_1")
    last = snapshot.jobs[array]
    assert last.task_name == f"{array}_2" and other.job_id != array
    client.shrink(array, last.nodes[:1])
    after = seen(client, lambda s: s.jobs[array].nodes == last.nodes[:1])
    assert after.jobs[other.job_id].nodes == other.nodes


def test_comment_of_several_lines_breaks_nothing(empty_sandbox: Sandbox) -> None:
    """Newlines, tabs and what looks like a record in a comment stay inside that comment."""
    client = CommandClient(empty_sandbox.env["SLURM_CONF"])
    text = "first\n7~7~N/A~RUNNING~~\n\tlast"
    job_id = sbatch(empty_sandbox, f"--comment={text}")
    other = sbatch(empty_sandbox, "--comment=plain")
    snapshot = running(client, job_id, other)
    assert (snapshot.jobs[job_id].comment, snapshot.jobs[other].comment) == (text, "plain")
    assert set(snapshot.jobs) == {job_id, other}


def test_excluded_nodes_are_told_of_jobs_that_wait_and_run(empty_sandbox: Sandbox) -> None:
    """By the ids that the listing of jobs has, an array's too; of jobs that exclude none, nothing."""
    client = CommandClient(empty_sandbox.env["SLURM_CONF"])
    assert client.excluded_nodes() == {}
    waits = [sbatch(empty_sandbox, "--hold", "--exclude=n[1,3]", *more) for more in ((), ("--array=0-3",))]
    sbatch(empty_sandbox, "--hold")
    runs = sbatch(empty_sandbox, "--exclude=n2")
    running(client, runs)
    found = client.excluded_nodes()
    assert found == {**dict.fromkeys(waits, ("n1", "n3")), runs: ("n2",)}
    assert found.keys() <= client.snapshot().jobs.keys()
