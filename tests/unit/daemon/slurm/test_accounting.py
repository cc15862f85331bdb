"""Limits of accounts, users and QOS, and who may use a QOS: read from what scontrol and sacctmgr print."""

from __future__ import annotations

import pytest

from slurm_elastic.daemon.slurm.accounting import (
    EndedJob,
    SlurmLimit,
    ended_jobs,
    enforced,
    limits,
    qos_over_partition,
    qos_users,
    run_minutes_lag_s,
)
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.protocol.errors import SlurmUnparsable

# Recorded from Slurm 22.05.8, shortened to the lines that are read.
SHOWN = """\
Current Association Manager state

Association Records

ClusterName=sandbox Account=root UserName= Partition= Priority=0 ID=1
    ParentAccount= Lft=1 DefAssoc=No
    GrpJobs=N(1) GrpJobsAccrue=N(0)
    GrpTRES=cpu=N(2),mem=N(2048),node=N(1),gres/gpu=N(4),gres/gpu:a100=N(4)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=sandbox Account=research UserName= Partition= Priority=0 ID=3
    ParentAccount=root(1) Lft=2 DefAssoc=No
    GrpJobs=N(0) GrpJobsAccrue=N(0)
    GrpTRES=cpu=N(0),mem=N(0),node=N(0),gres/gpu=N(0),gres/gpu:a100=20(0)
    MaxJobs=9(0) MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=sandbox Account=research UserName=games(5) Partition= Priority=0 ID=4
    ParentAccount= Lft=5 DefAssoc=Yes
    GrpJobs=N(0) GrpJobsAccrue=N(0)
    GrpTRES=cpu=N(0),mem=N(0),energy=N(0),node=3(0),gres/gpu=8(0),gres/gpu:a100=N(0)
    MaxJobs=3(0) MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
    MaxTRESPJ=gres/gpu=4
ClusterName=sandbox Account=research UserName=games(5) Partition=low Priority=0 ID=8
    ParentAccount= Lft=3 DefAssoc=No
    GrpJobs=N(0) GrpJobsAccrue=N(0)
    GrpSubmitJobs=N(0) GrpWall=N(0.00)
    GrpTRES=cpu=N(0),gres/gpu=2(0)
    GrpTRESMins=cpu=N(0),gres/gpu=100(37)
    GrpTRESRunMins=cpu=N(0),gres/gpu=2000(40)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=600
    MaxTRESPJ=
    MaxTRESPN=
    MaxTRESMinsPJ=gres/gpu=50

QOS Records

QOS=normal(1)
    GrpJobs=N(0) GrpJobsAccrue=N(0) GrpSubmitJobs=N(0) GrpWall=N(0.00)
    GrpTRES=cpu=100(0),mem=N(0),gres/gpu=N(0)
    MaxTRESPJ=cpu=64,gres/gpu=16
    Account Limits
      research
        MaxJobsPA=N(0) MaxJobsAccruePA=N(0) MaxSubmitJobsPA=N(0)
        MaxTRESPA=cpu=N(0),gres/gpu=30(0)
    User Limits
      5
        MaxJobsPU=5(0) MaxJobsAccruePU=N(0) MaxSubmitJobsPU=N(0)
        MaxTRESPU=cpu=N(0),gres/gpu=12(0)
QOS=free(2)
    GrpJobs=N(0) GrpJobsAccrue=N(0) GrpSubmitJobs=N(0) GrpWall=5000(5000.25)
    GrpTRES=cpu=N(0)
    GrpTRESMins=cpu=N(0),gres/gpu=100(100)
    Account Limits
No Accounts
    User Limits
No Users
"""


def test_limits_are_read_with_whose_they_are() -> None:
    """Of accounts, of users in them or in one partition, of QOS, and of accounts and users in these; N is no limit."""
    found = limits(SHOWN)
    assert found.parents == {"research": "root"} and found.partition_users == {("research", 5, "low")}
    in_low = {"gres/gpu": 2.0, "gres/gpu run minutes": 2000.0}
    assert found.limits == (
        SlurmLimit("research", None, "", {"gres/gpu:a100": 20.0}),
        SlurmLimit("research", 5, "", {"node": 3.0, "gres/gpu": 8.0, "jobs": 3.0}),
        SlurmLimit("research", 5, "", {"gres/gpu": 4.0}, "job"),
        SlurmLimit("research", 5, "", in_low, partition="low"),
        SlurmLimit("research", 5, "", {"gres/gpu minutes": 50.0}, "job", "low"),
        SlurmLimit("", None, "normal", {"cpu": 100.0}),
        SlurmLimit("", None, "normal", {"cpu": 64.0, "gres/gpu": 16.0}, "job"),
        SlurmLimit("", None, "normal", {"gres/gpu": 30.0}, "account"),
        SlurmLimit("", None, "normal", {"gres/gpu": 12.0, "jobs": 5.0}, "user"),
        SlurmLimit("", None, "free", {"gres/gpu minutes left": 0.0, "wall minutes left": 0.0}),
    )


def test_minutes_that_may_still_be_used_count_where_slurm_looks_ahead() -> None:
    """With `safe` Slurm starts nothing that could use up GrpTRESMins; without, all until it is used up."""
    (low,) = (limit for limit in limits(SHOWN, safe=True).limits if limit.partition and limit.scope == "together")
    assert low.tres["gres/gpu minutes left"] == 63


def test_run_minutes_of_each_user_and_account_are_read() -> None:
    """As 24.11 prints them, shortened."""
    text = """\
QOS=capped(2)
    GrpTRESRunMins=cpu=N(30),gres/gpu=N(120)
    Account Limits
      research
        MaxJobsPA=N(1) MaxJobsAccruePA=N(0) MaxSubmitJobsPA=N(1)
        MaxTRESPA=cpu=N(1),gres/gpu=N(4)
        MaxTRESRunMinsPA=cpu=N(30),gres/gpu=900(120)
    User Limits
      games(5)
        MaxJobsPU=N(1) MaxJobsAccruePU=N(0) MaxSubmitJobsPU=N(1)
        MaxTRESPU=cpu=N(1),gres/gpu=8(4)
        MaxTRESRunMinsPU=cpu=N(30),gres/gpu=365(120)
"""
    assert limits(text).limits == (
        SlurmLimit("", None, "capped", {"gres/gpu run minutes": 900.0}, "account"),
        SlurmLimit("", None, "capped", {"gres/gpu": 8.0, "gres/gpu run minutes": 365.0}, "user"),
    )


def test_a_limit_of_no_known_form_is_an_error() -> None:
    """Nothing is planned on limits that cannot be read."""
    with pytest.raises(SlurmUnparsable):
        limits(SHOWN.replace("node=3(0)", "node=3-4"))


@pytest.mark.parametrize(
    ("value", "found"), [("none", {"none"}), ("associations,limits,safe", {"associations", "limits", "safe"})]
)
def test_what_accounting_enforces(value: str, found: set[str]) -> None:
    """A site may keep associations without holding anyone to their limits."""
    assert enforced(f"AccountingStorageEnforce = {value}\nKillWait = 10 sec\n") == found


@pytest.mark.parametrize(
    ("config", "lag"),
    [
        ("PriorityType            = priority/basic", None),
        ("PriorityCalcPeriod      = 00:05:00\nPriorityType            = priority/multifactor", 300.0),
        ("PriorityCalcPeriod      = 1-00:00:30\nPriorityType            = priority/multifactor", 86430.0),
    ],
)
def test_how_late_slurm_counts_minutes_that_have_passed(config: str, lag: float | None) -> None:
    """At each look at priorities; priority/basic never does."""
    assert run_minutes_lag_s(config) == lag


def test_which_qos_come_before_a_partitions() -> None:
    """Recorded from 22.05."""
    assert qos_over_partition("normal|\ncapped|DenyOnLimit,OverPartQOS\nsecond|DenyOnLimit\n") == {"capped"}


def test_who_may_use_a_qos() -> None:
    """Recorded from 22.05: accounts without a user, users, and users in one partition."""
    text = "research|||normal\nresearch|games|low|capped,normal\nresearch|games||normal\nresearch|nobody||capped\n"
    found = qos_users(text, "capped")
    assert found == {
        ("research", "games", "low"): True,
        ("research", "games", ""): False,
        ("research", "nobody", ""): True,
    }
    site = Site(companion_qos_users=found)
    assert site.bars_companion_qos("research", "games", "main") and not site.bars_companion_qos(
        "research", "nobody", ""
    )
    assert not site.bars_companion_qos("research", "games", "low")
    assert not site.bars_companion_qos("research", "unknown", "main")
    with pytest.raises(SlurmUnparsable):
        qos_users("research|games\n", "capped")


def test_ended_jobs_are_read_in_the_order_of_their_ends() -> None:
    """A name may hold what stands between the fields; what never ran, or has not ended, is left out."""
    printed = (
        "1700000300|games|120|billing=4,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=16G,node=2|train|7\n"
        "1700000100|daemon|60|billing=1,cpu=1,mem=500M,node=1|sleep\n"
        "1700000200|games|0||cancelled\n"
        "Unknown|games|5|cpu=1|runs\n"
    )
    assert ended_jobs(printed) == [
        EndedJob("daemon", "sleep", 0, 1, 60.0, 1700000100.0),
        EndedJob("games", "train|7", 4, 8, 120.0, 1700000300.0),
    ]
    for wrong in ("1700000300|games|120", "1700000300|games|long|cpu=1|train"):
        with pytest.raises(SlurmUnparsable, match="sacct printed a job of no known form"):
            ended_jobs(wrong)
