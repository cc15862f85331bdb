"""The words that give a waiting job another size: whole, consistent, and in the form in which it was submitted."""

from __future__ import annotations

import pytest

from slurm_elastic.daemon.slurm.model import Size
from slurm_elastic.daemon.slurm.pending_resize import asked_size, record, size_words
from slurm_elastic.protocol.errors import SlurmRefused, SlurmUnparsable

# Recorded from Slurm 22.05.8: sbatch -N1 --gpus-per-node=4 -c2.
SHOWN = (
    "JobId=1 JobName=wrap UserId=games(5) GroupId=root(0) MCS_label=N/A Priority=4294901759 Nice=0 Account=research "
    "QOS=normal JobState=PENDING Reason=BeginTime Dependency=(null) Requeue=1 Restarts=1 BatchFlag=1 Reboot=0 "
    "NodeList= NumNodes=1 NumCPUs=2 NumTasks=1 CPUs/Task=2 ReqB:S:C:T=0:0:*:* TRES=cpu=2,mem=2G,node=1,gres/gpu=4 "
    "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=2 MinMemoryCPU=1G MinTmpDiskNode=0 "
    "Features=(null) OverSubscribe=OK Comment=NumNodes=9 WorkDir=/tmp Power= TresPerNode=gres:gpu:4"
)


def words(size: Size, keep_tasks: bool = False, **changes: str) -> dict[str, str]:
    fields = {**record(SHOWN, 1), **changes}
    fields = {key: value for key, value in fields.items() if value}
    return dict(word.split("=", 1) for word in size_words(fields, size, keep_tasks=keep_tasks))


def test_a_comment_of_several_lines_hides_nothing() -> None:
    """What a job asked for stands after its comment, which may have line breaks."""
    shown = (
        SHOWN.replace("Comment=NumNodes=9", "Comment=two\nlines") + "\n\nJobId=2 NumNodes=7 TresPerNode=gres:gpu:1\n"
    )
    fields = record(shown, 1)
    assert (fields["NumNodes"], fields["TresPerNode"]) == ("1", "gres:gpu:4")
    assert record(shown, 2)["NumNodes"] == "7"


def test_more_nodes() -> None:
    """Everything that Slurm compares is said anew; what a user wrote as a comment is no field."""
    assert words(Size(3, 4)) == {
        "NumNodes": "3-3", "NumTasks": "3", "NumCPUs": "6", "CpusPerTask": "2", "MinCPUsNode": "2", "Gres": "gpu:4"
    }  # fmt: skip


def test_cpus_and_memory_follow_the_gpus() -> None:
    """Half the GPUs of a node come with half its CPUs and memory: the rest is somebody else's."""
    found = words(Size(1, 2), **{"CPUs/Task": "8", "MinMemoryNode": "16G"})
    assert (found["CpusPerTask"], found["NumCPUs"], found["MinMemoryNode"]) == ("4", "4", "8192")
    assert words(Size(1, 1))["CpusPerTask"] == "1"


def test_nodes_that_it_must_get_are_forgotten_on_request() -> None:
    """Never by itself: the list may be its owner's."""
    assert "ReqNodeList" not in words(Size(1, 4))
    assert words(Size(1, 4, anywhere=True))["ReqNodeList"] == ""


def test_a_task_for_each_gpu() -> None:
    """Jobs with as many tasks on a node as GPUs keep that; TasksPerNode is said only where it was and changes."""
    many = {"NumTasks": "8", "NumNodes": "2-2"}
    assert words(Size(1, 2), **many)["NumTasks"] == "2"
    assert "TasksPerNode" not in words(Size(1, 2), **many)
    given = {**many, "NtasksPerN:B:S:C": "4:0:*:*"}
    assert words(Size(1, 2), **given)["TasksPerNode"] == "2"
    assert "TasksPerNode" not in words(Size(3, 4), **given)


def test_without_an_operator_the_tasks_of_a_node_stay() -> None:
    """The size is still whole: as many tasks as the nodes now have at the old count, each with fewer CPUs."""
    given = {"NumTasks": "8", "NumNodes": "2-2", "NtasksPerN:B:S:C": "4:0:*:*", "CPUs/Task": "4"}
    assert words(Size(3, 2), keep_tasks=True, **given) == {
        "NumNodes": "3-3", "NumTasks": "12", "NumCPUs": "24", "CpusPerTask": "2", "MinCPUsNode": "8", "Gres": "gpu:2"
    }  # fmt: skip


def given(fields: dict[str, str], size: Size, keep_tasks: bool) -> dict[str, str]:
    """The record after Slurm took the words."""
    said = dict(word.split("=", 1) for word in size_words(fields, size, keep_tasks=keep_tasks))
    tasks = {"NtasksPerN:B:S:C": f"{said['TasksPerNode']}:0:*:*"} if "TasksPerNode" in said else {}
    memory = {"MinMemoryNode": f"{said['MinMemoryNode']}M"} if "MinMemoryNode" in said else {}
    return {
        **fields, **tasks, **memory, "NumNodes": said["NumNodes"], "NumTasks": said["NumTasks"],
        "CPUs/Task": said["CpusPerTask"], "NumCPUs": said["NumCPUs"], "TresPerNode": f"gres:{said['Gres']}",
    }  # fmt: skip


@pytest.mark.parametrize("keep_tasks", [False, True])
@pytest.mark.parametrize("size", [Size(1, 1), Size(3, 2), Size(1, 4), Size(1, 3)])
@pytest.mark.parametrize(
    "asked",
    [
        {}, {"CPUs/Task": "1"}, {"CPUs/Task": "6", "MinMemoryNode": "10G"}, {"CPUs/Task": "3", "MinMemoryNode": "1G"},
        {"NumTasks": "8", "NtasksPerN:B:S:C": "4:0:*:*"}, {"NumTasks": "8"},
        {"NumTasks": "4", "NtasksPerN:B:S:C": "2:0:*:*"},
    ],
)  # fmt: skip
def test_a_job_can_have_back_exactly_what_it_asked_for(asked: dict[str, str], size: Size, keep_tasks: bool) -> None:
    """Whatever was rounded on the way down, with a task for each GPU or without, for operators and others."""
    before = {**record(SHOWN, 1), "NumNodes": "2-2", "NumTasks": "2", **asked}
    script = asked_size(before)
    after = given(given(before, size, keep_tasks), script, keep_tasks)
    assert (asked_size(after), after["NumTasks"], after["CPUs/Task"]) == (
        script,
        before["NumTasks"],
        before["CPUs/Task"],
    )
    assert asked_size(after).mem_mb == script.mem_mb
    assert after.get("NtasksPerN:B:S:C") == before["NtasksPerN:B:S:C"]


@pytest.mark.parametrize(
    ("asked", "gres"), [("gres:gpu:a100:4", "gpu:a100:2"), ("gres/gpu:4", "gpu:2"), ("gres/gpu:a100:4", "gpu:a100:2")]
)
def test_the_type_is_named_as_it_was(asked: str, gres: str) -> None:
    """Slurm refuses a type where there was none and none where there was one; newer ones write gres/gpu."""
    assert words(Size(1, 2), TresPerNode=asked)["Gres"] == gres


def test_cpus_per_task_are_no_other_way_to_ask_for_gpus() -> None:
    """From 23.11 on --cpus-per-task stands there a second time, as TresPerTask."""
    assert words(Size(1, 2), TresPerTask="cpu=4") == words(Size(1, 2), TresPerTask="cpu:4") == words(Size(1, 2))


@pytest.mark.parametrize(
    "fields",
    [{"TresPerNode": "", "TresPerJob": "gres:gpu:8"}, {"TresPerNode": ""}, {"TresPerNode": "gres:gpu:4,gres:shard:2"}],
    ids=str,
)
def test_other_ways_to_ask_are_refused(fields: dict[str, str]) -> None:
    """--gpus=N is not resized right by every Slurm, and what else the job asked for is not known: said in one line."""
    with pytest.raises(SlurmRefused, match="--gpus-per-node=N"):
        words(Size(1, 2), **fields)


def test_no_such_job() -> None:
    """A record that is not there is an error, not a job without fields."""
    with pytest.raises(SlurmUnparsable):
        record("JobId=11 NumNodes=1", 1)
