"""What jobs run, as the store remembers it."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import event
from store_records import JOB

from slurm_elastic.db.store import Store


def test_the_programs_of_all_jobs_are_read_at_once(store: Store, url: str) -> None:
    """After a start the first job asked for brings those of all that have not ended; one that has ended, or is new, is
    read by itself; what a supervisor says afterwards counts."""
    for job_id in (7, 8, 9, 10):
        store.jobs.upsert(replace(JOB, job_id=job_id))
    for job_id in (7, 8, 10):
        store.programs.note(job_id, f"ada:{job_id}.py", "a100")
    store.jobs.end(10, "COMPLETED", 5.0)
    with Store(url) as again:
        assert again.programs.of(8) == ("ada:8.py", "a100")
        said: list[str] = []
        event.listen(again._db.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
        assert again.programs.of(7) == ("ada:7.py", "a100") and again.programs.of(9) is None
        assert not said
        assert again.programs.of(10) == ("ada:10.py", "a100") and again.programs.of(99) is None
        again.programs.note(9, "ada:9.py", "h100")
        said.clear()
        assert again.programs.of(9) == ("ada:9.py", "h100") and not said
        assert again.programs.of(10) == ("ada:10.py", "a100") and said, "kept though nobody would forget it any more"


def test_what_a_supervisor_has_said_first_is_kept(store: Store, url: str) -> None:
    """A program that is noted before the others are read is not lost when they are."""
    for job_id in (7, 8):
        store.jobs.upsert(replace(JOB, job_id=job_id))
    store.programs.note(8, "ada:8.py", "a100")
    with Store(url) as again:
        again.programs.note(7, "ada:7.py", "a100")
        assert again.programs.of(7) == ("ada:7.py", "a100") and again.programs.of(8) == ("ada:8.py", "a100")
