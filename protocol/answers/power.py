"""The rows of `selastic power`: which nodes sleep, and what that has brought."""

from __future__ import annotations

from ..text.tables import moment
from .record import Column, about, record


@record
class NodePower:
    """One node with GPUs."""

    node: str = about("node", Column("Node"))
    pool: str = about("partitions and GPU type that it is counted with", Column("Pool"))
    state: str = about("busy, idle, asleep, waking, offered to elastic jobs, or away: not ours", Column("State"))
    since: float | None = about("since when it sleeps, or was asked to wake", Column("Since", form=moment))
    why: str = about("why it is never put to sleep; empty: it may be", Column("Because"))


@record
class Power:
    """What has been brought, and every node."""

    at: float = about("when the nodes were like this")
    mode: str = about("review or act: how far the service goes")
    asleep_h: float = about("node-hours asleep, as far back as events are kept")
    kwh: float | None = about("kWh that they drew less, by power_watts; null: that is not set")
    wake_ups: int = about("times that nodes were woken, however many at once")
    woken: int = about("nodes that were woken")
    waits_s: tuple[float, ...] = about("how long each job waited that waited for a node to boot, in seconds")
    said: tuple[str, ...] = about("the same in words, what the site lacks, and what the settings would have brought")
    nodes: tuple[NodePower, ...]
