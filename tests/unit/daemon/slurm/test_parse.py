"""What squeue and sinfo print is read right, or refused as a whole."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.daemon.slurm import parse
from slurm_elastic.daemon.slurm.model import Job, Node, Partition
from slurm_elastic.protocol.errors import SlurmUnparsable

SEP = "~5f3a~"
AT = 1795189352.0
"""When the listings are asked for: six seconds after the jobs have started."""
# Recorded from Slurm 22.05.8 (separator shortened).
RUNNING = (
    "1 1 N/A N/A N/A RUNNING None games 5 research main normal 2 2 2 n[1-2] 1 n1 "
    "cpu=2,mem=2G,node=2,billing=2,gres/gpu=4,gres/gpu:a100=4 gres:gpu:2 N/A N/A 4294901759 365-00:00:00 "
    "364-23:59:54 1795189345 1795189346 1795189345 2 (null)  (null) (null) OK train"
)
COMPONENT = (
    "10 10 N/A 9 1 RUNNING None root 0 root main normal 1 1 1 n4 1 n4 "
    "cpu=1,mem=1G,node=1,billing=1,gres/gpu=2,gres/gpu:a100=2 gres:gpu:a100:2 N/A N/A 4294901750 UNLIMITED UNLIMITED "
    "1795189345 1795189345 1795189345 0 (null)  (null) (null) OK wrap"
)
COMPANION = (
    "12 12 N/A N/A N/A RUNNING None root 0 root main normal 1 1 1 n2 0 localhost "
    "cpu=1,mem=1G,node=1,billing=1,gres/gpu=1,gres/gpu:a100=1 gres:gpu:1 N/A N/A 4294900748 1:00:00 59:54 "
    "1795189345 1795189346 1795189345 0 (null)  (null) (null) OK selastic-1"
)
PENDING = (
    "6 6 N/A N/A N/A PENDING BeginTime root 0 root main normal 5 1 2  1 n/a cpu=2,mem=2G,node=1,billing=2,gres/gpu=20 "
    "N/A gres:gpu:20 N/A 4294901754 1-02:04:00 1-02:04:00 1795189345 1795192945 1795192945 0 "
    "afterok:1(unfulfilled) n[6,8] "
    "v100&big resv NO wrap"
)
ARRAY = (
    "8 8 3-5%2 N/A N/A PENDING JobArrayTaskLimit root 0 root main normal 1 1 1  1 n/a "
    "cpu=1,mem=1G,node=1,billing=1,gres/gpu=1 gres:gpu:1 N/A N/A 4294901752 UNLIMITED UNLIMITED 1795189345 N/A 0 0 "
    "(null)  (null) (null) OK wrap"
)


def printed(*lines: tuple[str, str]) -> str:
    """squeue's output: fields of a line are apart by one space here; the comment is given beside it."""
    return "".join(SEP.join([*line.split(" "), comment]) + SEP + SEP + "\n" for line, comment in lines)


def read(*lines: tuple[str, str], reader: parse.JobReader | None = None, at: float = AT) -> dict[int, Job]:
    rows = parse.records(printed(*lines), parse.JOB_FIELDS, SEP, "squeue")
    return (reader or parse.JobReader()).jobs(rows, parse.JOB_FIELDS, at)


def test_running_job() -> None:
    """Every field of a running two-node job."""
    assert read((RUNNING, "elastic:gpus=2-8,batch=64-512"))[1] == Job(
        job_id=1,
        state="RUNNING",
        user="games",
        uid=5,
        name="train",
        comment="elastic:gpus=2-8,batch=64-512",
        account="research",
        partition="main",
        qos="normal",
        nodes=("n1", "n2"),
        batch_host="n1",
        num_nodes=2,
        gpus=4,
        gpus_per_node=2,
        asked_per_node=2,
        gpu_type="a100",
        cpus=2,
        mem_mb=1024,
        priority=4294901759,
        time_limit_s=365 * 86400,
        ends_at=1795189346.0 + 365 * 86400,
        submit_time=1795189345.0,
        start_time=1795189346.0,
        eligible_time=1795189345.0,
        restarts=2,
    )


def test_a_job_that_only_has_less_time_left_stays_the_same_object() -> None:
    """From one listing to the next, however long the answer takes; whatever else changes makes it another."""
    reader, line = parse.JobReader(), (RUNNING, "a comment")
    job = read(line, reader=reader)[1]
    later = (RUNNING.replace("364-23:59:54", "364-23:59:20"), "a comment")
    assert read(later, reader=reader, at=AT + 34.0)[1] is job
    assert read(later, reader=reader, at=AT + 20.0)[1] is job  # squeue took 14 s
    other = read((later[0], "another comment"), reader=reader, at=AT + 34.0)[1]
    assert other.comment == "another comment" and read(line, reader=reader)[1] == job
    assert read((later[0].replace("365-00", "366-00"), ""), reader=reader, at=AT + 34.0)[1].time_limit_s == 366 * 86400


def test_the_end_of_a_job_that_was_suspended_is_later() -> None:
    """Its limit counts from its start only while it was never suspended; with the same record it ends ever later."""
    reader = parse.JobReader()
    assert read((RUNNING, ""), reader=reader)[1].ends_at == 1795189346.0 + 365 * 86400
    for waited in (600.0, 660.0):
        assert read((RUNNING, ""), reader=reader, at=AT + waited)[1].left_s(AT + waited) == 365 * 86400 - 6
    assert read((COMPONENT, ""), (PENDING, ""))[10].ends_at is None


def test_component_and_companion() -> None:
    """A component names its whole job; an allocation by salloc has no batch host, whatever BatchHost says."""
    jobs = read((COMPONENT, "(null)"), (COMPANION, "selastic:companion-of=1;resize=4"))
    assert (jobs[10].het_job_id, jobs[10].het_offset, jobs[10].batch_host, jobs[10].comment) == (9, 1, "n4", "")
    assert (jobs[12].batch_host, jobs[12].time_limit_s, jobs[12].left_s(AT)) == ("", 3600, 3594)
    assert jobs[12].comment == "selastic:companion-of=1;resize=4"


def test_pending_job_holds_nothing_and_has_not_started() -> None:
    """What it asks for, with the start that Slurm guesses left out."""
    job = read((PENDING, "(null)"))[6]
    assert (job.nodes, job.batch_host, job.start_time, job.reason) == ((), "", None, "BeginTime")
    assert (job.gpus, job.gpus_per_node, job.num_nodes, job.gpu_type) == (20, 0, 5, "")
    assert (job.dependency, job.features, job.reservation) == ("afterok:1(unfulfilled)", "v100&big", "resv")
    assert (job.required_nodes, job.exclusive, job.time_limit_s) == (("n6", "n8"), True, 93840)


def test_a_job_behind_one_of_another_partition_waits_for_resources() -> None:
    """squeue has a sentence for it, in which nodes need not be down at all."""
    (row,) = parse.records(printed((PENDING, "(null)")), parse.JOB_FIELDS, SEP, "squeue")
    said = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    row[parse.JOB_FIELDS.index("Reason")] = said
    assert parse.JobReader().jobs([row], parse.JOB_FIELDS, AT)[6].reason == "Resources"


def test_waiting_array_is_one_record() -> None:
    """The tasks of an array that wait are one job with the array's id."""
    job = read((ARRAY, "(null)"))[8]
    assert (job.array_job_id, job.array_task, job.gpus) == (8, "3-5%2", 1)


def test_gpus_from_the_request_where_accounting_does_not_track_them() -> None:
    """Without gres/gpu in tres-alloc: per node, per job or per task, in this order. What was asked for in all is not
    taken for an equal share of each node."""
    line = RUNNING.replace(",gres/gpu=4,gres/gpu:a100=4", "")
    job = read((line, ""))[1]
    assert (job.gpus, job.gpus_per_node, job.gpu_type) == (4, 2, "")
    per_job = read((line.replace("gres:gpu:2 N/A N/A", "N/A gres:gpu:6 N/A"), ""))[1]
    assert (per_job.gpus, per_job.gpus_per_node) == (6, 0)
    per_task = read((line.replace("gres:gpu:2 N/A N/A", "N/A N/A gres:gpu:3"), ""))[1]
    assert (per_task.gpus, per_task.gpus_per_node) == (6, 0)


@pytest.mark.parametrize(
    "field, value",
    [
        ("JobID", "1_2"),
        ("UserID", "games"),
        ("NodeList", "n[1-"),
        ("NodeList", "@all"),
        ("TimeLimit", "soon"),
        ("TimeLeft", "soon"),
        ("tres-alloc", "cpu=2,mem=lots"),
        ("SubmitTime", "2026-11-20T15:00:00"),
        ("HetJobID", "x"),
    ],
)
def test_a_field_of_another_form_is_an_error_that_names_it(field: str, value: str) -> None:
    """No field is guessed at: the whole observation is refused, naming the job, the field and the value."""
    (row,) = parse.records(printed((RUNNING, "")), parse.JOB_FIELDS, SEP, "squeue")
    row[parse.JOB_FIELDS.index(field)] = value
    with pytest.raises(SlurmUnparsable, match="job 1") as error:
        parse.JobReader().jobs([row], parse.JOB_FIELDS, AT)
    assert value in str(error.value)


@pytest.mark.parametrize("cut", [1, 10, 50, 200, -1, -5, -8])
def test_a_record_cut_short_is_an_error(cut: int) -> None:
    """Output that breaks off anywhere is refused, never read as fewer or shorter jobs."""
    text = printed((RUNNING, "a"), (PENDING, "b"))
    whole = printed((RUNNING, "a"))
    with pytest.raises(SlurmUnparsable):
        list(parse.records(text[: len(whole) + cut] if cut > 0 else text[:cut], parse.JOB_FIELDS, SEP, "squeue"))


def test_another_number_of_fields_is_an_error() -> None:
    """A Slurm that prints one field less is noticed at once."""
    with pytest.raises(SlurmUnparsable, match="fields"):
        list(parse.records(printed((RUNNING.replace(" RUNNING", ""), "")), parse.JOB_FIELDS, SEP, "squeue"))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.text(string.printable))
def test_comments_of_any_text_come_back(first: str, second: str) -> None:
    """Whatever two jobs carry as comments, both are read, with their own comment and fields."""
    jobs = read((RUNNING, first), (PENDING, second))
    assert [jobs[1].gpus, jobs[6].gpus] == [4, 20]
    assert (jobs[1].comment, jobs[6].comment) == tuple("" if t == "(null)" else t for t in (first, second))


def test_nodes_in_several_partitions_are_one() -> None:
    """sinfo -N lists a node once for each of its partitions."""
    rows = [
        ["n1", "mixed", "main", "3/13/0/16", "16384", "3072", "gpu:a100:4(S:0-1)", "gpu:a100:3(IDX:0,2-3)"],
        ["n1", "mixed", "long", "3/13/0/16", "16384", "3072", "gpu:a100:4(S:0-1)", "gpu:a100:3(IDX:0,2-3)"],
        ["n2", "idle+drain", "main", "0/0/16/16", "16384", "0", "(null)", "gpu:0"],
    ]
    tails = {"main": ["ib,nvlink", "10", "OFF"], "long": ["ib,nvlink", "1", "REQUEUE"]}
    text = "".join(SEP.join([*row, *tails[row[2]]]) + SEP + SEP + "\n" for row in rows)
    printed_rows = parse.records(text, parse.NODE_FIELDS, SEP, "sinfo")
    records = [dict(zip(parse.NODE_FIELDS, row, strict=True)) for row in printed_rows]
    nodes = parse.nodes(records)
    assert parse.partitions(records) == {"main": Partition("main", 10, "OFF"), "long": Partition("long", 1, "REQUEUE")}
    assert nodes["n1"] == Node(
        "n1",
        frozenset({"MIXED"}),
        ("main", "long"),
        4,
        3,
        "a100",
        cpus=16,
        cpus_used=3,
        mem_mb=16384,
        mem_alloc_mb=3072,
        features=frozenset({"ib", "nvlink"}),
    )
    assert (nodes["n2"].gpus, nodes["n2"].schedulable) == (0, False)


@pytest.mark.parametrize(
    "state, usable",
    [
        ("idle", True),
        ("mixed+planned", True),
        ("allocated", True),
        ("idle+drain", False),
        ("allocated+drain", False),
        ("down", False),
        ("idle+maintenance+reserved", False),
        ("idle+not_responding", False),
        ("idle+cloud+powered_down", False),
        ("unknown*", False),
        ("future", False),
    ],
)
def test_which_nodes_take_new_jobs(state: str, usable: bool) -> None:
    """Idle GPUs of a node that is drained, down, reserved, asleep or silent are nobody's to give."""
    node = Node("n1", frozenset(state.rstrip("*").upper().split("+")), gpus=4, gpus_used=1)
    assert node.schedulable is usable


@pytest.mark.parametrize("state", ["idle+powered_down", "idle+cloud+powered_down", "idle+powering_down"])
def test_which_nodes_are_asleep(state: str) -> None:
    """What power saving has put to sleep, and nobody has drained as well."""
    node = Node("n1", parse.state_flags(state), gpus=4)
    assert node.asleep and not node.schedulable
    assert not Node("n1", parse.state_flags(f"{state}+drain"), gpus=4).asleep
    assert not Node("n1", parse.state_flags("idle"), gpus=4).asleep


@pytest.mark.parametrize(
    ("state", "asleep", "usable"),
    [
        *(("idle~", True, False), ("idle%", True, False), ("idle!", True, False), ("idle#", False, False)),
        *(("mixed#", False, False), ("idle$", False, False), ("idle@", False, False), ("idle^", False, False)),
        *(("idle*", False, False), ("idle-", False, True), ("mixed-", False, True), ("idle*~", False, False)),
        *(("allocated", False, True), ("drained~", False, False), ("down*", False, False)),
    ],
)
def test_what_the_marks_behind_a_state_mean(state: str, asleep: bool, usable: bool) -> None:
    """As sinfo has them where it prints no flags: a node that sleeps, wakes, boots or is silent takes no job."""
    node = Node("n1", parse.state_flags(state), gpus=4)
    assert (node.asleep, node.schedulable) == (asleep, usable)


@pytest.mark.parametrize("asked", ["gres:gpu:a(b:1", "gres:gpu:a)b:1", "gres:gpu:a=b:1", "gres:gpu:(IDX:1"])
def test_what_one_user_asks_for_hides_nobody(asked: str) -> None:
    """Slurm takes any type for a job that is held, and tells it as it was written: the others are seen all the same,
    and a job's own GPUs are those that Slurm counts."""
    for line in (PENDING.replace("N/A gres:gpu:20", f"{asked} N/A"), RUNNING.replace("gres:gpu:2", asked)):
        assert asked in line
        jobs = read((line, ""), (ARRAY, ""))
        assert jobs[8].gpus == 1
    assert (jobs[1].gpus, jobs[1].gpus_per_node, jobs[1].asked_per_node) == (4, 2, 0)


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_durations(days: int, hours: int, minutes: int, seconds: int) -> None:
    """Slurm's durations in all three lengths."""
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert parse.limit_s(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == total
    assert parse.limit_s(f"{hours}:{minutes:02}:{seconds:02}") == total - days * 86400
    assert parse.limit_s(f"{minutes}:{seconds:02}") == minutes * 60 + seconds


@pytest.mark.parametrize("text", ["UNLIMITED", "N/A", "NOT_SET", "Partition_Limit"])
def test_no_time_limit(text: str) -> None:
    """Without a limit there is no number."""
    assert parse.limit_s(text) is None


def test_how_last_runs_ended() -> None:
    """By the time of their submission, not by the order of rows; one that runs again has not ended."""
    rows = (
        *("7|1200|PENDING", "7|1100|PREEMPTED", "7|1000|NODE_FAIL"),
        *("8|1000|REQUEUED", "8|1100|NODE_FAIL", "8|1200|PENDING"),
        *("9|1000|REQUEUED", "9|1100|RUNNING", "10|1000|PENDING", "11|1000|CANCELLED by 1001"),
    )
    assert parse.last_runs("\n".join(rows)) == {7: "PREEMPTED", 8: "NODE_FAIL", 11: "CANCELLED"}
    with pytest.raises(SlurmUnparsable, match="sacct printed a job in no known form"):
        parse.last_runs("7|Unknown|X")
