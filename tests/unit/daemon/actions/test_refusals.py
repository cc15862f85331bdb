"""Whom a refusal concerns: the job, its account in its partition, one of them, or all; never more than explains it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_elastic.daemon.actions.action import NODE, Subject
from slurm_elastic.daemon.actions.refusals import ALL, UNLISTED, Concerned, Refusals
from slurm_elastic.protocol.codes import EventKind

NOW = 1000.0
SHRINK, CANCEL = EventKind.SHRINK, EventKind.CANCEL


def refusals() -> Refusals:
    return Refusals(backoff_s=60.0, trip_after=3, trip_s=600.0)


def as_job(number: int, *submitted: str) -> Concerned:
    """A job, with its account, partition and user."""
    return Concerned(Subject.job(number), *submitted)


def refuse(counted: Refusals, *jobs: Concerned, now: float = NOW) -> list[str]:
    """The scopes that rest after it."""
    found = [counted.refused(SHRINK, job, f"no {job.subject.name}", now)[1] for job in jobs]
    return [wide.scope for wide in found if wide is not None]


def jobs_of(account: str, partition: str, *numbers: int, user: str = "") -> list[Concerned]:
    """Of this user, or of one each."""
    return [as_job(number, account, partition, user or f"u{number}") for number in numbers]


def one_users(account: str, partition: str, *numbers: int) -> list[Concerned]:
    return jobs_of(account, partition, *numbers, user="eve")


@pytest.mark.parametrize(
    ("jobs", "rests"),
    [
        (jobs_of("lab", "low", 1, 1, 1, 1, 1, 1), []),
        (jobs_of("lab", "low", 1, 2), []),
        (jobs_of("lab", "low", 1, 2, 3), ["account lab in partition low"]),
        ([*jobs_of("a", "low", 1), *jobs_of("b", "low", 2), *jobs_of("c", "low", 3)], ["partition low"]),
        ([*jobs_of("lab", "p", 1), *jobs_of("lab", "q", 2), *jobs_of("lab", "r", 3)], ["account lab"]),
        ([*jobs_of("a", "p", 1), *jobs_of("b", "q", 2), *jobs_of("c", "r", 3)], [ALL]),
        ([*jobs_of("a", "p", 1, 2, 3), *jobs_of("b", "p", 4, 5)], ["account a in partition p"]),
        ([as_job(1), as_job(2), as_job(3)], [UNLISTED]),
        ([Concerned(Subject(NODE, f"n{number}")) for number in range(3)], ["every node"]),
        (one_users("lab", "low", 1, 2, 3), ["user eve's jobs of account lab in partition low"]),
        ([*one_users("a", "p", 1), *one_users("b", "q", 2), *one_users("c", "r", 3)], ["user eve's jobs"]),
        ([*one_users("a", "p", 1, 2), *jobs_of("a", "p", 4)], []),
        ([*one_users("a", "p", 1, 2), *jobs_of("a", "p", 4, 5)], ["account a in partition p"]),
    ],
    ids=[
        "one job",
        "two",
        "one account's",
        "one partition's",
        "an account's in all",
        "of all",
        "explained",
        "unlisted",
        "nodes",
        "one user's",
        "a user's in all",
        "two users",
        "three users",
    ],
)
def test_the_smallest_scope_that_explains_refusals_rests(jobs: list[Concerned], rests: list[str]) -> None:
    """Six refusals of one job concern that job; jobs that a narrower scope explains are not counted for a wider."""
    assert refuse(refusals(), *jobs) == rests


def test_what_is_out_of_scope_is_left_alone() -> None:
    """Another partition, another account, another kind of action: asked as before."""
    counted = refusals()
    refuse(counted, *jobs_of("lab", "low", 1, 2, 3))
    assert SHRINK in counted.of(as_job(9, "lab", "low"), NOW)
    assert CANCEL not in counted.of(as_job(9, "lab", "low"), NOW)
    for other in (as_job(9, "lab", "main"), as_job(9, "other", "low")):
        assert not counted.of(other, NOW) and counted.wide(SHRINK, other, NOW) is None
    assert counted.of_all(NOW) is None


def test_one_that_is_taken_ends_the_rest_of_all_it_belongs_to() -> None:
    """Single refusals between others that are taken never add up."""
    counted = refusals()
    for number in range(20):
        assert refuse(counted, *jobs_of("lab", "low", number)) == []
        counted.taken(SHRINK, as_job(99, "lab", "low"))
    refuse(counted, *jobs_of("lab", "low", 1, 2, 3))
    counted.taken(SHRINK, as_job(1, "lab", "low"))
    assert not counted.of(as_job(1, "lab", "low"), NOW)


@pytest.mark.parametrize(("of", "first"), [(jobs_of, 2), (one_users, 1)])
def test_rests_double(of: Callable[..., list[Concerned]], first: int) -> None:
    """A job's up to an hour, a scope's up to a day; when a scope's is over, the next one refused begins the next, where
    users share it the next two users': nobody keeps others from being tried again."""
    counted, job = refusals(), as_job(1, "lab", "low", "u1")
    own = [counted.refused(SHRINK, job, "no", NOW)[0].until - NOW for _ in range(9)]
    assert own[:3] == [60.0, 120.0, 240.0] and own[-1] == 3600.0
    counted, now, rests = refusals(), NOW, []
    job = of("lab", "low", 1)[0]
    assert refuse(counted, *of("lab", "low", 1, 2)) == []
    for number in range(3, 14):
        wide = counted.refused(SHRINK, of("lab", "low", 100 * number)[0], "no", now)[1]
        if number > 3 and first == 2:
            assert wide is None
            assert counted.refused(SHRINK, of("lab", "low", 100 * number)[0], "no", now)[1] is None
            wide = counted.refused(SHRINK, of("lab", "low", 100 * number + 1)[0], "no", now)[1]
        assert wide is not None
        rests.append(wide.until - now)
        assert counted.wide(SHRINK, job, now) and counted.wide(SHRINK, job, wide.until) is None
        now = wide.until
    assert rests[:3] == [600.0, 1200.0, 2400.0] and rests[-1] == 86400.0


def test_words_name_whom_it_concerns_and_what_slurm_said() -> None:
    """For `explain`."""
    counted = refusals()
    own, _ = counted.refused(SHRINK, as_job(1, "lab", "low", "u1"), "sizes are fixed", NOW)
    assert own.words == "not tried for this job for a while: sizes are fixed"
    refuse(counted, *jobs_of("lab", "low", 2, 3))
    refused = counted.of(as_job(1, "lab", "low"), NOW)[SHRINK]
    assert refused.words == "not tried for account lab in partition low for a while: no 3"
