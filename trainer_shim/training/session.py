"""The training from one world to the next: beginning, agreeing on a step, saving, ending.

Everything that happens between two steps happens here, in the same order on every rank. What happens in a step is
job.py's, changing worlds is switch.py's.
"""

import math
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from slurm_elastic.protocol.errors import TrainingError

from ..checkpoint.contents import Globals
from ..checkpoint.files import Found
from ..checkpoint.snapshots import Snapshots
from ..control.worker_client import ComingWorld
from ..data.loader import Feed, spare_loader_workers
from ..data.sampling import Micro, Shares, Slicing, positions_of
from ..numerics.batch import slice_of
from ..parallel.gradient_norms import Arriving
from ..parallel.strategy import Called, Strategy
from ..state.kept_parts import State
from ..state.trackers import Trackers
from ..state.variables import Variables
from ..world import groups
from ..world import process_group as worlds
from ..world.agreement import Tally, TallyReader, Vote
from ..world.process_group import World
from ..world.rehearsal import warm
from ..world.rendezvous import Membership
from .audit import Recorder
from .guards.carried import Carried
from .guards.first_calls import FirstCalls
from .guards.first_step import look_ahead
from .guards.leftovers import Leftovers
from .guards.replica_check import Held, ReplicaCheck
from .guards.unkept import Unkept
from .last_state import LastState
from .learning_rate import Tuning
from .optimizer_step import OptimizerSteps
from .pass_boundary import PassBoundary
from .rehearsed import Rehearsed
from .reporting import Reporting
from .speeds import Speeds, of_device
from .switch import WorldSwitch
from .watched import VARIABLE


class Session:
    """See the module. One per job."""

    def __init__(
        self, membership: Membership, tuning: Tuning, directory: Any, every_s: float | None, safe: Globals = ()
    ) -> None:
        self.membership = membership
        self.tuning = tuning
        self.state = State()
        self.reporting = Reporting(membership, tuning, self.state)
        self.snapshots = Snapshots(membership, self.state, self.model, directory, every_s, safe)
        self.saving = self.snapshots.saving
        self.pass_boundary = PassBoundary(self.state, membership.client is not None or self.saving.writer is not None)
        self.device: torch.device = membership.device()
        self.last_state = LastState(membership, self.state, self.model, self.saving.writer, self.device)
        self.strategy: Strategy | None = None
        self.optimization: OptimizerSteps | None = None
        self.world_switch = WorldSwitch(self)
        self.replica_check = ReplicaCheck(self.state, self.model, self.device)
        self.trackers = Trackers()
        self.meant = self.replica_check.meant
        self._carried = Carried(self.state, self.meant, self.replica_check.numbers)
        self.unkept = Unkept(self.log, self.meant)
        self._first_calls: FirstCalls | None = FirstCalls(self.meant, self.state.parts)
        self.speeds = Speeds(tuning.shares == "speed")
        self.starts_at: tuple[int, int, int, int] | None = None
        """Epoch, step, samples and those of the epoch, of a training without this job that it goes on with."""
        self.feed: Feed | None = None
        """The pass over a dataset that is under way."""
        self.samples = 0
        """Of the micro batch under way; 0: not known."""
        self._votes: deque[tuple[ComingWorld | None, TallyReader, Held | None]] = deque()
        self._squares: tuple[float, float, list[int], int] | None = None
        self._measured: tuple[Micro, Arriving] | None = None
        """A step whose norms have not been read yet."""
        self._stepped = False
        """This process has done a step."""
        self._excepthook: Any = None
        """What prints an error that ends the script."""
        self._lag = 1 if self.device.type == "cuda" else 0
        supervised = membership.client is not None
        self._leftovers = Leftovers(lambda: self.strategy, lambda: membership.world, supervised)
        audit = os.environ.get("SELASTIC_AUDIT")
        self._audit = Recorder(audit, membership.worker) if audit else None
        plan = os.environ.get(VARIABLE)
        self.rehearsed = Rehearsed(self, plan) if plan else None
        if membership.client is not None:
            membership.client.on_tick = self._tick
            spare_loader_workers()
        else:
            self.saving.handle_signals()

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return self.membership.world.rank if self.membership.world else -1

    @property
    def batch(self) -> int:
        return self.state.progress.batch or self.membership.batch or self.tuning.base

    def world(self) -> World:
        if self.membership.world is None:
            raise TrainingError("there is no world yet; it forms when job.epochs() begins")
        return self.membership.world

    def model(self) -> Strategy:
        if self.strategy is None:
            raise TrainingError("job.wrap(model, optimizer) has not been called; wrap the model before the loop")
        return self.strategy

    def optimizers(self) -> OptimizerSteps:
        if self.optimization is None:
            raise TrainingError("job.wrap(model, optimizer) has not been called; wrap the model before the loop")
        return self.optimization

    def shares(self, each: int = 1) -> Shares:
        """Of this rank's replica, in multiples of `each`."""
        world = self.world()
        return Shares(world.replicas, world.replica, each, self.speeds.weights)

    def slicing(self) -> Slicing:
        tuning, progress = self.tuning, self.state.progress
        return Slicing(
            self.batch,
            self.shares(tuning.each),
            tuning.limit(alone=self.speeds.wanted and not self.model().sharded),
            halve=tuning.wants_noise,
            dense_until=tuning.dense_until(progress, self.batch),
            shards=tuning.shards,
            together=self.model().sharded,
        )

    def log(self, *words: object) -> None:
        """Print on rank 0, at once."""
        if self.rank == 0:
            print(*words, flush=True)

    # -- in a step -----------------------------------------------------------------------------------------------

    def call_model(self, model: Called, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the script calls in place of a model; looked at in the first step. Limit: not where the script compiles
        this call itself, torch.compile(job.wrap(...)): what looks at it would be compiled with it."""
        if torch.compiler.is_compiling():
            return model(*args, **kwargs)
        self.replica_check.note_inputs(args, kwargs)
        world = self.membership.world
        if self._first_calls is None or world is None or not torch.is_grad_enabled():
            return self.unkept.call(model, args, kwargs)
        return self._first_calls.call(model, args, kwargs, self.samples, alone=world.size == 1)

    def look_at_loss(self, loss: torch.Tensor) -> None:
        """Before a backward pass that is the job's: with a vote in it, it's none of Tensor.backward()'s."""
        self.unkept.flows_into(loss)
        if self._first_calls is not None:
            self._first_calls.check_loss(loss)

    def vote(self) -> tuple[ComingWorld | None, Vote]:
        """This rank's vote with the step now ending."""
        if self._measured is not None and (self._measured[1].arrived or self._squares_are_due()):
            self._read_measured(*self._measured)
            self._measured = None
        square = self._squares[0] if self._squares is not None else 0.0
        save, ready = self.snapshots.ahead(self.membership.coming(), self.rank)
        coming, vote = self.membership.vote(save or self.saving.due(self.rank), self.saving.ending, square, ready)
        world = self.world()
        return coming, self.replica_check.add_to(vote, world.rank) if world.size > 1 else vote

    def record(self, total: int, own: Sequence[int], epoch: int | None = None) -> None:
        """For the audit, before this rank contributes to a step: the samples it trained on, of the epoch under way."""
        self.replica_check.takes_part(bool(own))
        if self._audit is None:
            return
        progress, world = self.state.progress, self.world()
        if not world.speaks:
            return  # the ranks of one replica train on the same samples
        number = progress.epoch if epoch is None else epoch
        place = {"generation": world.generation, "step": progress.step + 1, "epoch": number}
        shares = {"batch": total, "rank": world.replica, "size": world.replicas, "indices": list(own)}
        self._audit.write({**place, **shares})

    def stepped(self, micro: Micro, coming: ComingWorld | None, reader: TallyReader) -> None:
        """A step of a pass over a dataset has been done."""
        self.state.progress.cursor = micro.cursor + micro.total
        self.counted(micro.total, micro.count, coming, reader)

    def counted(self, total: int, count: int | None, coming: ComingWorld | None, reader: TallyReader) -> None:
        """A step of `total` samples has been done, by this rank in `count` micro batches (None: in as many as
        ever): count it, advance the schedule, and keep its tally to be read."""
        progress = self.state.progress
        progress.step += 1
        progress.samples += total
        self.optimizers().schedule(progress)
        self._votes.append((coming, reader, self.replica_check.taken()))
        self.reporting.stepped(total, count, self.optimizers().first_rate(), self.model().exposed_s())
        groups.end_left()
        if self.world_switch.watch is not None:
            self.world_switch.watch.stepped()
        if not self._stepped:
            self._stepped = True
            self.end_first_calls()
            if self.rank == 0:
                self.snapshots.first_look()
        self.last_state.step_ended()
        self.snapshots.write_held()

    def end_first_calls(self) -> None:
        """The first step is done, or the training over."""
        calls, self._first_calls = self._first_calls, None
        if calls is not None:
            calls.end()

    def measure(self, micro: Micro) -> None:
        """A measured step's backward passes are done: have its norms read with the next one, or when a GPU has them."""
        squares = self.model().squares()
        if squares is not None and self._measured is None:
            if (scale := self.optimizers().loss_scale) is not None:
                small, large = (square / scale.to(square) ** 2 for square in squares)
                squares = small, large
            self._measured = (micro, Arriving(squares))

    def _squares_are_due(self) -> bool:
        """Whether to wait for them: the ranks' next vote holds them, or the rate would depend on when they arrive."""
        return self.world().size > 1 or self.tuning.rule == "adascale"

    def _read_measured(self, micro: Micro, squares: Arriving) -> None:
        """Take the squared norms of a measured step: of this rank's gradient, and of the mean over all ranks."""
        world, total = self.world(), micro.total
        small, large = squares.read()
        if world.size == 1:
            first = len(slice_of(total, micro.count, 0, self.tuning.each))
            if micro.count > 1 and math.isfinite(small + large):  # with a gradient scaler a step may overflow
                small *= (total / first) ** 2  # the loss was scaled by its share of the step
                self.tuning.measured(self.state.progress, small, large, [first], total)
            return
        sizes = self.shares(self.tuning.each).of_all(total, total < self.batch)
        own = sizes[world.rank]
        small = small * (total / (own * world.size)) ** 2 if own else 0.0
        self._squares = (small, large, sizes, total)

    def _take_squares(self, sums: Tally) -> None:
        if self._squares is None:
            return
        _, large, sizes, total = self._squares
        self._squares = None
        if not math.isfinite(sums.square + large):
            return
        active = sum(1 for size in sizes if size)
        self.tuning.measured(self.state.progress, sums.square / active, large, sizes, total)

    def look_at_variables(self) -> None:
        """Below the script's loop, where its state may be taken, or has been."""
        self._carried.look(self.rank, self.world().size)

    # -- between two steps ---------------------------------------------------------------------------------------

    def boundary(self) -> None:
        """Act on the tally of a step. In the loader, not in step(): the rest of the loop's body belongs to the step."""
        if self.feed is not None:
            self.state.progress.unread = self.feed.unread(self.state.progress.cursor)
        if self.rehearsed is not None:
            self.rehearsed.between_steps()
        self.look_at_variables()
        self.unkept.look(self.state.progress.step, self.state.parts.values())
        if len(self._votes) <= self._lag:
            return
        coming, reader, said = self._votes.popleft()
        with self.membership.ending_when_broken():
            sums = reader()
            self._check_device()
        if sums.square:
            self._take_squares(sums)
        if sums.weight:
            each = sums.weight / self.world().unit / self.batch
            self.state.progress.per_sample = 2.0 ** round(math.log2(each))
        if self.world().size > 1:
            self.check_replicas(lambda world: self.replica_check.heard(sums, said, world))
        if sums.stop or sums.save:
            self.trackers.flush()
        if sums.stop:
            self.last_state.saved(self.save)
            self._stop()
        if sums.save:
            self.save()
        if not sums.switch or coming is None or coming.generation <= self.world().generation:
            self._share_out()
            return
        if coming.in_place:
            self.world_switch.change_batch(coming)
        elif self.world_switch.comes_now(coming):
            self._agree()
            self.world_switch.switch(coming)

    def speed(self) -> int:
        """This rank's, as far as it is known, where steps are shared out by it."""
        if self.speeds.wanted and self.model().tells_waiting:
            self.speeds.measured(*self.reporting.meter.busy())
        elif self.speeds.wanted:
            self.speeds.measured(1, of_device(self.device))
        return self.speeds.own

    def _share_out(self) -> None:
        """Where ranks have become slower, or faster, than others: other parts of a step, from the next one on."""
        if not self.speeds.due(self.state.progress.step) or self.world().replicas == 1:
            return
        world = self.world()
        with self.membership.ending_when_broken():
            told = [speed for (speed,) in worlds.gather(world, self.speed())]
        if self.speeds.heard(told, world.unit):
            self.forget_measured()
            self.reporting.shared_out(self.slicing())
            if self.feed is not None:
                self.feed.turn(self.state.progress.cursor, self.slicing())

    def check_replicas(self, problem_in: Callable[[World], str]) -> None:
        """End the world where the ranks' states differ; every rank calls this."""
        world = self.world()
        with self.membership.ending_when_broken():
            problem = problem_in(world)
        if problem:
            self.membership.fail(world.generation, problem, differs=True)

    def save(self) -> None:
        """Save what all ranks hold alike; every rank calls this at the same step."""
        self.check_replicas(self.replica_check.compare)
        with self.membership.ending_when_broken():
            self.snapshots.save(self._check_device)

    def _check_device(self) -> None:
        """Raises DistBackendError where what is on the GPU is garbage."""
        if self.world_switch.watch is not None:
            self.world_switch.watch.check()

    def _agree(self) -> None:
        """Replicas are alike, and variables are what they are on rank 0, which may leave now."""
        self.check_replicas(self.replica_check.compare)
        for part in self.state.parts.values():
            if isinstance(part, Variables):
                with self.membership.ending_when_broken():
                    part.load_state_dict(worlds.share(self.world(), part.state_dict()))

    def forget_votes(self) -> None:
        """Votes, and measurements, of another world count no more."""
        self._votes.clear()
        self.forget_measured()

    def forget_measured(self) -> None:
        """Norms of steps with another batch are not read any more."""
        self._squares = self._measured = None

    def note(self, line: dict[str, Any]) -> None:
        """For the audit, on rank 0."""
        if self._audit is not None and self.rank == 0:
            self._audit.write({"generation": self.world().generation, **line})

    def begin(self) -> None:
        """Enter the first world, with the state that it starts from."""
        self._leftovers.begin()
        if self.membership.client is not None:  # the process ends with the script, and the hook with it
            self._excepthook, sys.excepthook = sys.excepthook, self._ended_by
        tuning, membership = self.tuning, self.membership
        micro = tuning.micro_batch or tuning.fitted
        limits = {
            "batch": tuning.base,
            "max_batch": tuning.max_batch or 0,
            "micro_batch": micro,
            "unit": membership.layout.unit,
            "checkpoint_s": self.snapshots.given_s,
        }
        if self.starts_at is not None:
            self.optimizers().begin_at(self.starts_at[2])
        most = max(tuning.base, tuning.max_batch or 0)
        look_ahead(self.state, self.model(), several=(micro or most) < most)
        if membership.client is not None:
            self.model().compile_ahead(self._coming_rows())
            warm(self.device, self.model().module)
        membership.on_wait = lambda coming: self.model().rehearse(coming.rank, coming.size)
        world = membership.enter(limits)
        found, in_parts = None, None
        if membership.source != "survivor":
            worlds.bound(world)  # rank 0 may read for long
            found = self._newest() if world.rank == 0 else None
            if self.model().sharded and world.grouped:
                in_parts = worlds.share(world, found if found is not None and found[0].parts else None)
        captured = found[1] if found is not None else None
        if found is not None and found[0].parts and in_parts is None:
            captured = self.snapshots.read_parts(found, None)
        with membership.ending_when_broken():
            self.world_switch.connect(world.rank == 0, captured=captured, in_parts=in_parts)

    def _coming_rows(self) -> set[int]:
        """Samples of the micro batches in the world that this worker was started for."""
        tuning, unit = self.tuning, self.membership.layout.unit
        ranks, batch = (int(word or 0) for word in os.environ.get("SELASTIC_COMING", "0,0").split(","))
        batch, replicas = batch or tuning.base, ranks // unit
        if tuning.shards or not 0 < replicas <= batch:
            return set()
        places = {Slicing(batch, Shares(replicas, rank), tuning.limit()) for rank in (0, replicas - 1)}
        return {len(part) for place in places for part, *_ in positions_of(0, batch, place)}

    def _newest(self) -> Found | None:
        """Rank 0 of a first world: the newest checkpoint. A world that the supervisor calls fresh takes none."""
        source = self.membership.source
        found = self.saving.newest(must=source == "checkpoint") if source != "fresh" else None
        if found is not None:
            saved, captured = found
            self.state.check(captured)
            self.state.take_progress(captured)
            if self.state.progress.frozen is not None:
                self.state.freeze(self.state.progress.frozen)
            self.log(f"restored from {saved.path} at step {saved.step}, {saved.samples} samples")
        elif self.starts_at is not None:
            self.state.progress.begin_at(*self.starts_at)
            self.state.progress.schedule = self.starts_at[2] // self.tuning.base
        self.note({"restored_from_step": self.state.progress.step})
        return found

    def entered(self, kinds: set[int]) -> None:
        """A world is complete, of these kinds of ranks, and every rank of it at one step."""
        if self.speeds.weights and any(isinstance(part, _BatchNorm) for part in self.model().module.modules()):
            self.log(
                "shares='speed': BatchNorm normalises each rank's part of a step by itself, and a small part by few "
                "samples; GroupNorm, or torch's SyncBatchNorm, does not depend on the parts"
            )
        self.replica_check.entered(self.world(), kinds)
        self.trackers.entered(self.rank == 0, self.state.progress.step)
        self.take_batch()
        if self.rehearsed is not None:
            self.rehearsed.entered()

    def take_batch(self) -> None:
        """The world's batch, and slices, are those of every step from here on."""
        self._set_batch()
        self.reporting.entered(self.slicing())
        if self.feed is not None:
            self.feed.turn(self.state.progress.cursor, self.slicing())

    def _set_batch(self) -> None:
        progress = self.state.progress
        wanted = self.membership.batch or progress.batch or self.tuning.base
        batch, problem = self.tuning.accept(wanted, starting=progress.step == 0)
        if problem:
            self.log(problem)
        self.tuning.change(progress, batch)

    def _tick(self) -> None:
        """On the client's thread."""
        self.reporting.due()
        if self.rank == 0:
            self.snapshots.while_quiet()
            self.last_state.write_overdue()

    # -- the end -------------------------------------------------------------------------------------------------

    def _stop(self) -> NoReturn:
        """The job ends, and nothing is trained that no checkpoint has."""
        problem = self.saving.finish()
        if self.membership.client is not None:
            self.membership.await_end(self.membership.client)
        written = f"the checkpoint could not be written: {problem}" if problem else "the checkpoint is written"
        self.log(f"stopped by a signal at step {self.state.progress.step}; {written}")
        sys.exit(128 + 15)

    def finish(self, finished: bool, together: bool = True) -> None:
        """The training is over, or left: save it, and tell the supervisor; not after an error inside a step, nor by a
        joiner before its first one: the others wait for it in that step, and nowhere else. together: every rank calls
        this; else nobody is waited for.

        Raises TrainingError when it cannot be saved and there is no supervisor that says so at the end of the script.
        """
        if self.last_state.torn or (not finished and self._joins):
            return
        if not together and (self.world_switch.on_trial or self.model().sharded):
            return
        self.world_switch.settle()
        if finished:
            self.check_replicas(self.replica_check.compare)
        if self.rehearsed is not None:
            self.rehearsed.finished()
        progress = self.state.progress
        progress.finished = finished
        self.reporting.send(self.reporting.meter.rest())
        self.trackers.flush()
        with self.membership.ending_when_broken():
            problem = self.snapshots.save_last(self._check_device)
        client = self.membership.client
        if client is None and problem:
            raise TrainingError(f"the training is over, and its last checkpoint could not be written: {problem}")
        if client is not None:
            fields = {"step": progress.step, "samples": progress.samples, "epoch": progress.epoch}
            client.send({"type": "done", **fields, "finished": finished, "unsaved": problem})
            client.flush()

    @property
    def _joins(self) -> bool:
        """Whether this worker has come to a world that trains, and has done no step of it."""
        return not self._stepped and self.membership.source == "survivor"

    def _ended_by(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """An error ends the script: said at once, for the others wait in the step until this process has ended, and its
        error is why the world does not come about, or breaks."""
        client, world = self.membership.client, self.membership.world
        if client is not None and world is not None:
            said = f"{kind.__name__}: {error}"[:500]
            if issubclass(kind, torch.cuda.OutOfMemoryError):
                self.world_switch.too_large(said)
            client.send({"type": "failed", "generation": world.generation, "error": said})
            client.flush()
        self._excepthook(kind, error, trace)

    def close(self) -> None:
        """Take leave of the group and of the supervisor."""
        self.end_first_calls()
        self.unkept.leave()
        if self.world_switch.watch is not None:
            self.world_switch.watch.end()
        self.trackers.close()
        if self.strategy is not None:
            self.strategy.disconnect()
        # Under the supervisor the process ends right after this, and destroying a group may wait for dead ranks.
        world = self.membership.world
        if world is not None and world.groups is not None and self.membership.client is None:
            world.groups.leave()
        self._leftovers.end()
        self.replica_check.close()
        if self.membership.client is not None:
            self.membership.client.close()
