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
        store.upsert_job(replace(JOB, job_id=job_id))
    for job_id in (7, 8, 10):
        store.note_program(job_id, f"ada:{job_id}.py", "a100")
    store.end_job(10, "COMPLETED", 5.0)
    with Store(url) as again:
        assert again.program_of(8) == ("ada:8.py", "a100")
        said: list[str] = []
        event.listen(again._db.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
        assert again.program_of(7) == ("ada:7.py", "a100") and again.program_of(9) is None
        assert not said
        assert again.program_of(10) == ("ada:10.py", "a100") and again.program_of(99) is None
        again.note_program(9, "ada:9.py", "h100")
        said.clear()
        assert again.program_of(9) == ("ada:9.py", "h100") and again.program_of(99) is None and not said


def test_what_a_supervisor_has_said_first_is_kept(store: Store, url: str) -> None:
    """A program that is noted before the others are read is not lost when they are."""
    for job_id in (7, 8):
        store.upsert_job(replace(JOB, job_id=job_id))
    store.note_program(8, "ada:8.py", "a100")
    with Store(url) as again:
        again.note_program(7, "ada:7.py", "a100")
        assert again.program_of(7) == ("ada:7.py", "a100") and again.program_of(8) == ("ada:8.py", "a100")
