"""How a world of workers begins, fails, begins again and ends. Pure.

Every doubt ends in a restart from the last checkpoint, a bounded number of times without progress between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import roll_back
from . import workers as fleets
from .events import Exit, Hurry, Kill, Message, Say, Send, WorkerExit
from .workers import Mode, Worker, World

if TYPE_CHECKING:
    from .machine import Machine

WORLD_DID_NOT_FORM = 75
"""A worker's exit code (EX_TEMPFAIL) when its process group did not come about in time."""
KILLED = 128
CULPRIT_S = 1.0


class Lives:
    """The part of the machine that counts failures and decides what follows them."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.worked = False
        """Some world has trained: an error is no longer one that would only come again."""
        self.stop_code: int | None = None
        """The job is to end with this code as soon as a checkpoint is written."""
        self._owed_s: float | None = None
        """A checkpoint is to be written in this time as soon as there is something to write."""
        self._failures = 0
        self._failed_at: int | None = None
        self._broken = ""
        self._reached: Message | None = None
        """The training's counters at its end."""

    # --- beginning --------------------------------------------------------------------------------------------

    def form_if_ready(self) -> None:
        """Send the first world of a generation once all its workers are warm."""
        machine = self._machine
        here = [key for key in fleets.keys(machine.pieces) if machine.fleet.available(key)]
        workers = [worker for worker in machine.fleet.on(here) if not worker.doomed]
        if machine.mode is not Mode.STARTING or machine.nodes.awaited or not workers:
            return
        if not all(worker.ready or worker.exited for worker in workers):
            return
        if any(worker.exited for worker in workers):
            self.finish_if_over()
            return
        machine.timers.pop("agents", None)
        source = "fresh" if machine.saved_step is None else "checkpoint"
        names = fleets.ranked(workers, machine.pieces)
        spare = [worker for worker in workers if worker.name not in names]
        if spare:
            machine.do(Say(f"{len(workers)} workers, {workers[0].unit} to a replica: {len(names)} of them train"))
            machine.kill(spare)
        if not names:
            self.end(1)
            return
        machine.world = World(machine.next_generation(), names, machine.batch, source)
        machine.mode = Mode.FORMING
        machine.send_world(machine.world, [])

    def restart(self, why: str, code: int) -> None:
        """Kill what is left and begin a new generation from the last checkpoint; give up after too many failures."""
        machine = self._machine
        if machine.mode in (Mode.RESTARTING, Mode.ENDED):
            return
        machine.resizing.fail(why)
        if machine.mode in (Mode.RESTARTING, Mode.ENDED):  # undoing an agreed resize restarts by itself
            return
        saved = machine.saved_step
        progressed = saved is not None and (self._failed_at is None or saved > self._failed_at)
        self._failures = 1 if progressed else self._failures + 1
        self._failed_at = saved if saved is not None else -1
        if self.stop_code is not None:
            self.end(self.stop_code)
        elif self._failures >= machine.limits.failures:
            machine.do(Say(f"{why}; {self._failures} failures without progress, giving up"))
            self.end(code)
        else:
            origin = f"the checkpoint of step {saved}" if saved is not None else "the beginning"
            machine.do(Say(f"{why}; starting again from {origin}"))
            self._begin_again()

    def again(self, why: str, code: int) -> None:
        """A failure while starting, or starting again: it counts like any other."""
        self._machine.mode = Mode.STARTING
        self.restart(why, code)

    def _begin_again(self) -> None:
        machine = self._machine
        machine.mode = Mode.RESTARTING
        machine.world = None
        for name in ("checkpoint", "culprit", roll_back.TIMER):
            machine.timers.pop(name, None)
        for worker in [worker for worker in machine.fleet.workers.values() if worker.exited]:
            del machine.fleet.workers[worker.name]
        machine.kill(list(machine.fleet.workers.values()))
        machine.nodes.relaunch_batch_host()
        machine.nodes.leave_out_lost()
        self.respawn_if_dead()

    def respawn_if_dead(self) -> None:
        """Once the old workers are gone and the batch host is there, start new ones everywhere."""
        machine = self._machine
        waits = machine.nodes.awaited or not machine.fleet.available(machine.batch_host)
        if machine.mode is not Mode.RESTARTING or waits:
            return
        inside = set(fleets.keys(machine.pieces))
        if any(worker.agent in inside for worker in machine.fleet.workers.values()):
            return
        machine.mode = Mode.STARTING
        machine.spawn_on([key for key in fleets.keys(machine.pieces) if machine.fleet.available(key)])

    # --- a worker's end ---------------------------------------------------------------------------------------

    def exited(self, event: WorkerExit) -> None:
        """A worker process has ended: as it was to, or not."""
        machine = self._machine
        worker = machine.fleet.workers.get(event.worker)
        if worker is None:
            return
        worker.exited = True
        machine.timers.pop(f"blind {event.worker}", None)
        if worker.doomed:
            del machine.fleet.workers[event.worker]
            if not any(other.doomed for other in machine.fleet.on([worker.agent])):
                machine.timers.pop(f"kill {worker.agent[0]} {worker.agent[1]}", None)
            self.respawn_if_dead()
        elif machine.resizing.owns(worker):
            machine.resizing.returning.joiner_lost(f"worker {event.worker} ended before its first step ({_how(event)})")
        elif machine.resizing.leaves(worker) and (event.code == 0 or worker.quiesced):
            machine.resizing.returning.left(worker)
        elif event.code == 0 and event.signal == 0:
            self.training_over()
        else:
            self._failed(worker, event)

    def _failed(self, worker: Worker, event: WorkerExit) -> None:
        machine = self._machine
        code = KILLED + event.signal if event.signal else event.code
        why = f"worker {worker.name} {_how(event)}"
        if worker.error:
            why += f": {worker.error}"
        for line in event.tail:
            machine.do(Say(f"  {worker.name}| {line}"))
        if code == WORLD_DID_NOT_FORM:
            # Perhaps it only noticed that another one died, as others do; that one's end says more, and is on its way.
            if "culprit" not in machine.timers:
                self._broken = why
                machine.timers["culprit"] = machine.now + CULPRIT_S
            return
        if event.signal == 0 and (not event.raised or worker.finished or not self.worked):
            # sys.exit(n) is the script's own decision, and an error before or after the training would only come again.
            machine.do(Say(why))
            self.end(code)
        else:
            self.restart(why, code)

    def no_culprit(self) -> None:
        """A world broke, and nobody else's end has explained it."""
        self.restart(self._broken, WORLD_DID_NOT_FORM)

    def line_lost(self, name: str) -> None:
        """A worker that can no longer be told anything has to die, unless it is about to anyway."""
        machine = self._machine
        worker = machine.fleet.workers.get(name)
        if worker is not None and not worker.exited and not worker.done and not worker.quiesced:
            machine.timers.setdefault(f"blind {name}", machine.now + machine.limits.kill_s)

    def kill_blind(self, name: str) -> None:
        """Its time is over."""
        worker = self._machine.fleet.workers.get(name)
        if worker is not None and not worker.exited and not worker.doomed:
            self._machine.do(Kill(worker.name, worker.agent))

    # --- the end ----------------------------------------------------------------------------------------------

    def training_over(self, reached: Message | None = None) -> None:
        """A worker has finished its loop, or its script: the world can change no more."""
        machine = self._machine
        self._reached = reached or self._reached
        if machine.mode in (Mode.RUNNING, Mode.FORMING, Mode.STARTING):
            machine.resizing.over()
            if machine.mode is not Mode.STARTING:
                machine.mode = Mode.FINISHING
        self.finish_if_over()

    def finish_if_over(self) -> None:
        """End the job when nobody is left who could go on."""
        machine = self._machine
        rest = [worker for worker in machine.fleet.workers.values() if not worker.exited and not worker.doomed]
        if not rest and not machine.nodes.awaited:
            self.end(0)
        elif machine.mode is Mode.STARTING and not machine.nodes.awaited and all(worker.ready for worker in rest):
            machine.do(Say("some workers ended before the training began while others wait for them"))
            self.end(1)

    def hurry(self, event: Hurry) -> None:
        """Checkpoint at once, or once there is something to write.

        With `stop` a second call, or the deadline, ends the job without it.
        """
        machine, active = self._machine, self._machine.resizing.active
        twice = self.stop_code is not None and event.stop
        machine.ending = True
        if active is None or not active.agreed:
            machine.resizing.fail("the job is ending", phase="withdrawn")
        if event.stop:
            self.stop_code = event.code
        if event.stop and (twice or machine.mode is not Mode.RUNNING):
            self.end(event.code)
        elif machine.mode is Mode.RUNNING:
            self._save_now(event.deadline_s)
            if event.stop:
                machine.timers["stop"] = machine.now + event.deadline_s
        else:
            self._owed_s = event.deadline_s

    def trains(self) -> None:
        """A world has begun to train: it owes the checkpoint that was asked for when there was none."""
        owed, self._owed_s = self._owed_s, None
        if owed is not None:
            self._save_now(owed)

    def _save_now(self, deadline_s: float) -> None:
        machine = self._machine
        machine.do(Say("the job is about to end: writing a checkpoint"))
        for worker in machine.members():  # a world just agreed on has its rank 0 among them
            machine.do(Send(worker.name, {"type": "hurry", "deadline_s": deadline_s}))

    def saved(self) -> None:
        """A checkpoint is on disk."""
        if self.stop_code is not None:
            self._machine.do(Say(f"checkpoint of step {self._machine.saved_step} written, ending"))
            self.end(self.stop_code)

    def stop_now(self) -> None:
        """The time for the last checkpoint is over."""
        if self.stop_code is not None:
            self._machine.do(Say("no checkpoint in the time left, ending"))
            self.end(self.stop_code)

    def end(self, code: int) -> None:
        """End the job with this exit code."""
        machine = self._machine
        machine.mode = Mode.ENDED
        machine.resizing.fail("the job is ending", phase="withdrawn")
        machine.exit_code = code
        machine.timers.clear()
        machine.kill(list(machine.fleet.workers.values()))
        machine.timers.clear()
        machine.nodes.quit(list(machine.fleet.agents))
        machine.tell(0, "finished", f"exit code {code}", self._reached, exit_code=code)
        machine.do(Exit(code))


def _how(event: WorkerExit) -> str:
    if event.signal:
        return f"was killed by signal {event.signal}"
    if event.code == WORLD_DID_NOT_FORM:
        return "could not form its world"
    return f"exited with code {event.code}"
