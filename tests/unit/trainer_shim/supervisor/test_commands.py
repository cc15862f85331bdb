"""What the supervisor asks Slurm for, and what it reads in Slurm's answers; the job directory."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from slurm_elastic.protocol import codec
from slurm_elastic.protocol.errors import ConfigError, RequestError, SlurmUnparsable
from slurm_elastic.protocol.messages import Piece, Registration, Shape
from slurm_elastic.trainer_shim.node.agent import gpus
from slurm_elastic.trainer_shim.supervisor import cli, commands, job_dir
from slurm_elastic.trainer_shim.supervisor.cli import add_arguments, check_container, elastic_request, worker_env
from slurm_elastic.trainer_shim.supervisor.companions import minutes_left
from slurm_elastic.trainer_shim.supervisor.driver import program
from slurm_elastic.trainer_shim.supervisor.slurm_job import SlurmJob, component_ids, parse_job

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
        "end_time": "Unknown",
    }
    return SlurmJob(**{**values, **changes})  # type: ignore[arg-type]


def test_a_program_is_told_in_printable_letters() -> None:
    """Whatever its name and its arguments hold, in any locale: else its registration would be refused."""
    told = program(("train.py", "a\nb", "tr\udcc3\udca4in", "\udcff", "x" * 2000))
    assert told.startswith("train.py a?b träin \N{REPLACEMENT CHARACTER} xxx") and len(told) == 1000
    codec.decode(Registration, {"version": 3, "generation": 0, "pieces": [], "batch": 1, "program": told})


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
    ("said", "exclusive"),
    [
        ("OverSubscribe=NO", True),
        ("OverSubscribe=OK", False),
        ("OverSubscribe=NO Exclusive=NO", False),
        ("OverSubscribe=NO Exclusive=NODE", True),
    ],
)
def test_who_has_nodes_to_itself(said: str, exclusive: bool) -> None:
    """Slurm up to 25.11 says it with OverSubscribe, 26.05 with a word of its own."""
    job = parse_job(f"JobId=7 Nodes=n4 CPU_IDs=0 Mem=0 GRES=gpu:2 {said}", 7, expand)
    assert job.exclusive is exclusive
    assert ("--exclusive" in commands.companion(Shape(1, 1), job, 1, None, SALLOC)) is exclusive


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


def test_the_request_of_the_command_line_counts_first() -> None:
    """Then the comment's, then what the SPANK plugin left; only the command line's is refused on the spot."""
    mine, other, plugin = "gpus=2-4,batch=8", "elastic:gpus=1-2,batch=8", "gpus=1-8,batch=8"
    assert elastic_request(mine, other, plugin) == mine
    assert elastic_request("", other, plugin) == other
    assert elastic_request("", None, plugin) == plugin
    assert elastic_request("", "elastic:gpus=4-2", "") == "elastic:gpus=4-2"
    with pytest.raises(RequestError, match="gpus=4-2"):
        elastic_request("gpus=4-2,batch=8", None, "")


@pytest.mark.parametrize("asked", ["", "gpus=2-4,batch=8", "gpus=2-4,batch=8,lr=auto", "elastic:gpus=4-2"])
def test_a_request_without_a_rule_leaves_it_to_the_script(asked: str) -> None:
    """lr=auto, none given, and a request that cannot be read: nothing is imposed."""
    assert "SELASTIC_LR" not in worker_env(asked)
    assert worker_env("elastic:gpus=2-4,batch=8,lr=sqrt,group=2,slice=4") == {
        "SELASTIC_LR": "sqrt",
        "SELASTIC_GROUP": "2",
        "SELASTIC_SLICE": "4",
    }


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


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_ID": "1"}, ["2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "2,3", "SELASTIC_NPROC": "1"}, ["2"]),
        ({"CUDA_VISIBLE_DEVICES": "2", "SELASTIC_NPROC": "2"}, ["", ""]),
        ({"CUDA_VISIBLE_DEVICES": "2", "SELASTIC_NPROC": "3", "SELASTIC_CUDA_BACKEND": "gloo"}, ["2", "2", "2"]),
        ({"CUDA_VISIBLE_DEVICES": "2,3", "SELASTIC_NPROC": "3", "SELASTIC_CUDA_BACKEND": "gloo"}, ["2", "3", "2"]),
        ({"CUDA_VISIBLE_DEVICES": "2,3", "SELASTIC_NPROC": "1", "SELASTIC_CUDA_BACKEND": "gloo"}, ["2"]),
        ({"SLURM_JOB_ID": "1", "SELASTIC_NPROC": "2", "SELASTIC_CUDA_BACKEND": "gloo"}, ["", ""]),
        ({"SLURM_JOB_ID": "1"}, [""]),
        ({"SLURM_JOB_ID": "1", "SELASTIC_NPROC": "3"}, ["", "", ""]),
    ],
)
def test_devices_of_a_node(env: dict[str, str], expected: list[str]) -> None:
    """Slurm's list is the list; without GPUs there are --nproc CPU workers, at least one; over gloo they share GPUs."""
    assert gpus(env) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
def test_a_job_directory_made_by_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """Job ids can be guessed: its record is not read, another directory is taken, and one that is asked for refused."""
    env = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "a"}
    planted = tmp_path / ".selastic" / "7"
    planted.mkdir(parents=True)
    job_dir.write(planted, job_dir.Run(("train.py",), "a", 900))
    os.chown(planted, 65534, 65534)
    assert job_dir.choose(env, ("train.py",), None, str(tmp_path)).name == "7-2"
    with pytest.raises(ConfigError, match="belongs to uid 65534; accepted: --job-dir that you alone can write to"):
        job_dir.create(planted)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2775)
    job_dir.create(tmp_path / "shared")  # what a umask gave to a group is taken back
    assert (tmp_path / "shared").stat().st_mode & 0o7777 == 0o2755


def test_a_job_directory_whose_mode_cannot_be_set_is_taken_where_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal says by which variable, which agents and workers are told, too."""
    tmp_path.chmod(0o777)
    monkeypatch.setattr(Path, "chmod", lambda path, mode: None)
    with pytest.raises(ConfigError, match=f"mode 777.*that you alone can write to.*SELASTIC_TRUSTED_DIRS={tmp_path}, "):
        job_dir.create(tmp_path)
    monkeypatch.setenv("SELASTIC_TRUSTED_DIRS", str(tmp_path))
    job_dir.create(tmp_path)
    assert (tmp_path / "checkpoints").is_dir()
    assert cli._agent_env(dict(os.environ), in_slurm=True)["SELASTIC_TRUSTED_DIRS"] == str(tmp_path)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
@pytest.mark.parametrize("before", [None, 0o775, 0o777])
def test_what_lies_in_a_job_directory_is_its_owners_alone(tmp_path: Path, umask: int, before: int | None) -> None:
    """Whatever the umask, and what an earlier part of the run left open: torch loads code from there."""
    names = ("logs", "checkpoints", "compiled")
    for name in names if before is not None else ():
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(before or 0)
    own = os.umask(umask)
    try:
        job_dir.create(tmp_path)
        job_dir.write(tmp_path, job_dir.Run(("train.py",), "a"))
    finally:
        os.umask(own)
    assert not (tmp_path / job_dir.RECORD).stat().st_mode & 0o022
    assert [(tmp_path / name).stat().st_mode & 0o7777 for name in names] == [0o700] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
@pytest.mark.parametrize("name", ["logs", "checkpoints", "compiled"])
@pytest.mark.parametrize("linked", [False, True])
def test_what_somebody_else_has_put_into_a_job_directory_is_refused(tmp_path: Path, name: str, linked: bool) -> None:
    """A folder of another user's, or a link to one's own."""
    place = tmp_path / "job"
    place.mkdir()
    if linked:
        (tmp_path / "elsewhere").mkdir()
        (place / name).symlink_to(tmp_path / "elsewhere")
    else:
        (place / name).mkdir()
        os.chown(place / name, 65534, 65534)
    why = "is a symbolic link" if linked else "belongs to uid 65534"
    with pytest.raises(ConfigError, match=f"{name} {why}; accepted: a directory of your own, or none"):
        job_dir.create(place)


def test_job_directory_of_a_requeued_job_is_found_again(tmp_path: Path) -> None:
    """Same job, same command: same directory. Another command or another cluster: one of its own."""
    env = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "a"}
    first = job_dir.choose(env, ("train.py",), None, str(tmp_path))
    assert first == tmp_path / ".selastic" / "7"
    job_dir.create(first)
    job_dir.write(first, job_dir.Run(("train.py",), "a", 3))
    assert job_dir.choose(env, ("train.py",), None, str(tmp_path)) == first
    assert job_dir.choose(env, ("eval.py",), None, str(tmp_path)).name == "7-2"
    assert job_dir.choose({**env, "SLURM_CLUSTER_NAME": "b"}, ("train.py",), None, str(tmp_path)).name == "7-2"
    assert job_dir.read(first) == job_dir.Run(("train.py",), "a", 3)


def test_a_directory_of_an_earlier_slurms_job_of_this_number_is_left_alone(tmp_path: Path) -> None:
    """Ids begin anew with a new Slurm, the same command of the same user would go on with a training of last year. What
    tells them apart, the submit time, changes when Slurm puts a job back: then the last directory is the job's."""
    env, command = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "a"}, ("train.py",)

    def chosen(submitted: str, restarts: int = 0) -> str:
        return job_dir.choose(env, command, None, str(tmp_path), submitted, restarts).name

    def write(name: str, submitted: str) -> Path:
        place = tmp_path / ".selastic" / name
        job_dir.create(place)
        job_dir.write(place, job_dir.Run(command, "a", 3, submitted))
        return place

    write("7", "2025-01-01T00:00:00")
    assert chosen("2026-11-26T10:00:00") == "7-2"
    write("7-2", "2026-11-26T10:00:00")
    assert chosen("2026-11-26T10:00:00") == "7-2"  # its supervisor was killed, or a second command like the first
    assert chosen("2026-11-26T12:00:00", restarts=1) == "7-2"
    assert chosen("2026-11-26T12:00:00") == "7-3"
    older = write("7-3", "")  # by a build that noted no time
    assert chosen(time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - 60))) == "7-3"
    os.utime(older / job_dir.RECORD, (0, 0))
    assert chosen("2026-11-26T12:00:00") == "7-4"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
def test_what_is_kept_of_a_program_is_of_this_run_and_of_this_user(tmp_path: Path) -> None:
    """A requeued job finds it again; not a new job in the same directory, nor a training that begins anew."""
    kept = tmp_path / "program" / "0-train.py"
    for run, fresh, owner, stays in (
        ("a 7", False, 0, True),
        ("a 8", False, 0, False),
        ("a 8", True, 0, False),
        ("a 8", False, 65534, False),
    ):
        kept.parent.mkdir(exist_ok=True)
        if run == "a 7":
            job_dir.begin_program(tmp_path, run, fresh=True)
        kept.write_text("1")
        os.chown(kept, owner, owner)
        job_dir.begin_program(tmp_path, run, fresh)
        assert kept.exists() is stays, (run, fresh, owner)
        assert kept.parent.stat().st_mode & 0o777 == 0o700


def test_newest_step_counts_complete_checkpoints_only(tmp_path: Path) -> None:
    """A directory without its index is a write that was cut short."""
    assert job_dir.newest_step(tmp_path) is None
    for step, complete in ((5, True), (9, True), (12, False)):
        place = tmp_path / "checkpoints" / f"step-{step:012d}"
        place.mkdir(parents=True)
        if complete:
            (place / "checkpoint.json").write_text("{}")
    assert job_dir.newest_step(tmp_path) == 9


def test_job_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """One sentence names the directory and the way out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--job-dir"):
        job_dir.create(tmp_path / "file" / "x")


def test_a_job_in_a_container_is_refused() -> None:
    """Its workers would start on the nodes' own file systems, without a word."""
    check_container({"SLURM_JOB_ID": "7"})
    with pytest.raises(
        ConfigError,
        match=r"--container=/images/torch of this job .* accepted: .*--srun-options=--container=/images/torch",
    ):
        check_container({"SLURM_JOB_ID": "7", "SLURM_CONTAINER": "/images/torch"})


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([*words, "train.py", "--lr", "1"])


def test_a_container_is_entered_by_the_words_that_the_user_gives() -> None:
    """By what stands before python, or by options of srun's, which change nothing of what is asked of Slurm."""
    assert commands.agent_command(["train.py"])[0] == sys.executable
    given = parsed(
        "--python=apptainer exec --nv 'my image.sif' python3", "--srun-options=--container-image=a --nodes=9"
    )
    agent = commands.agent_command(["train.py"], given.python)
    assert agent[:6] == ["apptainer", "exec", "--nv", "my image.sif", "python3", "-m"] and agent[-1] == "train.py"
    words = commands.srun(job().piece("base"), job(), agent, given.srun_options)
    assert "--container-image=a" in words and words[-len(agent) :] == agent
    assert [word for word in words if word.startswith("--nodes=")][-1] == "--nodes=2"


def test_words_that_no_shell_would_read_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The user is told which, before anything is started."""
    with pytest.raises(SystemExit):
        parsed("--python=apptainer exec 'image python3")
    assert "apptainer exec 'image python3 is not accepted (No closing quotation)" in capsys.readouterr().err
