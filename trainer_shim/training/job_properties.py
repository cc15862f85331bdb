"""What a script may ask its job: where it is, how far, with which batch and rate. Nothing here changes anything."""

import os
import sys
from typing import Any

from slurm_elastic.protocol.errors import TrainingError

from ..data.sampling import whole
from ..numerics.batch import Rate
from ..world.one_rank import line_of_script
from .session import Session

NO_RANK = (
    "which is -1 on every worker before the loop, so that nobody is rank 0 there; accepted: job.once(function) for "
    "what one process does, job.on_each_node(function), job.tracker(open). Seeds need no rank: each has one of its own"
)


class JobProperties:
    """The reading half of a Job."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tuning = session.tuning
        self._state = session.state
        self._told = False

    @property
    def rank(self) -> int:
        """This worker's rank; -1 until it is in a world."""
        rank = self._session.rank
        if rank < 0 and not self._told and os.environ.get("SELASTIC_MAIN") and (line := line_of_script()):
            self._told = True
            sys.stderr.write(f"selastic: {line} asks for job.rank, {NO_RANK}\n")
        return rank

    @property
    def world_size(self) -> int:
        """Ranks in the current world; 0 until there is one."""
        world = self._session.membership.world
        return world.size if world else 0

    @property
    def mesh(self) -> Any:
        """The current world as a torch DeviceMesh: dimensions ("dp", "tp") with join(unit=...), ("dp",) without.

        None before there is a world, and in a process alone. Another world has another mesh: do not keep it.
        """
        world, strategy = self._session.membership.world, self._session.strategy
        if world is None or strategy is None or not world.grouped:
            return None
        if strategy.mesh is None:
            from ..world.mesh import mesh_of

            strategy.mesh = mesh_of(world, self._session.device)
        return strategy.mesh

    @property
    def generation(self) -> int:
        """Number of the current world; -1 until there is one."""
        world = self._session.membership.world
        return world.generation if world else -1

    @property
    def batch(self) -> int:
        """The current global batch, in samples."""
        return self._session.batch

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return self._state.progress.epoch

    @property
    def samples(self) -> int:
        """Samples trained on since the start of the training, over all ranks and worlds."""
        return self._state.progress.samples

    @property
    def global_step(self) -> int:
        """Optimizer steps since the start of the training."""
        return self._state.progress.step

    @property
    def rate(self) -> Rate:
        """How the optimizers' rates are changed at this moment."""
        return self._tuning.rate(self._state.progress)

    @property
    def noise_scale(self) -> float:
        """The gradient noise scale, in samples; 0 until it has been measured."""
        return self._tuning.noise(self._state.progress).scale

    def steps(self, epochs: int, samples: int) -> int:
        """The length of a schedule over `epochs` passes of `samples` samples: in base batches, whatever the batch is
        at the time. Schedulers given to wrap() are advanced once per base batch.
        """
        return max(1, -(-epochs * whole(samples, self._tuning.each) // self._tuning.base))

    def decay(self, per_step: float) -> float:
        """What is left after a step at the current batch, of an average that keeps this share in a step of join()'s:
        averaged weights then reach as many samples back at every batch. An epoch's short last step counts as a whole.
        """
        if not 0.0 <= per_step <= 1.0:
            raise TrainingError(f"job.decay({per_step!r}) is not accepted; accepted: 0 to 1, e.g. 0.999")
        return float(per_step ** (self._session.batch / self._tuning.base))

    def log(self, *words: object) -> None:
        """Print on rank 0 only, at once."""
        self._session.log(*words)
