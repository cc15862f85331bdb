"""A loop that stays the script's: `while job.next():` is the boundary between two iterations, and all else is its own.

What is voted on travels beside an iteration, in a small all-reduce of its own that begins where the iteration does, and
is acted on where it ends: so any number of models, optimizers and backward passes fits between two boundaries. The
generators are seeded where an iteration begins, from its number, the same on every rank; and for each micro batch, from
the iteration's number and its own: what a script draws there does not depend on how many ranks there are.

Limits: the batch is the script's, whatever the world's size. Where a collective fails, or a joiner dies in its first
iteration, the workers start again from the last state saved.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from slurm_elastic.protocol.errors import TrainingError

from ..control.worker_client import ComingWorld
from ..data.sampling import mix, seed_all
from ..numerics.batch import slice_of
from ..parallel.own_backward import OwnBackward, Replica
from ..state.variables import Variables
from ..world.agreement import VoteExchange, attempt
from .checks import check_model
from .optimizer_step import OptimizerSteps
from .session import Session

OF_ITERATION, OF_SHARE, OF_MICRO_BATCH = 2, 3, 4
"""What a seed is for, as its last counter."""


class OwnLoop:
    """See the module. One per job."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._strategy = OwnBackward()
        self._kept: list[torch.optim.Optimizer] = []
        self._replicas: dict[int, list[Replica]] = {}
        """Of each kept optimizer, by its id: those whose parameters it holds."""
        self._handle: Any = None
        self._voted: tuple[ComingWorld | None, VoteExchange] | None = None
        self._open = False
        """Between next() and what ends the loop."""
        self._shares = self._given = 0
        """How many times the iteration under way was shared out, and into how many positions in all."""
        self._stepped: set[int] = set()
        """Optimizers stepped since the last share, by their id."""
        self.stopped = False

    @property
    def models(self) -> int:
        return len(self._strategy.replicas)

    # -- before the loop -----------------------------------------------------------------------------------------

    def replicate(self, model: Any, options: dict[str, Any], unit: int | None) -> Any:
        """What job.replicate() does."""
        session, tuning = self._session, self._session.tuning
        if session.strategy not in (None, self._strategy):
            raise TrainingError("job.replicate() was called after job.wrap(); accepted: one of the two ways")
        check_model("job.replicate()", model)
        if unit is not None or tuning.shards:
            name = "deterministic" if tuning.shards else "unit"
            raise TrainingError(f"join({name}=...) does not go with job.replicate(); accepted: job.wrap()")
        if not tuning.fixed and tuning.max_batch not in (None, tuning.base):
            raise TrainingError(
                f"join(max_batch={tuning.max_batch}) does not go with job.replicate(): a loop of the script's own "
                f"makes its batch itself; accepted: join(batch={tuning.base}) alone"
            )
        tuning.max_batch, tuning.fixed = tuning.base, True
        if self._handle is None:
            self._handle = register_optimizer_step_pre_hook(self._before_step)
        session.strategy = self._strategy
        self._strategy.on_error = session.world_switch.broke
        return self._strategy.add(model, options)

    def _begin(self) -> None:
        """Enter the first world, and take over the state that it starts from."""
        session = self._session
        if not self.models:
            raise TrainingError("job.next() was called before job.replicate(model); replicate the model first")
        self._kept = [part for part in session.state.parts.values() if isinstance(part, torch.optim.Optimizer)]
        if not self._kept:
            raise TrainingError("job.next() was called before job.keep(optimizer=optimizer); keep what is to survive")
        for optimizer in self._kept:
            found = self._replicas[id(optimizer)] = self._replicas_of(optimizer)
            if not found:
                raise TrainingError(
                    f"job.keep() was given a {type(optimizer).__name__} that holds no parameter of what "
                    "job.replicate() was given, so that ranks would drift apart; replicate its model too"
                )
        session.state.keep("Model", self._strategy.module, own=True)
        session.optimization = OptimizerSteps(session.tuning, self._kept, None, None)
        session.world_switch.has_passes = False
        session.begin()

    def _replicas_of(self, optimizer: torch.optim.Optimizer) -> list[Replica]:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        replicas = self._strategy.replicas
        return [entry for entry in replicas if any(id(parameter) in held for parameter in entry.module.parameters())]

    # -- the boundary --------------------------------------------------------------------------------------------

    def next(self, steps: int | None) -> bool:
        """What job.next() does."""
        session = self._session
        if self._open:
            self._end_iteration()
            session.boundary()
        else:
            self._begin()
            self._open = True
        if self.stopped or (steps is not None and session.state.progress.step >= steps):
            self._finish(finished=not self.stopped)
            return False
        self._begin_iteration()
        return True

    def _begin_iteration(self) -> None:
        session, step = self._session, self._session.state.progress.step
        self._hold()
        self._shares = self._given = 0
        self._strategy.shared = False
        self._stepped = {id(optimizer) for optimizer in self._kept}  # none may be stepped before the first share
        seed_all(mix(session.tuning.seed, step, OF_ITERATION))
        coming, vote = session.vote()
        made = attempt(lambda: VoteExchange(session.world(), vote), session.world_switch.broke, lambda: None)
        self._voted = (coming, made) if made is not None else None

    def _end_iteration(self) -> None:
        """Count it. The next thing is a boundary, or the end."""
        session, voted = self._session, self._voted
        self._strategy.check()
        if voted is None:
            return
        coming, exchange = voted
        self._voted = None
        session.last_state.step_begins()
        reader = attempt(exchange.reader, session.world_switch.broke, lambda: None)
        if reader is None:
            raise AssertionError("an iteration without a vote")
        self._hold()
        session.counted(session.batch, None, coming, reader)

    def _hold(self) -> None:
        for part in self._session.state.parts.values():
            if isinstance(part, Variables):
                part.hold()

    # -- in an iteration -----------------------------------------------------------------------------------------

    def share(self, total: int) -> Share:
        """What job.share() does."""
        if not self._open:
            raise TrainingError("job.share() was called before job.next(); begin the loop with `while job.next():`")
        if not isinstance(total, int) or total < 1:
            raise TrainingError(f"job.share({total!r}) is not accepted; accepted: a number of micro batches or samples")
        session, world = self._session, self._session.world()
        own = slice_of(total, world.replicas, world.replica)
        session.record(total, range(self._given + own.start, self._given + own.stop), epoch=session.state.progress.step)
        self._stepped = set()
        self._strategy.take(len(own) / total)
        self._strategy.sync(True)
        share = Share(self, total, own, self._shares)
        self._shares += 1
        self._given += total
        self.seed(share.number, share.positions.start, OF_SHARE)
        return share

    def seed(self, number: int, position: int, purpose: int) -> None:
        """Have what is drawn next depend on the iteration, on which share of it this is, and on the position."""
        session = self._session
        seed_all(mix(session.tuning.seed, session.state.progress.step, number, position, purpose))

    def begin_micro_batch(self, share: Share, position: int, last: bool) -> None:
        self._strategy.sync(last)
        self.seed(share.number, position, OF_MICRO_BATCH)

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Before any optimizer's step."""
        name, replicas = type(optimizer).__name__, self._replicas.get(id(optimizer))
        if replicas is None:
            replicas = self._replicas_of(optimizer)
            if not replicas:
                return  # of something else
            if self._open:
                raise TrainingError(
                    f"the script called step() of a {name} that job.keep() was not given, and that no worker "
                    "that joins would have; accepted: job.keep(name=optimizer) before the loop"
                )
        if not self._open:
            raise TrainingError(
                f"the script called step() of a {name} outside of the loop that begins with `while job.next():`"
            )
        self._strategy.check()
        if id(optimizer) in self._stepped:
            raise TrainingError(
                f"the script called step() of a {name} again without a job.share(total) since; each step of an "
                "optimizer needs a share of its own, and each iteration a job.next()"
            )
        if not all(replica.complete for replica in replicas):
            raise TrainingError(
                f"the script called step() of a {name} whose gradients no other rank has seen; compute the loss by "
                "what job.replicate() returned, and go over job.share(total) to its end"
            )
        self._stepped.add(id(optimizer))
        self._session.last_state.step_begins()

    # -- the end -------------------------------------------------------------------------------------------------

    def _finish(self, finished: bool) -> None:
        self._open = False
        self._session.finish(finished=finished)

    def close(self) -> None:
        """The script is over: it has left its loop, or failed."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self._open and getattr(sys, "last_value", None) is None:
            if self._session.last_state.torn:  # left behind the optimizer's step
                self._end_iteration()
            self._finish(finished=True)


class Share:
    """This rank's part of an iteration; made by job.share()."""

    def __init__(self, loop: OwnLoop, total: int, own: range, number: int) -> None:
        self._loop = loop
        self.total = total
        self.number = number
        self.positions = own if own else range(1)
        """This rank's of range(total). A rank without a part computes the first one for company, without weight."""

    def __len__(self) -> int:
        """Of this rank's part; at least 1."""
        return len(self.positions)

    def __iter__(self) -> Iterator[int]:
        for position in self.positions:
            self._loop.begin_micro_batch(self, position, last=position == self.positions[-1])
            yield position
