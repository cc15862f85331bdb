"""From one world into the next, and back into the old one where the next does not come about.

Until every rank has the gradients of the new world's first step nothing is final: the members of the old world go on
holding their state, buffers and position of that moment. When a communication fails before (a joiner has died, or
does not answer in time) they form their old world again, in their processes, and do that step again; nothing is lost
but time. A worker that leaves waits for that moment in its process. Between two passes over the data the script's own
code comes before the next step, so a change that somebody joins is put off until a step has been done. Limits: a rank
of the old world that dies, and one that dies in the instant of the last agreement, end in a restart from the state
saved; so does, where passes are one step long, one that dies in that step. Over NCCL a step that hangs is ended by
its watchdog, with the process. Where a framework steps the optimizer, only the time before the first step is covered.

A change of the batch alone leaves the group, and all that hangs on it, as it is: nothing of it can fail that a step
cannot.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from slurm_elastic.protocol.errors import OtherRankFailed

from ..checkpoint.files import Found
from ..checkpoint.snapshots import Snapshots
from ..control.worker_client import ComingWorld
from ..data.sampling import Slicing, own_of
from ..parallel.strategy import Strategy
from ..state.kept_parts import State
from ..state.progress import TrainingProgress
from ..state.trackers import Trackers
from ..world import objects, state_transfer
from ..world import process_group as worlds
from ..world.process_group import World
from ..world.rendezvous import LeftWorld, Membership
from ..world.state_transfer import HeldParts
from .guards.device_watch import DeviceWatch
from .guards.replica_check import kind_of
from .last_state import LastState
from .learning_rate import Tuning
from .reporting import Reporting
from .speeds import Speeds


class SwitchingSession(Protocol):
    """What a switch needs of the training's session."""

    membership: Membership
    tuning: Tuning
    state: State
    reporting: Reporting
    snapshots: Snapshots
    trackers: Trackers
    device: torch.device

    @property
    def batch(self) -> int: ...

    def slicing(self) -> Slicing: ...

    speeds: Speeds

    def speed(self) -> int: ...

    def world(self) -> World: ...

    def model(self) -> Strategy: ...

    def forget_votes(self) -> None: ...

    def forget_measured(self) -> None: ...

    def entered(self, kinds: set[int]) -> None: ...

    def take_batch(self) -> None: ...

    def note(self, line: dict[str, Any]) -> None: ...

    def log(self, *words: object) -> None: ...

    last_state: LastState


@dataclasses.dataclass(frozen=True)
class StateBefore:
    """What a first step changes before it is final, as it was."""

    progress: TrainingProgress
    buffers: list[tuple[str, torch.Tensor]]
    extra: list[tuple[str, Any]]
    """What modules keep besides, and give by get_extra_state()."""
    kept: HeldParts | None
    """Of a model that is cut up: this rank's parts."""

    @classmethod
    def of(cls, progress: TrainingProgress, module: nn.Module, kept: HeldParts | None) -> StateBefore:
        buffers = [(name, buffer.detach().clone()) for name, buffer in module.named_buffers()]
        keeps = [(n, m) for n, m in module.named_modules() if type(m).get_extra_state is not nn.Module.get_extra_state]
        extra = [(name, copy.deepcopy(part.get_extra_state())) for name, part in keeps]
        return cls(dataclasses.replace(progress), buffers, extra, kept)

    def put_back(self, module: nn.Module) -> None:
        now = dict(module.named_buffers())
        with torch.no_grad():
            for name, buffer in self.buffers:
                now[name].copy_(buffer)
        for name, state in self.extra:
            module.get_submodule(name).set_extra_state(state)


class WorldSwitch:
    """See the module. One per job."""

    def __init__(self, session: SwitchingSession) -> None:
        self._session = session
        self._left: LeftWorld | None = None
        self._before: StateBefore | None = None
        self.watch: DeviceWatch | None = None
        """Of the world that the training is in."""
        self._put_off = 0
        self._entered_at = -1
        """The step that the world began at."""
        self._computed = 0
        """Samples that this rank computed at a time in the world before."""
        self.has_passes = True
        """Whether the training goes over a dataset again and again, with code of the script between the passes."""
        self.repeats_steps = False
        """Whether a step that failed can be done again: where the loop is the job's own."""

    @property
    def on_trial(self) -> bool:
        """The world's first step is awaited, and the old one can still go on."""
        return self.watch is not None and self.watch.on_trial

    # -- into a world ----------------------------------------------------------------------------------------------

    def comes_now(self, coming: ComingWorld) -> bool:
        """Whether to make a change that has been agreed on, or to wait for the next step's agreement: every rank says
        the same. No change is put off twice: a pass may be one step long."""
        if not self._between_passes() or coming.size <= self._session.world().size:
            return True
        put_off, self._put_off = self._put_off, coming.generation
        return put_off == coming.generation

    def _between_passes(self) -> bool:
        progress = self._session.state.progress
        return self.has_passes and progress.cursor >= progress.pass_samples

    def switch(self, coming: ComingWorld) -> None:
        """Change worlds. What a script holds of the last step (loss, outputs) may stay: its graph has been used up."""
        session, progress = self._session, self._session.state.progress
        model, old = session.model(), session.world()
        session.reporting.leaving(old, session.batch)
        if self.watch is not None:
            with session.membership.ending_when_broken():
                self.watch.done()  # its last step: what is copied waits for that, and is of no use if that hangs
        session.trackers.leaving(stays=coming.rank == 0 and not coming.leave)
        session.snapshots.begin(rank_0=coming.rank == 0 and not coming.leave)
        self._computed = self._micro_batch()
        before = StateBefore.of(
            progress, model.module, HeldParts.of(session.state.capture()) if model.sharded else None
        )
        position = self._position()

        def rescue(new_ranks: list[int]) -> None:
            if before.kept is not None:
                state_transfer.rescue(before.kept, old, new_ranks, coming.size, coming.forming_s)

        with session.membership.ending_when_broken():
            change = session.membership.leave(coming, position, rescue, model.disconnect)
        session.forget_votes()
        if change is None:
            session.snapshots.hold()
            self._went_on(coming)
            return
        left, new = change
        self._left, self._before = left, before
        if new is None:
            self._return(session.membership.wait_dismissed(left), 2 * coming.forming_s + coming.first_step_s)
            return
        problem = session.membership.problem_in(lambda: self.connect(has_state=True, kept=before.kept))
        session.snapshots.hold()
        if problem:
            self._return(problem, 2 * coming.forming_s)
            return
        session.reporting.resumed()
        session.note({"resize": [old.size, session.world().size], "step": progress.step})

    def change_batch(self, coming: ComingWorld) -> None:
        """Go on with another batch in the group as it is: no state moves, and every vote under way still counts."""
        session = self._session
        old, position = session.world(), self._position()
        session.reporting.leaving(old, session.batch)
        if not session.membership.take_batch(coming, position):
            session.reporting.stayed()
            return
        session.forget_measured()
        session.take_batch()
        session.reporting.resumed()
        session.note({"resize": [old.size, old.size], "step": session.state.progress.step})

    def _position(self) -> dict[str, int]:
        progress = self._session.state.progress
        return {"step": progress.step, "samples": progress.samples}

    def connect(
        self,
        has_state: bool,
        kept: HeldParts | None = None,
        captured: dict[str, Any] | None = None,
        in_parts: Found | None = None,
    ) -> None:
        """In a new world: put the model together, and hand state to those without.

        kept: the parts that this rank held in an older world. captured: a checkpoint, on rank 0 of a first world.
        in_parts: one of which every rank reads what it needs by itself.
        """
        session = self._session
        world, model, state = session.world(), session.model(), session.state
        if self.watch is not None:
            self.watch.end()
        self.watch = DeviceWatch(world, session.reporting.meter.median_step, self._lost())
        own = state.progress.step if has_state else -1
        begins = has_state and kept is None and captured is None and in_parts is None
        known = (own, session.tuning.fitted, int(begins), kind_of(session.device), session.speed())
        steps, fitted, begun, kinds, speeds = zip(*worlds.gather(world, *known), strict=True)
        session.speeds.entered(speeds, world.unit, max(steps))
        session.tuning.agreed = min((size for size in fitted if size), default=0)
        if len({step for step in steps if step >= 0}) != 1:
            raise OtherRankFailed(f"world {world.generation} has ranks at steps {steps}; all have to be at one step")
        holders = [rank for rank, step in enumerate(steps) if step >= 0]
        seconds, fresh = session.membership.forming_s, kept is None
        if model.sharded and has_state and kept is None and in_parts is None:
            kept = HeldParts.of(captured or state.capture_values())
        if len(holders) < world.size:  # groups are formed of what is trained, on all ranks alike
            state.freeze(objects.share(state.frozen(), world.group, holders[0]))
        model.connect(world)
        model.initialize(session.tuning.seed, parameters=any(begun))
        if in_parts is not None:
            state.restore(session.snapshots.read_parts(in_parts, world))
        elif model.sharded:
            state_transfer.fill(state, world, kept, fresh, holders, seconds)
        else:
            if captured is not None:
                state.restore(captured)
            state_transfer.copy_to_joiners(state, world, holders, session.device, seconds)
        self._entered_at = state.progress.step
        worlds.gather(world, 0)  # nobody computes while another one may still find that it cannot
        survivor = session.membership.source == "survivor"
        if self.watch is None:
            raise AssertionError("a world that nobody watches")
        self.watch.on_trial = self.repeats_steps and survivor and not self._between_passes()
        if self.on_trial:
            worlds.bound(world, session.membership.first_step_s)
        else:
            self._final()
        session.entered(set(kinds))

    # -- the first step --------------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Before the first step of a world is taken: whether all ranks have got this far. False: the old one goes on,
        and the step is void. Every rank calls this."""
        if not self.on_trial:
            return True
        session, watch = self._session, self.watch

        def all_done() -> None:
            if watch is not None:
                watch.done()  # gradients are there: what is queued behind a lost rank is no step
            worlds.gather(session.world(), 0)

        problem = session.membership.problem_in(all_done)
        if problem:
            self._return(problem, session.membership.first_step_s)
            return False
        self._final()
        return True

    def _lost(self) -> Callable[[], str]:
        """What tells, on any thread, why the world that forms now has failed before its first step."""
        membership, left = self._session.membership, self._left
        client, generation = membership.client, membership.world.generation if membership.world else 0
        until = time.monotonic() + membership.first_step_s
        back = left.gate(0.0) if left is not None else None

        def lost() -> str:
            if client is not None and client.called_off(generation):
                return f"world {generation}: a rank is lost before its first step"
            with contextlib.suppress(RuntimeError):  # the old world's store is gone with its rank 0
                if back is not None and back.begun():
                    return f"world {generation}: another rank has gone back to the old world"
            if time.monotonic() > until:
                return f"world {generation}: its first step is not done within {membership.first_step_s:g} s"
            return ""

        return lost

    def _final(self) -> None:
        if self.watch is not None:
            self.watch.accept()
        self._left = self._before = None
        worlds.bound(self._session.world())

    def broke(self, error: RuntimeError) -> Callable[[], None] | None:
        """What to do about an error of a pass through the model, once the error itself and all that it holds is gone;
        None: raise it. A collective that failed in a world that is final ends this process here."""
        membership = self._session.membership
        full = self.on_trial and isinstance(error, torch.cuda.OutOfMemoryError)
        problem = membership.what_broke(error)
        if full:
            problem = f"world {self._session.world().generation} does not fit: {str(error).splitlines()[0]}"
        if not problem:
            return None
        if self._left is None and not full:
            self._session.last_state.write_broken()
            membership.fail(self._session.world().generation, problem)

        def undo() -> None:
            if full:
                self._no_room(problem)
            self._return(problem, membership.first_step_s)
            self._session.model().void, self._session.model().full = True, full

        return undo

    def _no_room(self, problem: str) -> None:
        """A GPU has too little memory for this world's first step. The next world computes less at a time; where this
        one computed no more than the one before, no such world is to come again."""
        session, tried = self._session, self._micro_batch()
        again = tried > self._computed > 0
        if again:
            session.tuning.fitted = max(self._computed, tried // 2)
        self._say_no_room(problem, again)

    def too_large(self, problem: str) -> None:
        """A GPU's lack of memory ends the script. In the first step of a world, from which there is no way back in this
        process, all start again at the old size, and no such world is to come again."""
        if self._session.membership.source == "survivor" and self._session.state.progress.step == self._entered_at:
            self._say_no_room(problem, again=False)

    def _say_no_room(self, problem: str, again: bool) -> None:
        session = self._session
        if session.membership.client is not None:
            said = {"generation": session.world().generation, "error": problem, "again": again}
            session.membership.client.send({"type": "no_room", **said})

    def _micro_batch(self) -> int:
        """The most samples that this rank computes at a time in the world it is in."""
        slicing = self._session.slicing()
        own = len(own_of(slicing.batch, slicing))
        return min(slicing.micro_batch or own, own)

    # -- and back --------------------------------------------------------------------------------------------------

    def _return(self, problem: str, patience_s: float) -> None:
        """Go on in the old world; where there is no way back, leave, and have the supervisor start another."""
        session, left, before = self._session, self._left, self._before
        membership, model = session.membership, session.model()
        if left is None or before is None:
            membership.fail(session.world().generation, problem)
        self._left = None
        if self.watch is not None:
            self.watch.end()
        model.disconnect()
        session.forget_votes()
        session.state.progress = before.progress

        def form_old() -> None:
            membership.back(left, patience_s)
            before.put_back(model.module)
            self.connect(has_state=True, kept=before.kept)

        again = membership.problem_in(form_old)
        if again:
            membership.fail(left.coming.generation, f"{problem}; the old world cannot be formed again: {again}")
        self._final()
        membership.stayed(left.coming, problem)
        session.note({"undone": left.coming.generation})
        self._went_on(left.coming)

    def _went_on(self, coming: ComingWorld) -> None:
        session = self._session
        session.trackers.entered(session.world().rank == 0, session.state.progress.step)
        session.log(f"world {coming.generation} did not form; training goes on with {session.world().size} workers")
        session.reporting.stayed()
