"""The rows of `selastic probe`, and of what selasticd remembers of them (daemon/reports/probes.py)."""

from __future__ import annotations

from ..text.cells import moment, number
from .record import Column, about, record


@record
class Finding:
    """One thing that was tried of a site's Slurm."""

    partition: str = about("where", Column("Partition"))
    user: str = about("for whose jobs it counts; empty: for everybody's", Column("User"))
    at: float = about("when", Column("Time", form=moment))
    name: str = about("its name", Column("Name", "TRIED"))
    outcome: str = about("works, refused or not tried", Column("Outcome"))
    seconds: float | None = about("how long it took", Column("Seconds", form=number(2)))
    said: str = about("what was seen, or why not, in the words of Slurm or the site", Column("Said", "WHAT_WAS_SEEN"))


@record
class Findings:
    """All that is remembered and that the caller may see."""

    findings: tuple[Finding, ...]
    settings: tuple[str, ...] = about("lines for selasticd.toml and for requests that follow", default=())


@record
class Remembered:
    """For whose jobs selasticd uses a probe from now on; empty: for everybody's."""

    user: str
