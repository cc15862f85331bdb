"""How a world of workers begins, fails and begins again. Pure.

Every doubt ends in a restart from the last checkpoint, a bounded number of times without progress between them.
"""

from slurm_elastic.protocol.errors import TrainingError

from ...allocation.pieces.actions import Print, QuitAgent
from ...allocation.pieces.events import AgentsTimer, BaseGone, BeginWaitingResize, NodeLeft, NodesSettled, PiecesGone
from ...allocation.pieces.holding import Handlers, Part
from ...allocation.pieces.table import NodeKey, nodes_of
from ...control.worker_client import EXIT_LOST
from . import events
from .actions import Kill
from .context import Mode, SupervisorContext, Worker, figures, number, ranked
from .events import CheckpointTimer, CulpritTimer, DisconnectedTimer, KillTimer, LastCheckpointTimer, RollBackTimer

KILLED = 128
SIGKILLED = KILLED + 9
WITHOUT_LOOP = (
    "the script has ended without a loop of the job, so that each worker ran it for itself; accepted: "
    "job = elastic.join(...), and then `for epoch in job.epochs(n):` or `while job.next():`"
)
LEFT_ALONE = (
    "worker {} has left the job's loop, and others went on: what ends a training has to be the same on each worker, "
    "also on one that joins or starts again; accepted: job.global_step, job.epoch, or what job.keep() was given"
)
CULPRIT_S = 1.0
REFUSED = f"{TrainingError.__qualname__} at "
"""What the origin of such an error begins with."""


class Restarts(Part[SupervisorContext]):
    """The part of the machine that counts failures and decides what follows them."""

    def __init__(self, context: SupervisorContext) -> None:
        super().__init__(context)
        self._failures = 0
        self._failed_at: int | None = None
        """The newest checkpoint's step at the last failure; -1: there was none."""
        self._error: str | None = None
        """What ended the script at the last failure, and where."""
        self._without_loop = False
        """That is said."""
        self._differed = False
        """Replicas were found to differ once."""
        self._broken = ""
        """Why a world broke, while the end that explains it is awaited."""

    def handlers(self) -> Handlers:
        return {
            NodesSettled: lambda event: self._nodes_settled(),
            NodeLeft: self._node_left,
            PiecesGone: self._pieces_gone,
            BaseGone: lambda event: self._fail_start(event.why, event.code),
            KillTimer: self._not_dead,
            events.WorkerReady: lambda event: self._form_if_ready(),
            events.FirstStepDone: self._first_step_done,
            events.Restart: self._restart,
            events.ReplicasDiffer: self._differ,
            events.WorkerExit: self._exited,
            CulpritTimer: lambda event: self._world_broke(),
            events.WorkerLost: self._disconnected,
            events.WorkerFailed: self._must_end,
            DisconnectedTimer: self._kill_disconnected,
        }

    # --- beginning --------------------------------------------------------------------------------------------

    def _nodes_settled(self) -> None:
        self._respawn_if_dead()
        self._form_if_ready()

    def _form_if_ready(self) -> None:
        """Send the first world of a generation once all its workers are warm."""
        context = self._context
        here = [key for key in nodes_of(context.pieces) if context.available(key)]
        workers = [worker for worker in context.workers_on(here) if not worker.ending]
        if context.mode is not Mode.STARTING or context.awaited or not workers:
            return
        if CulpritTimer() in context.timers:  # a worker's end is not explained yet: a restart follows
            return
        if not all(worker.ready or worker.exited for worker in workers):
            return
        if any(worker.exited for worker in workers):
            context.emit(events.EndIfOver())
            return
        context.timers.cancel(AgentsTimer())
        names = ranked(workers, context.pieces)
        spare = [worker for worker in workers if worker.name not in names]
        if spare:
            context.do(Print(f"{len(workers)} workers, {workers[0].unit} to a replica: {len(names)} of them train"))
            context.kill(spare)
        if not names:
            context.end(1)
            return
        source = "fresh" if context.saved_step is None else "checkpoint"
        context.world = context.announce(names, context.batch, source)
        context.mode = Mode.FORMING

    def _first_step_done(self, event: events.FirstStepDone) -> None:
        """The world that was formed from the beginning or a checkpoint trains."""
        context, world = self._context, self._context.world
        if context.mode is not Mode.FORMING or world is None or event.generation != world.generation:
            return
        began_at = int(number(event.message.get("step"))) - 1
        if 0 <= began_at < (context.saved_step or 0):  # newer ones are damaged: none is a way back
            context.saved_step = self._failed_at = began_at
        context.enter(world)
        context.retain()
        change, context.restart = context.restart, None
        context.tell(change.id if change is not None else 0, "running", **figures(event.message))
        where = ", ".join(f"{len(piece.nodes)} x {piece.gpus_per_node} of {piece.kind}" for piece in context.pieces)
        text = f"generation {world.generation}: {len(world.members)} workers ({where}), from {world.source}"
        context.do(Print(text))
        context.emit(BeginWaitingResize())

    # --- beginning again --------------------------------------------------------------------------------------

    def _restart(self, event: events.Restart) -> None:
        """Kill what is left and begin a new generation from the last checkpoint; give up after too many failures."""
        context = self._context
        if context.mode in (Mode.RESTARTING, Mode.ENDED):
            return
        if context.change is not None:  # undone first; if it was agreed on, that restarts already
            context.undo(event.why)
            context.emit(event)
            return
        same_error = self._count(event)
        if context.stop_code is not None:
            if not self._last_state_comes():
                context.end(context.stop_code)
        elif self._failures >= context.limits.failures:
            context.do(Print(f"{event.why}; {self._failures} failures without progress, giving up"))
            context.end(event.code)
        elif same_error:
            context.do(Print(f"{event.why}; the same error as before, {event.error}, without progress, giving up"))
            context.end(event.code)
        else:
            context.do(Print(f"{event.why}; starting again from {context.origin()}"))
            self._begin_again()

    def _count(self, event: events.Restart) -> bool:
        """Count this failure; whether the script has raised the same error as the time before, without progress."""
        saved = -1 if (step := self._context.saved_step) is None else step
        steps = 1 if event.error is None else self._context.limits.progress_steps
        progressed = self._failed_at is None or saved >= self._failed_at + steps
        same_error = not progressed and bool(event.error) and event.error == self._error
        self._failures = 1 if progressed else self._failures + 1
        self._failed_at, self._error = saved, event.error
        return same_error

    def _last_state_comes(self) -> bool:
        """Whether rank 0, which writes what it has without the others, is still there and has time for it."""
        context = self._context
        first = context.workers.get(context.world.members[0]) if context.world is not None else None
        return first is not None and not (first.exited or first.ending) and LastCheckpointTimer() in context.timers

    def _begin_again(self) -> None:
        context = self._context
        context.mode = Mode.RESTARTING
        context.world = None
        context.timers.cancel(CheckpointTimer())
        context.timers.cancel(CulpritTimer())
        context.timers.cancel_every(RollBackTimer)
        for worker in [worker for worker in context.workers.values() if worker.exited]:
            del context.workers[worker.name]
        context.kill(context.workers.values())
        if (change := context.restart) is not None:
            context.batch = change.batch or context.batch
            context.use_without(set(nodes_of(context.pieces)).difference(nodes_of(change.keep)))
        context.do_without_lost()
        context.called_off.clear()
        context.emit(events.Restarting())
        self._respawn_if_dead()

    def _respawn_if_dead(self) -> None:
        """Once the old workers are gone and the batch host is there, start new ones everywhere."""
        context = self._context
        waits = context.awaited or not context.available(context.batch_host)
        if context.mode is not Mode.RESTARTING or waits:
            return
        keys = nodes_of(context.pieces)
        if not context.workers_on(keys):
            context.mode = Mode.STARTING
            context.spawn_on(key for key in keys if context.available(key))

    def _differ(self, event: events.ReplicasDiffer) -> None:
        """Go back to the last checkpoint, in which all ranks agreed; what comes again is no accident."""
        context = self._context
        if context.mode in (Mode.RESTARTING, Mode.ENDED):
            return
        if self._differed:
            context.do(Print(f"{event.why}; for the second time, giving up"))
            context.end(1)
        else:
            self._differed = True
            self._restart(events.Restart(event.why, EXIT_LOST))

    # --- a node's end -----------------------------------------------------------------------------------------

    def _node_left(self, event: NodeLeft) -> None:
        self._context.forget_workers(event.node)
        self._nodes_settled()

    def _pieces_gone(self, event: PiecesGone) -> None:
        for key in sorted(event.nodes) if not event.joins else ():
            self._lost(key, event.why)

    def _lost(self, key: NodeKey, why: str) -> None:
        """A node that trains is gone, and its workers with it. Who was about to leave is not missed."""
        context, gone = self._context, self._context.forget_workers(key)
        if gone and all(worker.quiesced and context.leaves(worker) for worker in gone):
            context.emit(events.LeaverGone())
        elif context.mode is Mode.FINISHING and all(worker.exited or worker.done for worker in gone):
            context.emit(events.EndIfOver())
        elif context.mode is not Mode.RESTARTING:
            self._restart(events.Restart(why, SIGKILLED))
        elif key == context.batch_host:
            self._fail_start(why, SIGKILLED)
        else:
            context.leave_out_lost()
            self._nodes_settled()

    def _fail_start(self, why: str, code: int) -> None:
        """The workers cannot be started as things are; also while starting again this counts like any other failure."""
        self._context.mode = Mode.STARTING
        self._restart(events.Restart(why, code))

    def _not_dead(self, event: KillTimer) -> None:
        """A node where killed workers are not dead in time is left out."""
        context, key = self._context, event.of
        if any(worker.ending and not worker.exited for worker in context.workers_on([key])):
            context.do(QuitAgent(key))
            context.do(Print(f"the workers on {key[1]} do not die; going on without the node"))
            context.lose(key)

    # --- a worker's end ---------------------------------------------------------------------------------------

    def _exited(self, event: events.WorkerExit) -> None:
        """A worker process has ended: as it was to, or not."""
        context = self._context
        worker = context.workers.get(event.worker)
        if worker is None:
            return
        worker.exited = True
        context.timers.cancel(DisconnectedTimer(event.worker))
        if worker.ending:
            del context.workers[event.worker]
            if not any(other.ending for other in context.workers_on([worker.agent])):
                context.timers.cancel(KillTimer(worker.agent))
            self._respawn_if_dead()
        elif context.joins(worker.agent):
            why = worker.error or (last_line(event.tail) if event.raised else "")
            said = f": {why}" if why else ""
            context.emit(events.JoinerLost(f"worker {event.worker} ended before its first step ({_how(event)}){said}"))
        elif context.leaves(worker) and (event.code == 0 or worker.quiesced):
            worker.quiesced = True
            context.emit(events.LeaverGone())
        elif event.code == 0 and event.signal == 0:
            self._say_without_loop(worker)
            context.emit(events.TrainingOver({}))
        else:
            self._failed(worker, event)

    def _world_broke(self) -> None:
        """Nobody's end explains it, but for one that has left the loop: what follows would be another training."""
        workers = list(self._context.workers.values())
        left = next((worker.name for worker in workers if worker.done and not worker.finished), "")
        if left and any(worker.exited and not worker.done for worker in workers):
            self._context.do(Print(LEFT_ALONE.format(left)))
            self._context.end(1)
        else:
            self._restart(events.Restart(self._broken, EXIT_LOST))

    def _say_without_loop(self, worker: Worker) -> None:
        """A script that has ended well and never came to a loop: said once."""
        if not (worker.ready or self._without_loop or self._context.has_trained):
            self._without_loop = True
            self._context.do(Print(WITHOUT_LOOP))

    def _failed(self, worker: Worker, event: events.WorkerExit) -> None:
        context = self._context
        code = KILLED + event.signal if event.signal else event.code
        why = f"worker {worker.name} {_how(event)}"
        if worker.error and (context.change is not None or not event.raised):  # else its last lines say it
            why += f": {worker.error}"
        followed = worker.agent == context.batch_host and worker.index == 0
        shown = event.raised and (followed or (event.error and event.error == self._error))
        for line in () if shown else event.tail:
            context.do(Print(f"  {worker.name}| {line}"))
        if code == EXIT_LOST:
            # Perhaps it only noticed that another one died, as others do; that one's end says more, and is on its way.
            if CulpritTimer() not in context.timers:
                self._broken = why
                context.timers.set(CulpritTimer(), context.now + CULPRIT_S)
            return
        refused = event.error.startswith(REFUSED)
        if event.signal == 0 and (not event.raised or worker.finished or refused or not context.has_trained):
            # sys.exit(n) is the script's own decision. An error before or after the training would only come again, as
            # does what the shim does not accept of a script.
            context.do(Print(why))
            context.end(code)
        else:
            self._restart(events.Restart(why, code, event.error))

    def _disconnected(self, event: events.WorkerLost) -> None:
        """A worker that nothing can be sent to any more has to end, unless it is about to anyway."""
        worker = self._context.workers.get(event.worker)
        if worker is not None and not worker.quiesced:
            self._must_end(event)

    def _must_end(self, event: events.WorkerLost | events.WorkerFailed) -> None:
        """Others wait for it, and see that it is gone only when its process is."""
        context, worker, timer = self._context, self._context.workers.get(event.worker), DisconnectedTimer(event.worker)
        if worker is not None and not (worker.exited or worker.done) and timer not in context.timers:
            context.timers.set(timer, context.now + context.limits.kill_s)

    def _kill_disconnected(self, event: DisconnectedTimer) -> None:
        worker = self._context.workers.get(event.of)
        if worker is not None and not worker.exited and not worker.ending:
            self._context.do(Kill(worker.name, worker.agent))


def last_line(tail: tuple[str, ...]) -> str:
    """What a traceback ends with: the error and its sentence."""
    line = next((line.strip() for line in reversed(tail) if line.strip()), "")
    return line.removeprefix("selastic: ").removeprefix("slurm_elastic.protocol.errors.")[:500]


def _how(event: events.WorkerExit) -> str:
    if event.signal:
        return f"was killed by signal {event.signal}"
    if event.code == EXIT_LOST:
        return "could not form its world"
    return f"exited with code {event.code}"
