"""What a service is, what it is shown, and what it answers. Pure.

Promise: a service that is off is not asked; one in review is asked, and its rows are kept, but nothing of it is done;
one that acts is asked and done. One that does not act is asked in every round what is to be taken back.
Limit: a service goes no further than the daemon's own mode, and not further than review on a site that lacks what it
needs.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from slurm_elastic.db.rows import DecisionRow, EventRow, HostPair, InUse, Mark, ResizeRow
from slurm_elastic.protocol.codes import EventKind
from slurm_elastic.protocol.records import record

from ..actions.action import Action, Subject
from ..capacity.ledger import Ledger
from ..capacity.roster import Roster
from ..optimizer.job_view import Model
from ..planner import JobState
from ..planner.settings import PlannerSettings
from ..planner.waiting.first_sizes import Changed
from ..slurm.accounting import EndedJob
from ..slurm.model import Size, Snapshot
from ..slurm.site import Site

OFF, REVIEW, ACT = "off", "review", "act"
REACHES = {"off": OFF, "observe": OFF, "review": REVIEW, "act": ACT}
"""How far a service may go, by the daemon's mode."""


class Facts(Protocol):
    """What is read only where a service asks for it. In the daemon from the store, now and then from Slurm."""

    def job_states(self, seen: Observation, in_vain: Collection[int]) -> Mapping[int, JobState]:
        """What is known of each running elastic job, by job id. in_vain: jobs that gave up GPUs which nobody took."""

    def waiting_models(self, seen: Observation) -> Mapping[int, Model]:
        """What is believed of the speed of waiting elastic jobs, by job id."""

    def resized_waiting(self, seen: Observation) -> Mapping[int, Changed]:
        """Waiting jobs that were given another size than their scripts', by job id."""

    def scripts(self, sizes: Mapping[int, Size]) -> Mapping[int, Size]:
        """What these jobs' scripts ask for, with tasks, CPUs and memory; without those of which it is not known."""

    def host_pairs(self) -> Sequence[HostPair]:
        """Hosts that did not reach each other."""

    def history(self, job_id: int) -> Sequence[EventRow]:
        """What was done to a job, the oldest first."""

    def ended_jobs(self, start: float, end: float) -> Sequence[EndedJob] | None:
        """Jobs of anybody that ended in this time, in the order of their ends; None: it is not known now."""

    def site_factors(self, job_ids: Collection[int]) -> Mapping[int, int]:
        """What was last added to the priorities of these jobs, by job id; of those to which something was."""

    def power_events(self) -> Sequence[EventRow]:
        """What was done to nodes, and what was needed of them, the oldest first."""


@record(frozen=True, slots=True)
class Observation:
    """What one round decides on: read once, in an order in which a change in between does no harm."""

    snapshot: Snapshot
    roster: Roster
    resizes: Mapping[int, ResizeRow]
    """The open ones, by job id."""
    in_use: Mapping[int, InUse]
    """What each job trains on, by job id."""
    site: Site
    settings: PlannerSettings
    """The daemon's. `mode` is as it is now, and for a service its own."""
    now: float
    facts: Facts
    marks: Mapping[int, Mark] | None = None
    """Of the decisions about jobs that stand, by job id: one like that needs no evidence, for it is not stored again.
    None: nobody reads rows, and none is made."""
    left: Ledger | None = None
    """What acting services before this one have left free; None: there was none."""

    def numbers(self) -> dict[int, int]:
        """The open resizes' numbers, by job id."""
        return {job_id: resize.id for job_id, resize in self.resizes.items()}

    def free(self) -> Ledger:
        """What is promised to nobody; to be copied before anything is taken."""
        return Ledger.of(self.snapshot) if self.left is None else self.left


@record(frozen=True, slots=True)
class Note:
    """What a service says of a subject where no decision about a job does: an event, stored when the service did
    not say the same of that subject in the round before."""

    subject: Subject
    text: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    kind: EventKind = EventKind.SERVICE
    level: int = logging.INFO
    """Of the line in the log."""


Row = DecisionRow | Note


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a service wants."""

    actions: tuple[Action, ...] = ()
    """To be carried out in this order, if the service acts."""
    rows: tuple[Row, ...] = ()
    """What it says of jobs, nodes and the queue, whether or not it acts."""
    value: float = 0.0
    """What it is worth, in the service's own unit."""
    left: Ledger | None = field(default=None, compare=False)
    """What is free once all of it is done; None: it takes nothing."""


class Service(ABC):
    """One thing that the daemon does for the cluster. One instance lives as long as the daemon, or a simulation."""

    name: ClassVar[str]
    """As in the setting `services`."""
    unless_told: ClassVar[str] = OFF
    """How far it goes where `services` does not name it."""

    def needs(self, site: Site) -> str:
        """What the site lacks for it to act; empty: nothing."""
        return ""

    def mode(self, settings: PlannerSettings, site: Site) -> str:
        """How far it goes now: OFF, REVIEW or ACT."""
        told = settings.of_services.get(self.name, self.unless_told)
        most = (told, REACHES[settings.mode], REVIEW if self.needs(site) else ACT)
        return min(most, key=(OFF, REVIEW, ACT).index)

    @abstractmethod
    def propose(self, seen: Observation) -> Proposal:
        """What it wants now. Changes nothing that another call would see."""

    @abstractmethod
    def explain(self, row: Row) -> str:
        """A row of its in one line."""

    def settled(self, seen: Observation, proposal: Proposal, done: Sequence[Action]) -> None:  # noqa: B027  # optional
        """The proposal has had its round, and these of its actions were carried out."""

    def undo(self, seen: Observation) -> list[Action]:
        """What takes back all of its that stands; asked in every round in which it does not act."""
        return []
