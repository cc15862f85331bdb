"""Every service there is, in the order in which they are asked.

Promise: daemon and simulator ask the same services in the same way.
Limit: what an earlier service takes is gone for the later ones; nothing is weighed between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from slurm_elastic.protocol.errors import ConfigError

from ..actions.action import Action
from ..planner.settings import PlannerSettings
from .base import ACT, OFF, REACHES, Observation, Proposal, Service
from .elastic.jobs import ElasticJobs

SERVICES: tuple[type[Service], ...] = (ElasticJobs,)


class Services:
    """Those of one daemon, or of one simulation."""

    def __init__(self, settings: PlannerSettings) -> None:
        names = [kind.name for kind in SERVICES]
        for name in settings.of_services:
            if name not in names:
                raise ConfigError(f"services={name} is not known; accepted: {', '.join(names)}")
        self.every = tuple(kind() for kind in SERVICES)
        self.elastic = next((one for one in self.every if isinstance(one, ElasticJobs)), ElasticJobs())
        self._in_mode = settings

    def proposals(self, seen: Observation) -> Iterator[tuple[Service, Observation, Proposal]]:
        """What each service wants that is not off, with what it was shown, in which `settings.mode` is its own.

        What one that acts takes is not free for those after it; they see no more of it.
        """
        for service in self.every:
            mode = service.mode(seen.settings, seen.site)
            if mode == OFF:
                continue
            own = self._shown(seen, mode)
            proposal = service.propose(own)
            yield service, own, proposal
            if mode == ACT and proposal.left is not None:
                seen = replace(seen, left=proposal.left)

    def wishes(self, seen: Observation) -> list[Proposal]:
        """What each service would want that `services` does not turn off, whatever the daemon's mode."""
        told = seen.settings.of_services
        return [one.propose(seen) for one in self.every if told.get(one.name, one.unless_told) != OFF]

    def undo(self, seen: Observation) -> list[Action]:
        """What takes back all that services have done which do not act now."""
        modes = [(service, service.mode(seen.settings, seen.site)) for service in self.every]
        return [action for one, mode in modes if mode != ACT for action in one.undo(self._shown(seen, mode))]

    def _shown(self, seen: Observation, mode: str) -> Observation:
        """The same in a service's mode; with the same settings as long as they are: what is kept goes by the object."""
        if REACHES[seen.settings.mode] == mode:
            return seen
        word = next(word for word, reach in REACHES.items() if reach == mode)
        if self._in_mode.mode != word or self._in_mode is seen.settings:
            self._in_mode = replace(seen.settings, mode=word)
        return replace(seen, settings=self._in_mode)
