"""How long each state of a resize may last without progress."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..actions.refusals import EPILOG, granted_s, seconds
from ..slurm.site import Site
from .settings import ResizeSettings


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
