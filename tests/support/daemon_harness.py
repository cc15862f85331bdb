"""A whole daemon on an in-memory Slurm, with supervisors that go one step at a time: for tests of rounds.

The store, the rounds, the planner and the controller are the real ones; only Slurm, the clock and the training are not.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fake_slurm import UIDS, Component, FakeSlurm
from fresh_store import fresh_store

from slurm_elastic.daemon.api.controller import DaemonController
from slurm_elastic.daemon.capacity.roster import RosterTables, sort_jobs
from slurm_elastic.daemon.derived.table import Derived, one_by_one
from slurm_elastic.daemon.mechanisms.settings import Bounds
from slurm_elastic.daemon.planner.tables import Tables
from slurm_elastic.daemon.rounds.facts import StoredFacts
from slurm_elastic.daemon.rounds.job_registry import JobRegistry
from slurm_elastic.daemon.rounds.loop import Rounds
from slurm_elastic.daemon.rounds.waiters import Waiters
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm.model import Snapshot
from slurm_elastic.daemon.slurm.snapshot_cache import SnapshotCache
from slurm_elastic.protocol.codec import VERSION
from slurm_elastic.protocol.errors import NotAllowed
from slurm_elastic.protocol.messages import Grant, Happening, Piece, Registration, Report, Resize, Shape

REQUEST = "elastic:gpus=4-24,step=4,batch=240-3840"
USER = "games"


def settings(**more: object) -> Settings:
    """Acting, with short cooldowns."""
    values: dict[str, object] = {
        "mode": "act",
        "cooldown_grow_s": 20.0,
        "cooldown_shrink_s": 10.0,
        "max_resizes_per_job_hour": 3600,
    }
    return Settings(**{**values, **more})  # type: ignore[arg-type]


class World:
    """A cluster, a daemon, and the supervisors of its elastic jobs."""

    def __init__(self, directory: Path, nodes: int = 8, gpus: int = 4, **more: object) -> None:
        self.slurm = FakeSlurm(nodes=nodes, gpus_per_node=gpus)
        self.settings = settings(**more)
        self.url = f"sqlite:///{directory / 'selastic.db'}"
        self.supervisors: dict[int, Supervisor] = {}
        self.boot()

    @classmethod
    def in_memory(cls, **more: Any) -> World:
        """In a folder of its own, where thousands of commits need not last; `close` removes it."""
        shm = "/dev/shm" if Path("/dev/shm").is_dir() else None
        folder = Path(tempfile.mkdtemp(prefix="selastic-world-", dir=shm))
        world = cls(folder, **more)
        world.folder = folder
        return world

    folder: Path | None = None
    """Its own, if any."""

    def close(self) -> None:
        self.store.close()
        if self.folder is not None:
            shutil.rmtree(self.folder)

    def boot(self) -> None:
        """Start the daemon, or start it again after it died: nothing but the store is left of the one before."""
        if hasattr(self, "store"):
            self.store.close()
        self.store = fresh_store(self.url)
        self.waiters = Waiters()
        clock = lambda: self.slurm.now  # noqa: E731
        self.jobs = SnapshotCache(self.slurm.client(), clock, lambda seconds: None)
        self.registry = JobRegistry(self.store, self.settings, clock)
        self.rounds = Rounds(self.jobs, self.store, self.settings, self.registry, self.waiters, clock, Bounds())
        self.controller = DaemonController(
            *(self.store, self.jobs, self.rounds, self.registry, self.waiters, lambda: None),
            *(self.settings.report_interval_s, clock),
        )

    def rounds_from_scratch(self) -> Rounds:
        """The daemon's rounds as they are, but for what was made of jobs in the rounds before and kept."""
        rounds = copy(self.rounds)
        rounds.registry = copy(self.registry)
        rounds.registry.tables, rounds.registry.rows = RosterTables(), Derived(one_by_one(self.registry.managed_row))
        rounds.client = SnapshotCache(self.slurm.client(), lambda: self.slurm.now, lambda seconds: None)
        rounds.services, elastic = copy(self.rounds.services), copy(self.rounds.services.elastic)
        rounds.services.every, rounds.services.elastic, elastic.tables = (elastic,), elastic, Tables()
        rounds.facts = StoredFacts(
            *(self.jobs, self.store, self.settings, rounds.registry, rounds.priors, rounds.costs),
            rounds.executor.refusals,
        )
        # ModelCache with others, a model may differ in its last bit.
        rounds.facts.fitted = self.rounds.facts.fitted
        return rounds

    def elastic(
        self, nodes: int = 1, gpus: int = 4, comment: str = REQUEST, measured: bool = True, **fields: object
    ) -> Supervisor:
        """Submit an elastic job; its supervisor registers when it starts. fields: further ones of Job."""
        job_id = self.slurm.submit(Component(nodes, gpus), user=USER, name="train", comment=comment, **fields)
        supervisor = self.supervisors[job_id] = Supervisor(self, job_id, measured=measured)
        return supervisor

    def rigid(self, nodes: int = 1, gpus: int = 4, name: str = "rigid", **fields: object) -> int:
        """Submit an ordinary job of another user. fields: further ones of Job."""
        return self.slurm.submit(Component(nodes, gpus), user="nobody", name=name, **fields)

    def round(self, seconds: float = 5.0) -> None:
        """Time passes, everybody takes a step, the daemon has its round."""
        self.slurm.now += seconds
        for supervisor in list(self.supervisors.values()):
            supervisor.step()
        self.rounds.run()

    def settle(self, rounds: int = 40) -> int:
        """Rounds until nothing changes for long enough that every cooldown is over; how many it took."""
        before, quiet = None, 0
        for number in range(rounds):
            self.round()
            now = self.picture()
            quiet = quiet + 1 if now == before else 0
            before = now
            if quiet > 8 and not self.store.resizes.under_way():
                return number
        raise AssertionError(f"not settled after {rounds} rounds: {self.picture()}, {self.store.resizes.under_way()}")

    def is_at_rest(self, least: Mapping[int, int]) -> None:
        """What Slurm holds for a job is what it trains on, at least so many GPUs, and nothing is left of one that is
        over."""
        snapshot = self.snapshot()
        elastic = sort_jobs(snapshot, accepted=set(self.supervisors)).elastic
        alive = {job_id: job for job_id, job in self.supervisors.items() if job.alive}
        for job_id, job in alive.items():
            held = {piece.slurm_job_id: set(piece.nodes) for piece in elastic[job_id].pieces}
            assert held == {piece.slurm_job_id: set(piece.nodes) for piece in job.pieces}
            assert job.gpus >= least[job_id]
        for one in snapshot.jobs.values():
            if one.name.startswith("selastic-"):
                assert int(one.name.removeprefix("selastic-")) in alive

    def snapshot(self) -> Snapshot:
        """What there is, whether or not slurmctld answers."""
        reachable, self.slurm.reachable = self.slurm.reachable, True
        try:
            return self.slurm.client().snapshot()
        finally:
            self.slurm.reachable = reachable

    def picture(self) -> dict[int, tuple[str, tuple[str, ...], int]]:
        return {job.job_id: (job.state, job.nodes, job.gpus) for job in self.snapshot().jobs.values()}

    def sizes(self) -> dict[int, int]:
        """GPUs that each elastic job trains on."""
        return {job_id: supervisor.gpus for job_id, supervisor in self.supervisors.items() if supervisor.alive}

    def kinds(self, job_id: int) -> list[str]:
        """What has happened to a job, the oldest first."""
        return [event.kind for event in self.store.events.of(job_id)]

    def register(self, job_id: int, said: Registration) -> Grant:
        """As the API does it: whose job it is comes first."""
        self.controller.owner(job_id, 0)
        return self.controller.registered(job_id, said)

    def companions(self) -> list[int]:
        return [job.job_id for job in self.snapshot().jobs.values() if job.name.startswith("selastic-")]


@dataclass
class Supervisor:
    """Does what `selastic run` does, one thing at each step."""

    world: World
    job_id: int
    measured: bool = True
    unit: str = ""
    """Of `selastic hold`, whose batch is its GPUs."""
    pieces: tuple[Piece, ...] = ()
    batch: int = 240
    generation: int = 0
    registered: bool = False
    noise_scale: float = 0.0
    """That it reports."""
    samples_left: int = 0
    """The same."""
    silent: bool = False
    """Hangs: takes no step."""
    ended: bool = False
    restarts: int = 0
    last: int = 0
    active: Resize | None = None
    stage: str = ""
    submitted: list[tuple[int, Shape]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def gpus(self) -> int:
        return sum(piece.gpus for piece in self.pieces)

    @property
    def alive(self) -> bool:
        job = self.world.snapshot().jobs.get(self.job_id)
        return job is not None and job.running and not self.ended

    def step(self) -> None:
        """The next thing to do, if any."""
        job = self.world.snapshot().jobs.get(self.job_id)
        if job is not None and job.restarts != self.restarts:
            self._put_back(job.restarts)
        if not self.alive or self.silent or not self.world.slurm.reachable:
            return
        if not self.registered:
            self.register()
        else:
            self._survive()
            self._listen()
            self._advance()
        if self.measured:
            self.report()

    def register(self) -> None:
        """Say what trains now: at the start all that Slurm holds."""
        if not self.pieces:
            jobs = self.world.snapshot().jobs
            base = jobs[self.job_id]
            parts = [job for job in jobs.values() if base.het_job_id and job.het_job_id == base.het_job_id]
            held = [base, *(part for part in parts if part.job_id != base.job_id)]
            self.pieces = tuple(
                Piece(job.job_id, "base" if job is base else "component", job.nodes, job.gpus_per_node, job.gpu_type)
                for job in held
            )
        self.world.jobs.snapshot()
        self.batch = self.gpus if self.unit else self.batch
        registration = Registration(VERSION, self.generation, self.pieces, self.batch, "train.py", unit=self.unit)
        self.registered = self.world.controller.registered(self.job_id, registration).managed

    def end(self) -> None:
        """The training is over, and the script with it."""
        self._tell("finished", self.active.id if self.active else 0)
        for job_id, _ in self.submitted:
            self.world.slurm.client(USER).cancel(job_id)
        for piece in self.pieces:
            if piece.kind == "companion":
                self.world.slurm.client(USER).cancel(piece.slurm_job_id)
        self.crash()

    def crash(self) -> None:
        """The base job is gone, and nobody cleaned up."""
        self.ended = True
        self.world.slurm.finish(self.job_id)

    def _put_back(self, restarts: int) -> None:
        """The job has been requeued: this run is over, and the next begins when the job starts again."""
        self._tell("finished", 0)
        for piece in self.pieces:
            if piece.kind == "companion":
                self.world.slurm.client(USER).cancel(piece.slurm_job_id)
        self.restarts, self.generation = restarts, self.generation + 1
        self.pieces, self.registered, self.active, self.stage, self.submitted = (), False, None, "", []

    def report(self) -> None:
        """Compute in proportion to the samples of a GPU, and a reduction that grows slowly with the nodes."""
        nodes = len({node for piece in self.pieces for node in piece.nodes})
        micro = max(1, self.batch // max(1, self.gpus))
        step_time = 0.004 * micro + 0.005 * math.log2(nodes + 1)
        report = Report(
            self.generation, self.world.slurm.now, self.gpus, nodes, self.batch, micro, 1, 10, step_time, step_time,
            self.batch / step_time, int(self.world.slurm.now), int(self.world.slurm.now) * 240, 0,
            noise_scale=self.noise_scale, samples_left=self.samples_left,
        )  # fmt: skip
        self.world.store.reports.submit(self.job_id, [report], self.world.slurm.now).result()

    def _survive(self) -> None:
        """A piece that Slurm took away is trained without."""
        jobs = self.world.snapshot().jobs
        left = []
        for piece in self.pieces:
            held = jobs[piece.slurm_job_id].nodes if piece.slurm_job_id in jobs else ()
            nodes = tuple(node for node in piece.nodes if node in held)
            if nodes:
                left.append(replace(piece, nodes=nodes))
        if tuple(left) != self.pieces:
            self.pieces = tuple(left)
            self.generation += 1
            self._tell("running", 0)

    def _listen(self) -> None:
        try:
            self.world.controller.heard(self.job_id, self.last)
        except NotAllowed:
            self.register()
        resize = self.world.controller.resize(self.job_id)
        if resize is None:
            return
        if resize.withdrawn:
            if self.active is not None and self.active.id == resize.id:
                self._give_up("withdrawn")
        elif resize.id > self.last:
            self.last, self.active, self.stage = resize.id, resize, "accepted"
            self._tell("accepted", resize.id)

    def _advance(self) -> None:
        if self.active is None:
            return None
        jobs = self.world.snapshot().jobs
        if self.active.requeues:
            if self.stage == "accepted":
                self.stage = "writing"
                return None
            resize, self.active, self.stage = self.active, None, ""
            return self._tell("saved", resize.id)
        if self.stage == "accepted" and self.active.add:
            self.submitted = [(self._submit(shape), shape) for shape in self.active.add]
            self.stage = "submitted"
        elif self.stage == "submitted":
            if any(job_id not in jobs for job_id, _ in self.submitted):
                self._give_up("failed")
            elif all(jobs[job_id].running for job_id, _ in self.submitted):
                self.stage = "granted"
        elif self.stage in ("accepted", "granted"):
            self.stage = "ready"
        elif self.stage == "ready":
            return self._switch()
        if self.active is not None:
            self._tell(self.stage, self.active.id)
        return None

    def _submit(self, shape: Shape) -> int:
        assert self.active is not None
        comment = f"selastic:companion-of={self.job_id};resize={self.active.id}"
        want = Component(shape.nodes, shape.gpus_per_node, shape.node_list)
        what = {"name": f"selastic-{self.job_id}", "comment": comment, "qos": shape.qos}
        return self.world.slurm.submit(want, user=USER, batch=False, **what)

    def _switch(self) -> None:
        assert self.active is not None
        jobs = self.world.snapshot().jobs
        if any(job_id not in jobs for job_id, _ in self.submitted):
            return self._give_up("failed")
        added = [
            Piece(job_id, "companion", jobs[job_id].nodes, shape.gpus_per_node, jobs[job_id].gpu_type)
            for job_id, shape in self.submitted
        ]
        self.pieces, self.batch = (*self.active.keep, *added), self.active.batch
        self.generation += 1
        resize, self.active, self.stage, self.submitted = self.active, None, "", []
        self._tell("running", resize.id)
        return None

    def _give_up(self, phase: str, detail: str = "") -> None:
        assert self.active is not None
        for job_id, _ in self.submitted:
            self.world.slurm.client(USER).cancel(job_id)
        resize, self.active, self.stage, self.submitted = self.active, None, "", []
        self._tell(phase, resize.id, detail)

    def _tell(self, phase: str, resize_id: int, detail: str = "") -> None:
        self.told.append(phase)
        self.world.controller.happened(
            self.job_id,
            Happening(
                *(resize_id, phase, self.generation, self.pieces, self.batch, self.world.slurm.now),
                **{"pause_s": 0.1, "detail": detail},
            ),
        )


__all__ = ["REQUEST", "UIDS", "USER", "Supervisor", "World"]
