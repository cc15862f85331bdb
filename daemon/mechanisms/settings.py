"""How long the parts of a resize may take, each state of it without progress, and by which ways they go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..actions.refusals import EPILOG, granted_s, seconds
from ..config.fields import choice, number, setting, text
from ..models.settings import ModelSettings
from ..slurm.site import Site


def _minutes(value: Any) -> int:
    if type(value) is not int or not (value == 0 or 10 <= value <= 525_600):
        raise ValueError
    return value


RELEASES = {"node": "single nodes of a Slurm job too", "job": "whole Slurm jobs only"}


@dataclass(frozen=True, kw_only=True)
class ResizeSettings(ModelSettings):
    table: ClassVar[str] = "resizes"

    companion_wait_s: float = number(60.0, 1, 3600)
    """How long a companion may stay pending before the resize is given up; at least two of Slurm's `bf_interval`, for a
    companion that waits beside others is looked at once in each."""

    companion_by: str = choice("auto", "auto", "salloc", "sbatch")
    """How companions are asked for: by salloc, as an allocation without a script, or by sbatch, with a script that only
    holds the nodes. `auto`: by salloc, and where the site refuses that, by sbatch. Where it refuses that nodes are
    named, too, on those that Slurm chooses."""

    companion_minutes: int = setting(0, "0, or a whole number from 10 to 525600", _minutes)
    """The longest time limit of a companion, in minutes; 0: what its job has left. Training leaves it before its end,
    and grows again where there is room. So Slurm takes a reservation of any nodes that begins further away."""

    companion_qos: str = text("", r"|[a-z0-9_.@+-]+", "the name of a QOS in small letters, or nothing")
    """QOS that companions are submitted with; empty: their job's. All users whose jobs are elastic must be allowed to
    use it. With PreemptType=preempt/qos, jobs that may preempt it take companions alone. Its limits then hold for
    companions in place of those of their job's QOS."""

    warm_up_s: float = number(300.0, 5, 900)
    """How long the workers on a new companion may take to start and be ready. Without selasticd they have a quarter of
    an hour."""

    resize_taken_s: float = number(60.0, 1, 3600)
    """How long a resize may wait for the job's supervisor to take it, before it is withdrawn."""

    switch_s: float = number(300.0, 1, 86400)
    """How long a job may take from taking a resize, or from the time its companions' workers are ready, to its first
    step at the new size; after a requeue, from its start to that step. Set it longer than the slowest start of any
    training here."""

    release_by: str = choice("node", meanings=RELEASES)
    """What is given back to Slurm. A single node of a job goes to the next one while the Epilog of the first still runs
    there; the nodes of a whole job wait for it. With `job` each companion has one node, and the nodes that a job began
    with stay with it."""

    release_s: float = number(300.0, 1, 86400)
    """How long Slurm may take to free what a resize has given up, before the resize is closed with a note."""

    unused_s: float = number(30.0, 1, 3600)
    """How long a job may hold something that it does not train on and that no resize adds, before it is released."""

    requeue_stop_s: float = number(300.0, 10, 86400)
    """How long the checkpoint before a requeue may take, and then how long the job may take to end."""

    requeue_start_s: float = number(90.0, 5, 86400)
    """How long a requeued job may wait for its new size, before selasticd looks for another size that fits."""


def companion_wait_s(settings: ResizeSettings, site: Site, user: str = "", partition: str = "") -> float:
    """Seconds that a companion may wait: Slurm looks at one beside other waiting jobs once in a `bf_interval` only, and
    one that was probed may have been granted late."""
    return max(settings.companion_wait_s, 2 * site.bf_interval_s, 2 * granted_s(site.found(user, partition)))


@dataclass(frozen=True, slots=True)
class Bounds:
    """In seconds. What is over its bound is brought to an end: withdrawn, or done with a word on what is left."""

    issued_s: float = 60.0
    """Until the supervisor says that it took the resize."""
    warm_up_s: float = 300.0
    """From a companion's grant to its workers being ready."""
    switch_s: float = 300.0
    """From companions warm, or from acceptance when none is added, to the new world's first step; after a requeue from
    its start."""
    release_s: float = 300.0
    """From the new world to everything given up being free."""
    margin_s: float = 30.0
    """On top of a resize's own waiting time."""
    leak_s: float = 30.0
    """How long something may be held unused, with no resize behind it, before it is released."""
    stop_s: float = 300.0
    """For the checkpoint before a requeue, and again from the requeue to the job being back in the queue."""
    restart_s: float = 90.0
    """From there to its start at the new size. Later it waits like any other job, and what fits is looked at again."""

    @classmethod
    def of(cls, settings: ResizeSettings) -> Bounds:
        """Those that an admin has set."""
        return cls(
            issued_s=settings.resize_taken_s,
            warm_up_s=settings.warm_up_s,
            switch_s=settings.switch_s,
            release_s=settings.release_s,
            leak_s=settings.unused_s,
            stop_s=settings.requeue_stop_s,
            restart_s=settings.requeue_start_s,
        )

    def at(self, site: Site) -> Bounds:
        """These, with time for the longest epilog that was probed for the site."""
        epilog_s = max((seconds(found, EPILOG) for (user, _), found in site.probed.items() if not user), default=0.0)
        return replace(self, release_s=max(self.release_s, 2 * epilog_s)) if epilog_s else self
