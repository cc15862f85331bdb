"""A loop that stays the script's: job.next() is the boundary between two iterations, and all else is its own; or the
next batch of a job.loader() is the boundary, where a script goes over a dataset.

What is voted on travels beside an iteration, in a small all-reduce of its own that begins where the iteration does, and
is acted on where it ends: so any number of models, optimizers and backward passes fits between two boundaries. The
generators are seeded where an iteration begins, from its number, the same on every rank; and for each micro batch, from
the iteration's number and its own: what a script draws there does not depend on how many ranks there are.

Limits: the batch is the script's, whatever the world's size. Where a collective fails, or a joiner dies in its first
iteration, the workers start again from the last state saved.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from slurm_elastic.protocol.errors import TrainingError

from ..control.worker_client import ComingWorld
from ..data.sampling import Micro, mix, seed_all
from ..parallel.choice import check_cuts, check_has_values, check_together
from ..parallel.own_backward import OwnBackward, OwnModel, Replica
from ..state.variables import Variables
from ..training.checks import check_model
from ..training.guards.first_step import check_graph, replicas_of
from ..training.optimizer_step import OptimizerSteps
from ..training.session import Session
from ..world import process_group as worlds
from ..world.agreement import LARGEST_SAID, TallyReader, VoteExchange, attempt
from ..world.layout import Layout
from .leaving import failed
from .left_gradients import LeftGradients

OF_ITERATION, OF_SHARE, OF_MICRO_BATCH = 2, 3, 4
"""What a seed is for, as its last counter."""


class OwnLoop:
    """See the module. One per job."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._strategy = OwnBackward()
        self._kept: list[torch.optim.Optimizer] = []
        self._replicas: dict[int, list[OwnModel]] = {}
        """Of each kept optimizer, by its id: those whose parameters it holds."""
        self._left = LeftGradients((), ())
        self._handle: Any = None
        self._excepthook: Any = None
        """What came before the one of this loop."""
        self._voted: tuple[ComingWorld | None, VoteExchange] | None = None
        self._open = False
        """The loop is under way."""
        self._ended = False
        """It has been."""
        self._over_data = False
        """It goes over a dataset, and not by next()."""
        self._shares = self._given = 0
        """How many times the iteration under way was shared out, and into how many positions in all."""
        self._asked: tuple[int, int, int] = (0, 0, 0)
        """Into how many the one before was, which optimizers it has stepped, and the world that it was done in."""
        self._taken: set[int] = set()
        """Optimizers that the iteration under way has stepped, by their number among those kept."""
        self._stepped: set[int] = set()
        """Optimizers stepped since the last share, by their id."""
        self.stopped = False

    @property
    def models(self) -> int:
        return len(self._strategy.models)

    # -- before the loop -----------------------------------------------------------------------------------------

    def replicate(self, model: Any, options: dict[str, Any], layout: Layout) -> Any:
        self._check("job.replicate()", model, layout)
        check_has_values("job.replicate()", model)
        return self._add("job.replicate()", Replica(model, options, self._strategy))

    def shard(self, model: Any, options: dict[str, Any], layout: Layout) -> Any:
        from ..parallel.own_shards import OwnShards  # which costs an import

        device = self._session.device
        self._check("job.shard()", model, layout)
        check_cuts("job.shard()", "job.replicate()", model, device)
        return self._add("job.shard()", OwnShards(model, options, device, self._strategy))

    def _add(self, call: str, entry: OwnModel) -> Any:
        session, tuning = self._session, self._session.tuning
        if any(other.sharded != entry.sharded for other in self._strategy.models):
            raise TrainingError(
                f"{call} was called beside a model of the other kind; accepted: job.replicate() for all, or job.shard()"
            )
        tuning.max_batch, tuning.fixed = tuning.base, True
        if self._handle is None:
            self._handle = register_optimizer_step_pre_hook(self._before_step)
        session.strategy = self._strategy
        self._strategy.on_error = session.world_switch.broke
        return self._strategy.add(entry, session.call_model)

    def _check(self, call: str, model: Any, layout: Layout) -> None:
        session, tuning = self._session, self._session.tuning
        if session.strategy not in (None, self._strategy):
            raise TrainingError(f"{call} was called after job.wrap(); accepted: one of the two ways")
        check_model(call, model)
        check_together(tuning.combine, tuning.shards, layout, tuning.shares, call)
        if not tuning.fixed and tuning.max_batch not in (None, tuning.base):
            raise TrainingError(
                f"join(max_batch={tuning.max_batch}) does not go with {call}: a loop of the script's own "
                f"makes its batch itself; accepted: join(batch={tuning.base}) alone"
            )

    def begin(self, call: str) -> None:
        """Enter the first world, and take over the state that it starts from. call: what the script has called."""
        session = self._session
        if not self.models:
            raise TrainingError(f"{call} was called before job.replicate(model); replicate, or shard, the model first")
        optimizers = {
            name: part for name, part in session.state.parts.items() if isinstance(part, torch.optim.Optimizer)
        }
        if not optimizers:
            raise TrainingError(
                f"{call} was called before job.keep(optimizer=optimizer); keep what is to survive, and where the "
                "script changes parameters without one, do that in the step() of a torch.optim.Optimizer"
            )
        session.state.only_steps_change(optimizers)
        self._kept = list(optimizers.values())
        scalers = [part for part in session.state.parts.values() if isinstance(part, torch.amp.GradScaler)]
        self._left = LeftGradients(self._kept, scalers)
        self._strategy.on_backward = self._left.added
        for optimizer in self._kept:
            found = self._replicas[id(optimizer)] = self._replicas_of(optimizer)
            if not found:
                raise TrainingError(
                    f"job.keep() was given a {type(optimizer).__name__} that holds no parameter of what "
                    "job.replicate() or job.shard() was given, so that ranks would drift apart; give it its model too"
                )
        self._strategy.hold(self._kept)
        session.state.keep("Model", self._strategy.module, own=True)
        session.optimization = OptimizerSteps(session.tuning, self._kept, None, None)
        self._over_data = session.world_switch.has_passes = call == "job.epochs()"
        session.trackers.counted_before = False
        if self._strategy.sharded:
            self._excepthook, sys.excepthook = sys.excepthook, self._ended_by
        session.begin()
        self._open = True
        self._end_share()

    def _replicas_of(self, optimizer: torch.optim.Optimizer) -> list[OwnModel]:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        replicas = self._strategy.models
        return [entry for entry in replicas if any(id(parameter) in held for parameter in entry.module.parameters())]

    # -- the boundary --------------------------------------------------------------------------------------------

    def next(self, steps: int | None) -> bool:
        session = self._session
        if self._over_data:
            raise TrainingError(
                "job.next() was called inside job.epochs(); the next batch of job.loader() is the boundary"
            )
        session.reporting.length.steps = steps or 0
        if self._open:
            self._end_iteration()
            session.boundary()
        elif self._ended:
            raise TrainingError(
                "job.next() was called again after the loop had ended, and the training is saved as over; accepted: "
                "one loop, `while job.next(steps):` with all steps of its stages, and `if job.global_step < n:` inside"
            )
        else:
            self.begin("job.next()")
            session.look_at_variables()
        if self.stopped or (steps is not None and session.state.progress.step >= steps):
            self._finish(finished=not self.stopped)
            return False
        self._begin_iteration()
        return True

    def _begin_iteration(self) -> None:
        session, step = self._session, self._session.state.progress.step
        self._hold()
        seed_all(mix(session.tuning.seed, step, OF_ITERATION))
        self._vote()

    def _end_iteration(self) -> None:
        """Count it. The next thing is a boundary, or the end."""
        voted = self._tally()
        if voted is not None:
            self._hold()
            self._session.counted(self._session.batch, None, *voted)

    def _vote(self) -> None:
        """Say, beside the script's code that comes, what this rank is ready for, and what all are to say alike: what
        the iteration before was."""
        session = self._session
        self._left.begin()
        generation, stepped = session.world().generation, sum(1 << number for number in self._taken)
        if self._asked[2] != generation:
            self._left.forget()  # with the world gradients are gone, and perhaps the parameters that had them
        # Whoever is new in a world has asked for nothing, and stepped nothing.
        self._asked = (self._given, stepped, generation) if self._asked[2] == generation else (0, 0, generation)
        self._shares = self._given = 0
        self._taken = set()
        said = (self._asked[0] + 997 * self._asked[1]) % LARGEST_SAID
        coming, vote = session.vote()
        made = attempt(lambda: VoteExchange(session.world(), vote, said), session.world_switch.broke, lambda: None)
        self._voted = (coming, made) if made is not None else None

    def _tally(self) -> tuple[ComingWorld | None, TallyReader] | None:
        """The script's code is through: what all ranks have said. None: there was nothing to say."""
        session, voted = self._session, self._voted
        self._strategy.check()
        self._check_taken()
        self._end_share()
        if voted is None:
            return None
        coming, exchange = voted
        self._voted = None
        session.last_state.step_begins()
        reader = attempt(exchange.reader, session.world_switch.broke, lambda: None)
        if reader is None:
            raise AssertionError("votes that nobody has counted")
        if not exchange.agreed:
            self._tell_apart()
        return coming, reader

    def _tell_apart(self) -> NoReturn:
        """Raise TrainingError, on every rank, for totals, or steps, that were not the same."""
        session = self._session
        with session.membership.ending_when_broken():
            told = worlds.gather(session.world(), *self._asked[:2])
        kind = int(len({total for total, _ in told}) == 1)
        ranks: dict[int, list[str]] = {}
        for rank, said in enumerate(told):
            ranks.setdefault(said[kind], []).append(str(rank))
        names = {value: self._names(value) if kind else str(value) for value in ranks}
        apart = ", ".join(f"{names[value]} on rank{'s' * (len(on) > 1)} {' '.join(on)}" for value, on in ranks.items())
        if kind:
            raise TrainingError(
                f"other optimizers were stepped on other ranks in the iteration before this one: {apart}; what decides "
                "over a step has to be the same on a worker that joins: job.global_step, loader.done, or a counter "
                "that job.keep() was given"
            )
        raise TrainingError(
            f"job.share(total) was called with other totals on other ranks in the iteration before this one: {apart}; "
            "accepted: the total of all ranks together, the same on each, of which every rank gets its part"
        )

    def _names(self, stepped: int) -> str:
        """Of the kept optimizers whose bits are set."""
        chosen = [type(entry).__name__ for number, entry in enumerate(self._kept) if stepped >> number & 1]
        return " and ".join(chosen) or "none"

    def _check_taken(self) -> None:
        """Raise TrainingError for gradients that are to be used later: at a resize they are gone."""
        if not self._strategy.shared:
            return
        stepped = self._session.last_state.torn
        if self._over_data and not self._strategy.used and not stepped:
            raise TrainingError(
                "the next batch of job.loader() was asked for before the model was called with the last one, by a "
                "loader around it that reads ahead, or by `continue`; accepted: a step for each batch, of job.loader() "
                "itself"
            )
        self._left.end(stepped)

    def _end_share(self) -> None:
        """Until the next one nothing may be computed with gradients, or stepped."""
        self._strategy.shared = False
        self._stepped = {id(optimizer) for optimizer in self._kept}

    def _hold(self) -> None:
        for part in self._session.state.parts.values():
            if isinstance(part, Variables):
                part.hold()

    # -- over a dataset ------------------------------------------------------------------------------------------

    def batch_begins(self, micro: Micro) -> None:
        """A batch of job.loader() is handed out, and is all that this rank has of a step."""
        if micro.count > 1:
            raise TrainingError(
                "join(micro_batch=...) does not go with job.loader() in a loop of the script's own, which takes a step "
                "for every batch; accepted: join(batch=...) alone, or `while job.next():` and job.share(n)"
            )
        self._session.record(micro.total, micro.own)
        self._stepped = set()
        self._vote()

    def batch_left(self, micro: Micro) -> None:
        """The script leaves the loop over the loader, perhaps behind the optimizer's step."""
        if self._session.last_state.torn:
            self.batch_ended(micro)
        self._end_share()

    def batch_ended(self, micro: Micro) -> None:
        """The script asks for the next one."""
        voted = self._tally()
        if voted is not None:
            self._session.stepped(micro, *voted)

    # -- in an iteration -----------------------------------------------------------------------------------------

    def share(self, total: int, each: int) -> Share:
        if not self._open or self._over_data:
            raise TrainingError("job.share() was called before job.next(); begin the loop with `while job.next():`")
        if not isinstance(total, int) or total < 1:
            raise TrainingError(f"job.share({total!r}) is not accepted; accepted: a number of micro batches or samples")
        if not isinstance(each, int) or each < 1 or total % each:
            raise TrainingError(
                f"job.share({total}, slice={each!r}) is not accepted; accepted: a number that divides {total}, e.g. 2"
            )
        session = self._session
        shares = session.shares(each)
        own = shares.of(total)
        session.record(total, range(self._given + own.start, self._given + own.stop), epoch=session.state.progress.step)
        self._stepped = set()
        self._strategy.take(len(own) / total)
        self._strategy.sync(True)
        rounds = len(shares.largest(total).of(total)) if self._strategy.sharded else 0
        share = Share(self, total, own or range(each), self._shares, rounds)
        self._shares += 1
        self._given += total
        self.seed(share.number, share.positions.start, OF_SHARE, share.positions)
        return share

    def weigh(self, weight: float) -> None:
        session, strategy = self._session, self._strategy
        if not self._open or not strategy.shared:
            raise TrainingError(
                "job.weigh() was called before job.share(total), or a batch of job.loader(), of a loop of the script's "
                "own; accepted: there, and job.step(loss, weight=...) with job.wrap()"
            )
        if not 0 <= weight < math.inf:
            raise TrainingError(f"job.weigh({weight}) is not accepted; accepted: a number, from 0")
        own = weight if strategy.weight else 0.0  # else it is computed for company
        with session.membership.ending_when_broken():
            total = worlds.total(session.world(), own)
        strategy.weight = own / total if total else 0.0

    def seed(self, number: int, position: int, purpose: int, rows: range = range(0)) -> None:
        """Have what is drawn next depend on the iteration, on which share of it this is, and on the position."""
        session = self._session
        if session.rehearsed is not None and session.rehearsed.draws_by_row(rows):
            position = -1
        seed_all(mix(session.tuning.seed, session.state.progress.step, number, position, purpose))

    def begin_micro_batch(self, share: Share, position: int, counts: bool, last: bool) -> None:
        if not counts:
            self._strategy.weight = 0.0
        for _, options in replicas_of(self._strategy):
            check_graph(options, share.total > 1, "more micro batches than one")
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
                f"the script called step() of a {name} outside of the loop, `while job.next():` or job.loader()"
            )
        self._strategy.check()
        if id(optimizer) in self._stepped:
            raise TrainingError(
                f"the script called step() of a {name} again without a job.share(total), or a batch of "
                "job.loader(), since; each step of an optimizer needs one of its own, and each iteration a job.next()"
            )
        if not all(replica.complete for replica in replicas):
            raise TrainingError(
                f"the script called step() of a {name} whose gradients no other rank has seen; compute the loss by "
                "what job.replicate() or job.shard() returned, and go over job.share(total) to its end"
            )
        self._left.check(optimizer)
        self._session.optimizers().check_groups("job.keep()")
        self._stepped.add(id(optimizer))
        self._taken.update(number for number, entry in enumerate(self._kept) if entry is optimizer)
        self._session.last_state.step_begins()

    def _ended_by(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """An error ends the script. A sharded model communicates in the script's own backward and clipping: where that
        has failed, it is the world that broke, and not the script."""
        membership = self._session.membership
        problem = membership.what_broke(error) if isinstance(error, RuntimeError) else ""
        if problem:
            membership.fail(self._session.world().generation, problem)
        self._excepthook(kind, error, trace)

    # -- the end -------------------------------------------------------------------------------------------------

    def _finish(self, finished: bool) -> None:
        self._open, self._ended = False, True
        self._session.finish(finished=finished)

    def close(self) -> None:
        """The script is over: it has left its loop, or failed."""
        self._left.forget()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self._excepthook is not None:
            sys.excepthook = self._excepthook
        if self._open and not self._over_data and not failed():
            if self._session.last_state.torn:  # left behind the optimizer's step
                self._end_iteration()
            self._finish(finished=True)


class Share:
    """This rank's part of an iteration; made by job.share()."""

    def __init__(self, loop: OwnLoop, total: int, own: range, number: int, rounds: int) -> None:
        self._loop = loop
        self.total = total
        self.number = number
        self.positions = own
        """This rank's of range(total). A rank without a part computes the first ones for company, without weight."""
        self._rounds = max(len(own), rounds)
        """How often every rank calls a sharded model: a rank with fewer computes its last position again."""

    def __len__(self) -> int:
        """Of this rank's part; at least 1."""
        return len(self.positions)

    def __iter__(self) -> Iterator[int]:
        own = len(self.positions)
        for number in range(self._rounds):
            position = self.positions[min(number, own - 1)]
            self._loop.begin_micro_batch(self, position, counts=number < own, last=number == self._rounds - 1)
            yield position
