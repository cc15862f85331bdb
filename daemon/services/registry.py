"""Every service there is, in the order in which they are asked.

Promise: daemon and simulator ask the same services in the same way.
Limit: what an earlier service takes is gone for the later ones; nothing is weighed between them.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from slurm_elastic.protocol.errors import ConfigError

from ..actions.action import Action
from ..planner.settings import PlannerSettings
from .base import ACT, OFF, REACHES, Observation, Proposal, Service
from .elastic import ElasticJobs
from .power.service import NodePowers
from .queue.service import QueueOrder

SERVICES: tuple[type[Service], ...] = (ElasticJobs, QueueOrder, NodePowers)
Fence = Callable[[Service], AbstractContextManager[Any]]


class Services:
    """Those of one daemon, or of one simulation."""

    def __init__(self, settings: PlannerSettings) -> None:
        names = [kind.name for kind in SERVICES]
        for name in settings.of_services:
            if name not in names:
                raise ConfigError(f"services={name} is not known; accepted: {', '.join(names)}")
        self.every = tuple(kind() for kind in SERVICES)
        self.elastic = next((one for one in self.every if isinstance(one, ElasticJobs)), ElasticJobs())
        self.queue = next((one for one in self.every if isinstance(one, QueueOrder)), QueueOrder())
        self.power = next((one for one in self.every if isinstance(one, NodePowers)), NodePowers())
        self._in_mode = {settings.mode: settings}

    def proposals(
        self, seen: Observation, fence: Fence = nullcontext
    ) -> Iterator[tuple[Service, Observation, Proposal]]:
        """What each service wants that is not off, with what it was shown, in which `settings.mode` is its own.

        What one that acts takes is not free for those after it; they see no more of it. fence: what each is asked in;
        one that fails there wants nothing.
        """
        for service in self.every:
            proposal = None
            with fence(service):
                mode = service.mode(seen.settings, seen.site)
                if mode != OFF:
                    own = self._shown(seen, mode)
                    proposal = service.propose(own)
            if proposal is None:
                continue
            yield service, own, proposal
            if mode == ACT and proposal.left is not None:
                seen = replace(seen, left=proposal.left)

    def wishes(self, seen: Observation) -> list[Proposal]:
        """What each service would want that `services` does not turn off, whatever the daemon's mode."""
        told = seen.settings.of_services
        return [one.propose(seen) for one in self.every if told.get(one.name, one.unless_told) != OFF]

    def undo(self, seen: Observation, fence: Fence = nullcontext) -> list[Action]:
        """What takes back all that services have done which do not act now."""
        found: list[Action] = []
        for service in self.every:
            with fence(service):
                mode = service.mode(seen.settings, seen.site)
                if mode != ACT:
                    found += service.undo(self._shown(seen, mode))
        return found

    def in_mode(self, mode: str) -> PlannerSettings:
        """The settings in this mode; always the same object, for what is kept goes by it."""
        if mode not in self._in_mode:
            self._in_mode[mode] = replace(next(iter(self._in_mode.values())), mode=mode)
        return self._in_mode[mode]

    def _shown(self, seen: Observation, mode: str) -> Observation:
        """The same in a service's mode."""
        if REACHES[seen.settings.mode] == mode:
            return seen
        return replace(seen, settings=self.in_mode(next(word for word, reach in REACHES.items() if reach == mode)))
