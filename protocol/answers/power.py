"""The rows of `selastic power`: which nodes sleep, and what that has brought."""

from __future__ import annotations

from ..text.tables import moment
from .record import Column, about, record


@record
class NodePower:
    """One node with GPUs."""

    node: str = about("node", Column("Node"))
    pool: str = about("partitions and GPU type that it is counted with", Column("Pool"))
    state: str = about(
        "busy, idle, asleep, waking, offered (elastic jobs are given it), or away (not the service's)", Column("State")
    )
    since: float | None = about("since when it sleeps, or was asked to wake", Column("Since", form=moment))
    failures: int = about("how often in a row it did not boot", Column("Failures"))
    why: str = about("why it is never put to sleep; empty: it may be", Column("Because"))


@record
class Power:
    """What has been brought, and every node."""

    at: float = about("when the nodes were like this")
    mode: str = about("review or act: how far the service goes")
    lacks: str = about("what the site lacks for it to act; empty: nothing", default="")
    since: float | None = about("when the first node was put to sleep, as far as events are kept; null: none was")
    asleep_h: float = about("node-hours asleep since then")
    kwh: float | None = about("kWh that they drew less, by power_watts; null: that is not set")
    wake_ups: int = about("times that nodes were woken, however many at once")
    woken: int = about("nodes that were woken")
    waited: int = about("jobs that waited for a node to boot")
    mean_wait_s: float | None = about("how long, in the mean; null: none did")
    longest_wait_s: float | None = about("how long at most")
    would: tuple[str, ...] = about("what these settings would have brought on the days behind")
    nodes: tuple[NodePower, ...]
