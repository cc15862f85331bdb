"""A running elastic job as the mechanisms look at it: what their tests are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shrink_jobs import giver

from slurm_elastic.daemon.actions.refusals import Refusal
from slurm_elastic.daemon.capacity.ledger import Ledger
from slurm_elastic.daemon.capacity.roster import ElasticJob, sort_jobs
from slurm_elastic.daemon.capacity.shrink_options import ShrinkableJob
from slurm_elastic.daemon.mechanisms.base import FreeNodes
from slurm_elastic.daemon.slurm.model import Snapshot
from slurm_elastic.protocol.codes import EventKind
from slurm_elastic.protocol.messages import Piece


@dataclass(frozen=True)
class Resizable:
    """Job 1 of a snapshot, training on all that it holds."""

    job: ElasticJob
    shrinkable: ShrinkableJob
    pause_s: float | None = None
    requeue_s: float | None = None
    likely_pause_s: float | None = None
    likely_requeue_s: float | None = None
    one_node_each: bool = False
    refused: Mapping[EventKind, Refusal] = field(default_factory=dict)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self.job.pieces

    @property
    def gpus(self) -> int:
        return self.job.gpus


def resizable(snapshot: Snapshot, pause_s: float | None = None, requeue_s: float | None = None) -> Resizable:
    roster = sort_jobs(snapshot, accepted={1})
    return Resizable(roster.elastic[1], giver(roster, 1), pause_s, requeue_s)


def free_nodes(snapshot: Snapshot) -> FreeNodes:
    """Every node of the cluster."""
    return FreeNodes(Ledger.of(snapshot), frozenset(snapshot.nodes))
