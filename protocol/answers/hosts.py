"""The rows of `selastic hosts`: pairs of hosts that did not reach each other. Filled by daemon/reports/hosts.py."""

from __future__ import annotations

from ..text.cells import moment
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
