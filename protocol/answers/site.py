"""What users found out of the site: the rows of `selastic hosts`, pairs of hosts that did not reach each other, and
those of `selastic probe`. Filled by daemon/reports/site.py.
"""

from __future__ import annotations

from ..text.tables import digits, moment
from .record import Column, about, record


@record
class PairOfHosts:
    """Two hosts that did not reach each other when a job of this user's was to train on both."""

    host: str = about("one of the two", Column("Host"))
    other: str = about("the other one", Column("Other"))
    user: str = about("whose jobs found out", Column("User"))
    address: str = about("which of them did not answer, and where", Column("Address", "NO_ANSWER"))
    failures: int = about("resizes in a row that failed because of it", Column("Failures"))
    last_at: float = about("when the last one failed", Column("Last", form=moment))
    again_at: float | None = about(
        "until when no job of this user's is put on both; null: jobs still are",
        Column("LeftOut", "Left_Out_Until", form=moment),
    )


@record
class PairsOfHosts:
    """Every pair that is known."""

    pairs: tuple[PairOfHosts, ...]


@record
class Cleared:
    """The pairs of which nothing is known any more."""

    pairs: tuple[PairOfHosts, ...]


@record
class Finding:
    """One thing that was tried of a site's Slurm."""

    partition: str = about("where", Column("Partition"))
    user: str = about("for whose jobs it counts; empty: for everybody's", Column("User"))
    at: float = about("when", Column("Time", form=moment))
    name: str = about("its name", Column("Name", "TRIED"))
    outcome: str = about("works, refused or not tried", Column("Outcome"))
    seconds: float | None = about("how long it took", Column("Seconds", form=digits(2)))
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
