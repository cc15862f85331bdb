"""What the supervisor asks Slurm for, and what it reads in Slurm's answers; the job directory."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from slurm_elastic.protocol.errors import SlurmUnparsable
from slurm_elastic.protocol.messages import Piece, Shape
from slurm_elastic.trainer_shim.allocation import commands
from slurm_elastic.trainer_shim.allocation.companions import minutes_left
from slurm_elastic.trainer_shim.allocation.slurm_job import SlurmJob, component_ids, parse_job

LINE = (
    "JobId=7 JobName=a Nodes=x UserId=alice(1001) Account=(null) QOS=normal Partition=main JobState=RUNNING "
    "TimeLimit=01:00:00 EndTime=2026-11-20T16:00:00 NodeList=n[1-3] BatchHost=n2 NumNodes=3 "
    "JOB_GRES=gpu:a100:6 Nodes=n[1-2] CPU_IDs=0-3,8 Mem=1024 GRES=gpu:a100:2(IDX:0-1) "
    "Nodes=n3 CPU_IDs=0-7 Mem=1024 GRES=gpu:a100:2(IDX:2-3),shard:4 MinCPUsNode=4 "
    "WorkDir=/home/alice Comment=elastic:gpus=2"
)
SALLOC = "salloc", True
HOSTS = {"n[1-2]": ("n1", "n2")}


def expand(expression: str) -> tuple[str, ...]:
    return HOSTS.get(expression, (expression,))


def job(**changes: object) -> SlurmJob:
    values: dict[str, object] = {
        "job_id": 7,
        "state": "RUNNING",
        "nodes": ("n2", "n1"),
        "gpus": (2, 2),
        "gpu_type": "a100",
        "cpus_per_node": 8,
        "one_thread_per_core": False,
        "partition": "main",
        "account": "lab",
        "work_dir": "/w",
        "component": None,
        "wckey": "",
        "exclusive": False,
        "for_its_user": False,
        "end_time": "Unknown",
    }
    return SlurmJob(**{**values, **changes})  # type: ignore[arg-type]


def test_job_is_read_with_its_batch_host_first() -> None:
    """Nodes, GPUs and CPUs come from what Slurm says is held, not from the job's stale environment."""
    found = parse_job(LINE, 7, expand)
    assert found.nodes == ("n2", "n1", "n3")
    assert (found.gpus, found.gpu_type, found.cpus_per_node) == ((2, 2, 2), "a100", 5)
    assert (found.account, found.partition, found.work_dir) == ("", "main", "/home/alice")
    assert found.piece("base") == Piece(7, "base", ("n2", "n1", "n3"), 2, "a100")


@pytest.mark.parametrize("place", ["/home/alice", "/home/alice/my data (2)", "/home/alice/d\udcc3\udca4/ü b"])
@pytest.mark.parametrize(
    "behind", ["", " Comment=elastic:gpus=2", "  StdErr=/home/alice/a b/out StdIn=/dev/null Power="]
)
def test_a_working_directory_may_hold_spaces(place: str, behind: str) -> None:
    """Checkpoints lie below it, not below what stands before its first space."""
    line = LINE.replace("WorkDir=/home/alice Comment=elastic:gpus=2", f"Command=/x WorkDir={place}{behind}")
    assert parse_job(line, 7, expand).work_dir == place


@pytest.mark.parametrize(
    ("gres", "gpus", "kind"),
    [
        ("gpu:2080ti:2(IDX:0-1)", 2, "2080ti"),
        ("gpu:2080:2(IDX:0-1)", 2, "2080"),
        ("gpu:4(IDX:0-3)", 4, ""),
        ("gpu:4", 4, ""),
        ("shard:8,gpu:a100:3(IDX:0,2-3)", 3, "a100"),
        ("gpu:a100:1(IDX:0),gpu:v100:2(IDX:1-2)", 3, "a100"),
    ],
)
def test_types_may_begin_with_a_digit(gres: str, gpus: int, kind: str) -> None:
    """gpu:2080ti:2 is two GPUs, not 2080."""
    found = parse_job(f"JobId=7 Nodes=n4 CPU_IDs=0 Mem=0 GRES={gres}", 7, expand)
    assert (found.gpus, found.gpu_type) == ((gpus,), kind)


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("OverSubscribe=NO", ["--exclusive"]),
        ("OverSubscribe=OK", []),
        ("OverSubscribe=USER", ["--exclusive=user"]),
        ("OverSubscribe=NO Exclusive=NO", []),
        ("OverSubscribe=NO Exclusive=NODE", ["--exclusive"]),
        ("OverSubscribe=NO Exclusive=USER", ["--exclusive=user"]),
    ],
)
def test_who_has_nodes_to_itself(said: str, asked: list[str]) -> None:
    """Slurm up to 25.11 says it with OverSubscribe, 26.05 with a word of its own; companions ask for the same."""
    job = parse_job(f"JobId=7 Nodes=n4 CPU_IDs=0 Mem=0 GRES=gpu:2 {said}", 7, expand)
    assert job.exclusive is (asked == ["--exclusive"])
    words = commands.companion(Shape(1, 1), job, 1, None, SALLOC)
    assert [word for word in words if word.startswith("--exclusive")] == asked


def test_one_thread_of_each_core_is_asked_for_by_asking_for_no_processors() -> None:
    """With --hint=nomultithread Slurm holds both threads of a core and grants a step one of them."""
    text = "JobId=7 ReqB:S:C:T=0:0:*:1 Nodes=n4 CPU_IDs=0-9 Mem=0 GRES=gpu:2"
    one, all_threads = (parse_job(line, 7, expand) for line in (text, text.replace("*:1", "*:*")))
    lines = [commands.srun(job.piece("base"), job, ["true"]) for job in (one, all_threads)]
    assert ["--cpus-per-task=10" in line for line in lines] == [False, True]


@pytest.mark.parametrize(
    ("end", "comment"),
    [
        ("Comment=elastic:gpus=2-4,batch=8 Power=", "elastic:gpus=2-4,batch=8"),
        ("Comment=run 7 of 9; elastic:gpus=2-4,batch=8 Power= ", "run 7 of 9; elastic:gpus=2-4,batch=8"),
        ("Comment=(null)", "(null)"),
        ("Power=", ""),
    ],
)
def test_a_comment_is_read_whole(end: str, comment: str) -> None:
    """It may hold spaces; the next key ends it."""
    text = LINE.partition("Comment=")[0] + end
    assert parse_job(text, 7, expand).comment == comment


def test_when_a_job_was_submitted_and_how_often_it_was_put_back() -> None:
    """As Slurm says it: a batch script's environment may be that of the shell it was submitted from."""
    found = parse_job(f"{LINE} Restarts=2 SubmitTime=2026-11-20T15:00:00", 7, expand)
    assert (found.restarts, found.submitted) == (2, "2026-11-20T15:00:00")


def test_component_is_found_among_its_siblings() -> None:
    """Slurm shows all components when asked for the leader."""
    two = f"{LINE}\nJobId=8 HetJobId=7 HetJobOffset=1 Nodes=n4 CPU_IDs=0 Mem=0 GRES=gpu:1"
    found = parse_job(two, 8, expand)
    assert (found.nodes, found.gpus, found.component) == (("n4",), (1,), (7, 1))


@pytest.mark.parametrize("text", ["", "JobId=7 JobState=PENDING NodeList=", LINE.replace("JobId=7", "JobId=70")])
def test_job_without_nodes_is_refused(text: str) -> None:
    """Nothing is concluded from an answer that shows no nodes of this job."""
    with pytest.raises(SlurmUnparsable, match="no nodes of job 7"):
        parse_job(text, 7, expand)


def test_unequal_nodes_are_refused() -> None:
    """A piece has one number of GPUs per node; a job that has not says so before anything starts."""
    with pytest.raises(ValueError, match=r"n2: 2, n1: 1.*--gpus-per-node"):
        job(gpus=(2, 1)).piece("base")


def test_job_without_gpus_has_workers_instead() -> None:
    """--nproc counts as GPUs per node where there are none."""
    assert job(gpus=(0, 0), gpu_type="").piece("base", 3).gpus == 6


def test_component_ids() -> None:
    """The leader first; a plain job is its own leader."""
    assert component_ids({"SLURM_JOB_ID": "9"}) == (9,)
    assert component_ids({"SLURM_JOB_ID": "9", "SLURM_HET_SIZE": "2", "SLURM_JOB_ID_HET_GROUP_1": "10"}) == (9, 10)
    left = {"SLURM_HET_SIZE": "2", "SLURM_JOB_ID_HET_GROUP_0": "4", "SLURM_JOB_ID_HET_GROUP_1": "5"}
    assert component_ids({"SLURM_JOB_ID": "9", **left}) == (9,), "of the job in which this one was asked for"


def test_srun_outlives_its_tasks_and_names_no_gpu_type() -> None:
    """A killed task must not end the step, and Slurm refuses a type that the job was not submitted with."""
    words = commands.srun(job().piece("base"), job(), ["agent"])
    assert {"--jobid=7", "--nodes=2", "--ntasks=2", "--kill-on-bad-exit=0", "--wait=0", "--overlap"} <= set(words)
    assert "--gres=gpu:2" in words
    assert not any(word.startswith("--nodelist") for word in words)


@pytest.mark.parametrize(
    ("line", "again"),
    [
        ("srun: error: Unable to create step for job 11: Requested nodes are busy", True),
        ("srun: error: Unable to confirm allocation for job 11: Socket timed out on send/recv operation", True),
        ("srun: error: Unable to create step for job 11: Job/step already completing or completed", False),
        ("srun: error: Unable to create step for job 11: More processors requested than permitted", False),
        ("ImportError: the nodes are busy", False),
        ("", False),
    ],
)  # fmt: skip
def test_srun_is_asked_again_only_for_what_passes(line: str, again: bool) -> None:
    """A step that Slurm had no room for just then; not one that it will never create, nor an agent that failed."""
    assert commands.worth_again(("srun: cluster configuration lacks support for cpu binding", line)) is again


def test_srun_on_a_part_names_its_nodes() -> None:
    """An agent that is started again runs where the lost one was."""
    part = Piece(7, "base", ("n1",), 2)
    assert "--nodelist=n1" in commands.srun(part, job(), ["agent"])


def test_srun_reaches_a_component_through_its_leader() -> None:
    """srun refuses a component's own job id."""
    component = job(job_id=8, component=(7, 1))
    words = commands.srun(component.piece("component"), component, ["agent"])
    assert {"--jobid=7", "--het-group=1"} <= set(words)
    assert "--jobid=8" not in words


def test_salloc_takes_what_the_shape_leaves_open_from_the_base() -> None:
    """A companion belongs to its base: partition, account, time, tag and name say so."""
    shape = Shape(2, 4, 8, gpu_type="a100", mem_mb_per_node=500, node_list=("n5", "n6"))
    words = commands.companion(shape, job(), 3, 17, SALLOC)
    assert {"--no-shell", "--partition=main", "--account=lab", "--time=17", "--gres=gpu:a100:4"} <= set(words)
    assert {"--comment=selastic:companion-of=7;resize=3", "--job-name=selastic-7"} <= set(words)
    assert {"--nodelist=n5,n6", "--mem=500M", "--cpus-per-task=8"} <= set(words)
    assert "--time=UNLIMITED" in commands.companion(Shape(1, 1), job(), 3, None, SALLOC)


def test_a_companion_by_sbatch_is_the_same_but_for_its_script() -> None:
    """Its script holds the nodes and does nothing; Slurm never puts it back into the queue. Without names of nodes it
    keeps to what its base asked for."""
    shape, base = Shape(2, 4, 8, gpu_type="a100", node_list=("n5", "n6")), replace(job(), features="ib", excluded="n9")
    by_salloc, by_sbatch = (set(commands.companion(shape, base, 3, 17, (way, True))) for way in ("salloc", "sbatch"))
    assert by_salloc - by_sbatch == {"salloc", "--no-shell"}
    assert by_sbatch - by_salloc == {"sbatch", "--parsable", "--no-requeue", "--output=/dev/null", "--chdir=/",
                                     "--wrap=exec sleep infinity"}  # fmt: skip
    anywhere = set(commands.companion(shape, base, 3, 17, ("salloc", False)))
    assert by_salloc ^ anywhere == {"--nodelist=n5,n6", "--constraint=ib", "--exclude=n9"}


def test_no_companion_is_asked_for_with_the_least_time() -> None:
    """Slurm 22.05 grants --time-min where anything waits, and no more, whatever else fits."""
    assert not any("time-min" in word for word in commands.companion(Shape(1, 1), job(), 3, 17, SALLOC))


@pytest.mark.parametrize(
    ("others", "start"),
    [
        (["8|2026-11-26T10:40:00|n5|(null)|x", "9|2026-11-26T10:50:00|n5|n5|"], "2026-11-26T10:40:00"),
        (["8|2026-11-26T10:40:00|n4|n4|x", "9|2026-11-26T10:50:00|n5|n5|a|b"], "2026-11-26T10:50:00"),
        (["8|N/A|(null)|n5|x", "9|2026-11-26T10:50:00|(null)|n5|begins later"], ""),
        (["8|2026-11-26T10:40:00|n5|n5|selastic:companion-of=7;resize=2"], ""),
        (["8|2026-11-26T10:40:00|n5|n5|selastic:companion-of=70;resize=2"], "2026-11-26T10:40:00"),
        ([], ""),
    ],
)
def test_what_a_companion_that_waits_is_kept_waiting_for(others: list[str], start: str) -> None:
    """The first start that Slurm plans on its nodes for a job that is none of its base's."""
    own = ["4|2026-11-26T12:00:00|(null)|n5,n6|selastic:companion-of=7;resize=3", "5|N/A|(null)|n5|an ordinary job",
           "6|N/A|(null)|n5|selastic:companion-of=7;resize=30"]  # fmt: skip
    found = commands.shorter("\n".join([*own, *others]), 7, 3, lambda text: tuple(text.split(",")))
    assert found == ({4: start} if start else {})


def test_tagged_finds_only_this_jobs_companions() -> None:
    """Job 1's companions are not job 17's, and an ordinary comment is nobody's."""
    listing = "5|selastic:companion-of=1;resize=2\n6|selastic:companion-of=17;resize=2\n7|(null)\n8_1|x\n"
    assert commands.tagged(listing, 1) == [5]


def test_scrubbed_environment() -> None:
    """What belongs to the batch job goes, what belongs to the user (and Slurm's own configuration) stays."""
    env = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/c", "SBATCH_X": "1", "PATH": "/bin", "RANK": "0", "SELASTIC_X": "1"}
    assert commands.scrubbed({**env, "CUDA_VISIBLE_DEVICES": "0"}) == {"SLURM_CONF": "/c", "PATH": "/bin"}
    assert commands.scrubbed({"CUDA_VISIBLE_DEVICES": "0"}, in_slurm=False) == {"CUDA_VISIBLE_DEVICES": "0"}


def test_minutes_left_are_no_more_than_the_base_has() -> None:
    """Slurm would keep a companion waiting that outlasts its base where a job waits for the base's end."""
    assert minutes_left("Unknown", 0.0) is None
    assert minutes_left("2026-11-20T16:00:00", _at("2026-11-20T15:30:30")) == 29
    assert minutes_left("2026-11-20T16:00:00", _at("2026-11-20T17:00:00")) == 1


def _at(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
