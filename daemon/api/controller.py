"""What the API asks of the running daemon: it takes registrations and phases, and gives resizes. Thread-safe.

Promise: a supervisor can change what is known of its own job only, and name only Slurm jobs of its own user.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.rows import REQUEUE, CheckpointRow, DecisionRow, ResizeRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.by_route import Health, ModelsInUse
from slurm_elastic.protocol.answers.history import PlanNote
from slurm_elastic.protocol.answers.record import read, redacted
from slurm_elastic.protocol.answers.site import Power, Queue
from slurm_elastic.protocol.codec import VERSION
from slurm_elastic.protocol.codes import EventKind, ResizeState
from slurm_elastic.protocol.errors import NotAllowed, NotFound
from slurm_elastic.protocol.messages import (
    ENDING,
    FINISHED,
    STALLED,
    STEPS_AGAIN,
    Grant,
    Happening,
    Piece,
    Rate,
    Registration,
    Resize,
)
from slurm_elastic.protocol.version import version

from ..capacity.constraints import left_out_until
from ..models.priors import program_of
from ..optimizer.models.prior import Prior
from ..planner import fixed_targets
from ..prediction.advice import Ground
from ..prediction.deadlines import told
from ..prediction.sizes import PredictionInputs, next_ends
from ..reports.common import Viewer
from ..rounds.job_registry import JobRegistry, held_pieces
from ..rounds.loop import Rounds
from ..rounds.waiters import Waiters
from ..slurm.model import Job
from ..slurm.snapshot_cache import SnapshotCache

log = logging.getLogger(__name__)

WITHDRAWAL_S = 60.0
"""How long a withdrawn resize is still given to the supervisor that took it."""
SKEW_S = 300.0
"""Times of a supervisor whose clock is further behind, or ahead at all, are replaced by the daemon's."""


class DaemonController:
    """What the API asks of store, rounds and Slurm. All but `wait_resize` are called from threads and may block."""

    def __init__(
        self,
        store: Store,
        jobs: SnapshotCache,
        rounds: Rounds,
        registry: JobRegistry,
        waiters: Waiters,
        wake: Callable[[], None],
        report_interval_s: float,
        clock: Callable[[], float] = steady_now,
    ) -> None:
        self.store, self.jobs, self.rounds, self.registry, self.waiters = store, jobs, rounds, registry, waiters
        self._wake, self._report_interval_s, self.clock = wake, report_interval_s, clock

    def owner(self, job_id: int, asker: int) -> tuple[int, str] | None:
        """uid and name of the job's user; None for a job that Slurm does not list. Raises TooOften: see
        SnapshotCache.find."""
        job = self.jobs.find(job_id, asker)
        return (job.uid, job.user) if job is not None else None

    def registered(self, job_id: int, registration: Registration) -> Grant:
        """Store what a supervisor trains on; answer whether its job is managed, or why not."""
        job = self.jobs.latest().jobs.get(job_id)
        if job is None:
            raise NotFound(f"Slurm knows no job {job_id} that has not ended")
        held = self._held(job, registration.pieces)
        self.registry.started(job_id)
        interval = self._report_interval_s
        if registration.request:
            self.registry.set_request(job_id, registration.request)
        roster = self.registry.sort(self.jobs.latest())
        refused = roster.unmanaged.get(job_id)
        if refused is not None:
            return Grant("", False, refused.detail, interval, refused.request)
        if job_id not in roster.elastic:
            sentence = "the job has no elastic request (--comment=elastic:gpus=MIN-MAX,batch=MIN-MAX)"
            if registration.request and not self.registry.takes_requests:
                sentence += "; one that is not in its comment does not count here, for the site's rules do not see it"
            return Grant("", False, sentence, interval)
        request = roster.elastic[job_id].request
        text = request.text()
        if bool(request.max_batch) == bool(registration.unit):
            accepted = "without batch= for selastic hold" if registration.unit else "with batch= for selastic run"
            return Grant("", False, f"the elastic request {text} is not for this; accepted: one {accepted}", interval)
        if self.store.jobs.get(job_id) is None:
            self.store.jobs.upsert(self.registry.managed_row(roster.elastic[job_id]))
        program = program_of(job.user, registration.program)
        self.store.programs.note(job_id, program, registration.pieces[0].gpu_type if registration.pieces else "")
        now = self.clock()
        if registration.refusal:
            self.not_understood(job_id, registration.refusal)
        else:
            names = "generation", "batch", "program", "version", "release"
            detail = {name: getattr(registration, name) for name in names}
            self.store.events.add(job_id, EventKind.REGISTERED, "supervisor", detail, now)
        pause, reason, number = self._after_requeue(job_id, now)
        self.store.allocations.note(
            *(job_id, registration.generation, registration.pieces, registration.batch, now, pause, reason, number),
            held=held,
            refusal=registration.refusal,
        )
        self.registry.registered(job_id)
        self.wake("registered")
        first, rounds = self.registry.reference(job_id), self.rounds
        return Grant(
            *("", True, "; ".join(told(self.store, self.basis, self.ground(), job_id, now)), interval, text),
            node_failure_s=rounds.costs.node_failure_s(job.partition),
            script=rounds.facts.started_as(job, first[0] if first else 0, rounds.settings),
            alone_after_s=rounds.settings.alone_after_s,
        )

    def not_understood(self, job_id: int, sentence: str) -> None:
        """What the job's supervisor said, or was told, is not understood: nothing is resized until it registers anew
        without a word of that. The first sentence stands."""
        now, use, resize = self.clock(), self.store.allocations.in_use(job_id), self.store.resizes.of(job_id)
        self.store.allocations.refuse(job_id, sentence)
        if resize is not None and _to_do(resize):
            detail = {"resize": resize.id, "state": ResizeState.FAILED, "detail": sentence}
            self.store.events.add(job_id, EventKind.of(ResizeState.FAILED), "selasticd", detail, now)
            self.store.resizes.advance(resize.id, ResizeState.FAILED, sentence, at=now)
        last = self.store.events.of(job_id, limit=1)
        if use.refusal if use else last and last[-1].kind == EventKind.NOT_UNDERSTOOD:
            return
        detail = {"detail": sentence, "version": VERSION, "release": version()}
        self.store.events.add(job_id, EventKind.NOT_UNDERSTOOD, "selasticd", detail, now)
        about = {"JOB": job_id, "RESIZE": resize.id if resize else 0}
        log.warning("job %d: %s; it is not resized", job_id, sentence, extra=about)

    def happened(self, job_id: int, said: Happening) -> None:
        """A resize (of this job: checked) has come further, or something else has happened. Twice is harmless."""
        now = self.clock()
        if said.what in (ResizeState.RUNNING, STALLED):
            said = replace(said, pause_s=min(said.pause_s, self._known_for_s(job_id, now)))
        at = said.at if now - SKEW_S < said.at <= now else now
        resize = self.store.resizes.get(said.resize) if said.resize else None
        held: tuple[Piece, ...] = ()
        if said.what == ResizeState.RUNNING and said.pieces:
            job = self.jobs.latest().jobs.get(job_id)
            held = self._held(job, said.pieces) if job is not None else ()
        if said.what == ResizeState.RUNNING:
            # The allocation before the resize: see Rounds._look.
            reason = resize.reason if resize else self._restart_reason(job_id)
            step, samples = (said.step - 1, said.samples) if said.step else (None, None)
            self.store.allocations.note(
                job_id, said.generation, said.pieces, said.batch, at, said.pause_s, reason, said.resize,
                step=step, samples=samples, held=held,
            )  # fmt: skip
            if step is not None and samples is not None:
                self.store.allocations.note_progress(job_id, said.generation, step, samples)
        elif said.what == FINISHED:
            if said.step:
                self.store.allocations.note_progress(job_id, said.generation, said.step, said.samples)
            self.store.allocations.clear_in_use(job_id, at)
            self.registry.finished(job_id, said.exit_code)
        elif said.what in (STALLED, STEPS_AGAIN):
            self.store.allocations.stall(job_id, at - said.pause_s if said.what == STALLED else 0.0)
        elif said.what == ENDING:
            self.registry.ends(job_id)
        self._note_reach(job_id, said, now)
        if resize is not None and said.what not in (FINISHED, STALLED, STEPS_AGAIN, ENDING):
            self.store.resizes.advance(said.resize, ResizeState(said.what), said.detail, at=now)
        self._record(job_id, said, now)
        if said.what in (
            ResizeState.SAVED,
            ResizeState.RUNNING,
            ResizeState.FAILED,
            ResizeState.WITHDRAWN,
            FINISHED,
            STALLED,
        ):
            self.wake(said.what)

    def _known_for_s(self, job_id: int, now: float) -> float:
        """Seconds since it was submitted, as far as that is known: no pause of it was longer."""
        job = self.store.jobs.get(job_id)
        return max(0.0, now - (job.submit_time if job is not None else now))

    def rated(self, job_id: int, rate: Rate) -> None:
        """What checkpoints cost. No event: it may come every few minutes, and only the last one counts."""
        job = self.store.jobs.get(job_id)
        failure_s = self.rounds.costs.node_failure_s(job.partition) if job is not None else 0.0
        cost = rate.megabytes, rate.pause_s, rate.write_s, rate.every_s
        self.store.outcomes.note_checkpoint(CheckpointRow(job_id, self.clock(), *cost, failure_s))

    def _note_reach(self, job_id: int, said: Happening, now: float) -> None:
        """What the job has found out about the network between its hosts counts for its user's jobs."""
        job = self.store.jobs.get(job_id)
        if job is None:
            return
        if said.what == ResizeState.RUNNING:
            self.store.host_pairs.note_reached(job.user, {node for piece in said.pieces for node in piece.nodes})
        elif said.what == ResizeState.FAILED and said.unreached:
            nodes = self.jobs.latest().nodes
            known = [pair for pair in said.unreached if pair.host in nodes and pair.other in nodes]
            for pair in self.store.host_pairs.note(job.user, known, now):
                if until := left_out_until(pair):
                    words = "hosts %s and %s do not reach each other (%s): no job of %s is put on both for %.0f s"
                    about = {"JOB": job_id, "RESIZE": said.resize, "USER": pair.user}
                    log.warning(words, pair.host, pair.other, pair.address, pair.user, until - now, extra=about)

    def resize(self, job_id: int) -> Resize | None:
        """The resize that the supervisor has to carry out, or a withdrawn one that it may still be carrying out."""
        resize = self.store.resizes.of(job_id)
        if resize is not None:
            return resize.message if _to_do(resize) else None
        last = self.store.resizes.last_closed(job_id)
        if (
            last is not None
            and last.state in (ResizeState.WITHDRAWN, ResizeState.OVERTAKEN)
            and self.clock() - last.updated < WITHDRAWAL_S
        ):
            return replace(last.message, withdrawn=True)
        return None

    async def wait_resize(self, job_id: int, after: int, timeout: float) -> Resize | None:
        """The current resize as soon as its id is above `after` or it is withdrawn; None after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline, look = loop.time() + timeout, partial(self._heard_resize, job_id, after)
        while True:
            waiter = self.waiters.add(job_id)
            try:
                found = await loop.run_in_executor(None, look)
                look = partial(self.resize, job_id)
                if found is not None and (found.id == after if found.withdrawn else found.id > after):
                    return found
                left = deadline - loop.time()
                if left <= 0 or self.waiters.closed:
                    return None
                await asyncio.wait_for(waiter[1].wait(), left)
            except asyncio.TimeoutError:  # TimeoutError itself from Python 3.11 on
                return None
            finally:
                self.waiters.remove(job_id, waiter)

    def _heard_resize(self, job_id: int, after: int) -> Resize | None:
        self.heard(job_id, after)
        return self.resize(job_id)

    def heard(self, job_id: int, last_resize: int) -> None:
        """A supervisor asks for a resize after its last one. NotAllowed: the database is older than that, and what the
        supervisor trains on is known when it has registered again."""
        self.store.resizes.heard_of(last_resize)
        stale = self.store.resizes.of(job_id)
        if stale is not None and stale.id < last_resize and stale.state == ResizeState.ISSUED:
            self.store.resizes.advance(stale.id, ResizeState.WITHDRAWN, "its supervisor knows later ones", self.clock())
        first = job_id not in self.registry.connected()
        if not self.registry.heard(job_id, last_resize):
            raise NotAllowed(f"resize {last_resize} of job {job_id} is not in the database; accepted: register again")
        if first:
            self.wake("heard")

    def notes(self) -> Sequence[PlanNote]:
        said = self.rounds.notes().items()
        return [
            PlanNote(service=name, about=note.subject.words, text=note.text) for name, notes in said for note in notes
        ]

    def queue(self, viewer: Viewer) -> Queue:
        """Waiting jobs as this viewer may see them. Raises NotFound where the service is off."""
        found = self.rounds.queue()
        if found is None:
            raise NotFound('the service queue is off; accepted: services = ["queue=review"] in selasticd.toml')
        own = ((place.row(own), own) for place in found.places for own in [place.job.uid == viewer.uid])
        shown = tuple(
            row if mine or viewer.admin else redacted(row)
            for row, mine in own
            if mine or viewer.admin or not viewer.private
        )
        return Queue(at=found.at, mode=found.mode, lacks=found.lacks, jobs=shown)

    def power(self) -> Power:
        """Which nodes sleep. Raises NotFound where the service is off."""
        found = self.rounds.power()
        if found is None:
            raise NotFound('the service power is off; accepted: services = ["power=review"] in selasticd.toml')
        return found

    def dry_plan(self) -> Sequence[DecisionRow]:
        rows = (row for proposal in self.rounds.dry_run() for row in proposal.rows)
        return [row for row in rows if isinstance(row, DecisionRow)]

    @property
    def fairness(self) -> str:
        return self.rounds.settings.fairness

    def prior(self, job_id: int) -> Prior:
        return self.rounds.priors.of_job(job_id).prior

    def basis(self, job_id: int, gpu_type: str | None) -> PredictionInputs:
        """What predictions of the job go by: of one that runs, as the last round found it."""
        rounds, row = self.rounds, self.store.jobs.get(job_id)
        seen, of = self.jobs.latest(), set(row.partition.split(",") if row is not None else ())
        nodes = {name: node for name, node in seen.nodes.items() if not of.isdisjoint(node.partitions)}
        most = max((node.gpus for node in nodes.values() if gpu_type in (None, node.gpu_type)), default=0)
        if gpu_type is not None:
            return PredictionInputs(rounds.settings, rounds.priors.on_type(job_id, gpu_type), None, most)
        running = rounds.running_job(job_id) if row is not None and row.end_time is None else None
        pause = partial(rounds.costs.estimate, job_id)
        free = next_ends(seen.jobs.values(), nodes, running) if running is not None else ()
        return PredictionInputs(rounds.settings, rounds.priors.of_job(job_id), running, most, pause, free)

    def ground(self) -> Ground:
        return self.rounds.ground(self.jobs.latest())

    def look_for(self, job_id: int, asker: int) -> None:
        """Put a job on record that was submitted since the last round."""
        if self.store.jobs.get(job_id) is None and self.jobs.find(job_id, asker) is not None:
            job = self.registry.sort(self.jobs.latest()).elastic.get(job_id)
            if job is not None:
                self.store.jobs.upsert(self.registry.managed_row(job))

    def wake(self, why: str) -> None:
        log.debug("woken: %s", why)
        self._wake()

    def out_of_reach(self, job_id: int, gpus: int) -> str:
        """Why the job can't come to that size from what it has now; empty when it can, or no round has seen it yet."""
        running = self.rounds.running_job(job_id)
        return fixed_targets.out_of_reach(running, gpus) if running is not None else ""

    def health(self) -> Health:
        rounds = self.rounds
        return Health(
            status="late" if rounds.late else "ok",
            late=rounds.late,
            mode=rounds.mode,
            rounds=rounds.count,
            last_round_age_s=round(self.clock() - rounds.last_ok, 1) if rounds.last_ok else None,
            trouble=bool(rounds.failing),
            failing=rounds.failing,
            tripped=bool(rounds.tripped),
            pairs_left_out=len(
                {(pair.host, pair.other) for pair in self.store.host_pairs.all() if left_out_until(pair) > self.clock()}
            ),
            models=read(ModelsInUse, rounds.priors.summary()),
        )

    def _held(self, job: Job, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        """What Slurm said last that the job holds of these pieces; the next round counts one that began a moment ago.
        NotAllowed: one is another user's, as far as is known."""
        known = self.jobs.latest().jobs
        for piece in pieces:
            there = known.get(piece.slurm_job_id)
            if there is not None and there.uid != job.uid:
                raise NotAllowed(
                    f"piece {piece.slurm_job_id} is another user's job; accepted: pieces of job {job.job_id}"
                )
        return held_pieces(job, pieces, known)

    def _after_requeue(self, job_id: int, now: float) -> tuple[float, str, int]:
        """(pause, reason, resize) of a registration: whether it ends a resize by requeue.

        The pause is the time from the last step before the requeue to the first step after it.
        """
        resize = self.store.resizes.of(job_id)
        if resize is None or not resize.requeues or resize.state.comes_before(ResizeState.SUBMITTED):
            return 0.0, "registered", 0
        ends = [row.end for row in self.store.allocations.rows(job_id) if row.end is not None]
        since = max(ends, default=resize.created)
        return max(0.0, now - max(since, resize.created)), REQUEUE, resize.id

    def _restart_reason(self, job_id: int) -> str:
        """Why training starts again without a resize. A job that was not managed has no allocation yet."""
        return "restart" if self.store.allocations.rows(job_id) else "registered"

    def _record(self, job_id: int, said: Happening, now: float) -> None:
        detail: dict[str, Any] = {
            "resize": said.resize,
            "generation": said.generation,
            "gpus": sum(piece.gpus for piece in said.pieces),
            "batch": said.batch,
        }
        if said.what == ResizeState.RUNNING:
            detail |= {"pause_s": said.pause_s, "step": said.step, "samples": said.samples}
        if said.what == FINISHED:
            detail["exit_code"] = said.exit_code
        if said.detail:
            detail["detail"] = said.detail
        self.store.events.add(job_id, _event_of(said), "supervisor", detail, now)
        about = {"JOB": job_id, "RESIZE": said.resize}
        log.info("job %d: %s%s", job_id, said.what, f" ({said.detail})" if said.detail else "", extra=about)


def _event_of(said: Happening) -> EventKind:
    if said.what in (FINISHED, STALLED, STEPS_AGAIN, ENDING):
        return EventKind(said.what)
    state = ResizeState(said.what)
    by_itself = state is ResizeState.RUNNING and not said.resize
    return EventKind.RUNNING if by_itself else EventKind.of(state)


def _to_do(resize: ResizeRow) -> bool:
    """Whether the supervisor still has work to do: in a resize by requeue, only the checkpoint."""
    return resize.state.comes_before(ResizeState.SAVED if resize.requeues else ResizeState.RUNNING)
