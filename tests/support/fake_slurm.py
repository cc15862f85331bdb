"""A Slurm for tests of what is built on the client: the simulator's model of it, behind the client's methods.

It passes the same contract tests as the real one. What it adds to the model: owners, a queue that is looked at
whenever something changes, slurmctld and slurmdbd that cannot be reached, and Slurm's refusals in its words.
Limit: no time passes and no job ends by itself.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_elastic.daemon.simulator.slurm.controller import Slurm
from slurm_elastic.daemon.slurm.accounting import EndedJob, QosUser, SlurmLimit
from slurm_elastic.daemon.slurm.fair_share import ShareTree
from slurm_elastic.daemon.slurm.model import Job, Node, Size, SlurmClient, Snapshot
from slurm_elastic.daemon.slurm.site import PartitionRules, Reservation, Site
from slurm_elastic.protocol.errors import SlurmRefused, SlurmUnreachable

ROOT = "root"
BEGIN_S = 121.0
"""How long after a requeue Slurm does not start a job."""
UIDS = {ROOT: 0, "games": 5, "nobody": 65534}


@dataclass(frozen=True)
class Component:
    """One component of a submission: sizes as in sbatch -N nodes --gres=gpu:gpus_per_node -w node_list."""

    nodes: int = 1
    gpus_per_node: int = 0
    node_list: tuple[str, ...] = ()


class FakeSlurm:
    """The cluster. `client(user)` is what that user can do with it; `reachable = False` takes slurmctld down.

    `now` is the clock of the snapshots, moved by the test.
    """

    def __init__(
        self,
        nodes: int = 8,
        gpus_per_node: int = 4,
        gpu_type: str = "a100",
        cpus_per_node: int = 16,
        now: float = 1_000_000.0,
    ) -> None:
        self.now = now
        self.behind = 0.0
        """Seconds that slurmctld's clock is behind this host's."""
        self.reachable = True
        self.vetoed: Collection[str] = ()
        """Partitions in which the site's job_submit plugin refuses to shrink a job."""
        self.run_ended_as = "REQUEUED"
        """How the last run of every job ended that was put back."""
        self.slurmdbd = True
        self.asked_slurmdbd: list[tuple[int, ...]] = []
        """Jobs whose last runs were asked for, call by call."""
        self.limits: tuple[SlurmLimit, ...] = ()
        """Listed by `site`, and not enforced."""
        self.partition_rules: Mapping[str, PartitionRules] = {}
        """Listed by `partitions`, and not enforced."""
        self.qos_users: Mapping[QosUser, bool] = {}
        """Whether each may use any QOS; not enforced. With some listed, `site` says that Slurm checks it."""
        self.share_tree: ShareTree | None = None
        """Listed by `shares`; None: there is no slurmdbd. With one, `site` says that Slurm's priorities count it."""
        self.ended_jobs: list[EndedJob] = []
        """What slurmdbd knows of jobs that have ended."""
        self.site_factors: dict[int, int] = {}
        """What was added to priorities, by job id; jobs start in the order of their submission all the same. With
        multifactor, `site` says that it may be."""
        self.multifactor = False
        self.saves_power = False
        """`site` says that nodes may be put to sleep, and by the daemon."""
        self.never_sleep: Collection[str] = ()
        self.power_asked: list[tuple[str, bool]] = []
        """Nodes that were put to sleep (False), or woken."""
        self._lock = threading.RLock()
        self._ids = itertools.count(1)
        self._asked: dict[int, Job] = {}
        """Jobs as they were submitted, or last given a size while they waited."""
        self._ended: dict[int, Job] = {}
        self.ended_as: dict[int, str] = {}
        """The states of ended jobs that it still remembers."""
        type_of_gpu = gpu_type if gpus_per_node else ""
        self.model = Slurm(
            Node(name, frozenset({"IDLE"}), ("main",), gpus_per_node, 0, type_of_gpu, cpus_per_node, 0, 16384)
            for name in (f"n{i}" for i in range(1, nodes + 1))
        )

    def client(self, user: str = ROOT) -> FakeClient:
        """What this user can do."""
        return FakeClient(self, user)

    def submit(
        self,
        *components: Component,
        user: str = ROOT,
        name: str = "job",
        comment: str = "",
        batch: bool = True,
        **fields: object,
    ) -> int:
        """Submit a job, or with several components a heterogeneous one; it starts at once when it fits and none waits.

        batch: it runs a script on its first node, which it can't give up; False: salloc --no-shell.
        fields: further fields of Job, recorded as they are. Returns the (first) job id.
        """
        with self.answering():
            ids = [next(self._ids) for _ in components]
            parts = [
                Job(
                    job_id,
                    "PENDING",
                    user,
                    UIDS.get(user, 1000),
                    name,
                    comment,
                    user,
                    "main",
                    "normal",
                    "Resources",
                    num_nodes=asked.nodes,
                    gpus=asked.nodes * asked.gpus_per_node,
                    gpus_per_node=asked.gpus_per_node,
                    asked_per_node=asked.gpus_per_node,
                    cpus=asked.nodes,
                    submit_time=self.now,
                    required_nodes=asked.node_list,
                    het_job_id=ids[0] if len(ids) > 1 else 0,
                    het_offset=offset,
                )
                for offset, (job_id, asked) in enumerate(zip(ids, components, strict=True))
            ]
            parts = [replace(one, **fields) for one in parts]  # type: ignore[arg-type]
            self._asked.update((one.job_id, one) for one in parts)
            self.model.submit(*parts, script=batch)
            self.schedule()
            return ids[0]

    def finish(self, job_id: int) -> None:
        """The job ends by itself, all its components with it."""
        with self._lock:
            for one in self.model.components(job_id):
                self._ended[one] = self._job(one)
            self.model.end(job_id)
            self.schedule()

    def forget(self) -> None:
        """Nothing is known any more of jobs that have ended."""
        self._ended.clear()
        self._asked = {job_id: job for job_id, job in self._asked.items() if self.model.get(job_id)}

    def set_node_state(self, name: str, *flags: str) -> None:
        """The node's state and flags, such as "IDLE", "DRAIN"; none: back to what its jobs make of it."""
        with self._lock:
            self.model.set_state(name, frozenset(flags or {"IDLE"}))
            self.schedule()

    def schedule(self) -> None:
        """Start what fits, strictly in the order of submission; those after a job beside a reservation may pass it."""
        self.model.schedule(self.now, passing=bool(self.model.reservations))

    def _job(self, job_id: int) -> Job:
        job = self.model.get(job_id)
        assert job is not None
        return job

    @contextlib.contextmanager
    def answering(self) -> Iterator[FakeSlurm]:
        """The cluster, for one call. Raises SlurmUnreachable while it is not reachable."""
        with self._lock:
            if not self.reachable:
                raise SlurmUnreachable("No answer from slurmctld: Unable to contact slurm controller (connect failure)")
            yield self

    def _owned(self, job_id: int, user: str, what: str) -> Job:
        job = self.model.get(job_id) or self._ended.get(job_id)
        if job is None:
            raise SlurmRefused(f"Slurm refused to {what} job {job_id}: Invalid job id specified for job {job_id}")
        if user not in (ROOT, job.user):
            raise SlurmRefused(f"Slurm refused to {what} job {job_id}: Invalid user id for job {job_id}")
        if job_id in self._ended:
            raise SlurmRefused(f"Slurm refused to {what} job {job_id}: Job has already finished for job {job_id}")
        return job


class FakeClient(SlurmClient):
    """A SlurmClient on a FakeSlurm, for one user."""

    def __init__(self, slurm: FakeSlurm, user: str) -> None:
        self._slurm, self._user = slurm, user

    def snapshot(self) -> Snapshot:
        with self._slurm.answering() as slurm:
            return slurm.model.snapshot(slurm.now)

    def site(self) -> Site:
        with self._slurm.answering() as slurm:
            reserved = slurm.model.reservations.items()
            kept = (Reservation(name, nodes, slurm.now, slurm.now + 600) for name, nodes in reserved)
            checks, counts = bool(slurm.qos_users), slurm.share_tree is not None
            own = {"multifactor": slurm.multifactor, "orders_queue": slurm.multifactor and self._user == ROOT}
            own |= {"power_saving": slurm.saves_power, "can_suspend": slurm.saves_power}
            own |= {"administers": slurm.saves_power, "never_sleep": frozenset(slurm.never_sleep)}
            return Site(slurm.now, slurm.limits, {}, tuple(kept), checks_qos=checks, counts_shares=counts, **own)

    def slurms_time(self) -> float:
        with self._slurm.answering() as slurm:
            return time.time() - slurm.behind

    def partitions(self) -> tuple[Mapping[str, PartitionRules], Mapping[str, str]]:
        return self._slurm.partition_rules, {}

    def qos_over_partition(self) -> frozenset[str]:
        return frozenset()

    def qos_users(self, qos: str) -> Mapping[QosUser, bool]:
        with self._slurm.answering() as slurm:
            return slurm.qos_users

    def shares(self) -> ShareTree:
        with self._slurm.answering() as slurm:
            if slurm.share_tree is None:
                raise SlurmUnreachable(
                    "No answer from sshare: You are not running a supported accounting_storage plugin"
                )
            return slurm.share_tree

    def end_states(self, job_ids: Sequence[int]) -> Mapping[int, str]:
        with self._slurm.answering() as slurm:
            return {job_id: slurm.ended_as[job_id] for job_id in job_ids if job_id in slurm.ended_as}

    def last_runs(self, job_ids: Sequence[int]) -> Mapping[int, str]:
        with self._slurm.answering() as slurm:
            if not slurm.slurmdbd:
                raise SlurmUnreachable("No answer from sacct: Slurm accounting storage is disabled")
            slurm.asked_slurmdbd.append(tuple(job_ids))
            return dict.fromkeys(job_ids, slurm.run_ended_as) if slurm.run_ended_as else {}

    def ended_jobs(self, start: float, end: float) -> Sequence[EndedJob]:
        with self._slurm.answering() as slurm:
            if not slurm.slurmdbd:
                raise SlurmUnreachable("No answer from sacct: Slurm accounting storage is disabled")
            return [job for job in slurm.ended_jobs if start <= job.at <= end]

    def set_site_factor(self, job_id: int, factor: int) -> None:
        with self._slurm.answering() as slurm:
            if self._user != ROOT:
                raise SlurmRefused(f"Slurm refused to change job {job_id}: Access/permission denied")
            slurm.site_factors[job_id] = factor

    def set_power(self, node: str, awake: bool) -> None:
        with self._slurm.answering() as slurm:
            slurm.power_asked.append((node, awake))
            slurm.set_node_state(node, *({"IDLE"} if awake else {"IDLE", "POWERED_DOWN"}))

    def excluded_nodes(self) -> Mapping[int, tuple[str, ...]]:
        with self._slurm.answering() as slurm:
            jobs = slurm.model.snapshot(slurm.now).jobs.values()
            return {job.job_id: job.excluded_nodes for job in jobs if job.excluded_nodes}

    def shrink(self, job_id: int, nodes: Sequence[str]) -> None:
        kept = set(nodes)
        with self._slurm.answering() as slurm:
            job = slurm._owned(job_id, self._user, "change")
            if job.partition in slurm.vetoed:
                raise SlurmRefused(f"Slurm refused to change job {job_id}: Unspecified error for job {job_id}")
            here = job.nodes or slurm.model.nodes
            if not kept or not kept <= set(here) or job.batch_host not in {"", *kept}:
                raise SlurmRefused(
                    f"Slurm refused to change job {job_id}: Invalid node name specified for job {job_id}"
                )
            if job.pending:
                slurm.model.change(job_id, required_nodes=tuple(nodes))
                return
            slurm.model.shrink(job_id, kept)
            slurm.schedule()

    def cancel(self, job_id: int) -> None:
        with self._slurm.answering() as slurm:
            if slurm.model.get(job_id) is None:
                return
            job = slurm._owned(job_id, self._user, "cancel")
            if job.pending and job.het_job_id not in (0, job_id):
                raise SlurmRefused(
                    f"Slurm refused to cancel job {job_id}: Operation not permitted on individual component of "
                    "heterogeneous job"
                )
            slurm.finish(job_id)

    def requeue(self, job_id: int) -> None:
        with self._slurm.answering() as slurm:
            job = slurm._owned(job_id, self._user, "requeue")
            if not job.running or not job.batch_host:
                said = "Job is pending execution" if job.pending else "Only batch jobs are accepted or processed"
                raise SlurmRefused(f"Slurm refused to requeue job {job_id}: {said} for job {job_id}")
            asked = slurm._asked[job_id]
            slurm.model.end(job_id)
            slurm.model.submit(
                replace(
                    job,
                    state="PENDING",
                    reason="BeginTime",
                    nodes=(),
                    batch_host="",
                    start_time=None,
                    restarts=job.restarts + 1,
                    eligible_time=slurm.now + BEGIN_S,
                    num_nodes=asked.num_nodes,
                    gpus=asked.gpus,
                    gpus_per_node=asked.gpus_per_node,
                    cpus=asked.cpus,
                )
            )
            slurm.schedule()

    def asked_size(self, job_id: int) -> Size:
        with self._slurm.answering() as slurm:
            job = slurm._job(job_id)
            return Size(job.num_nodes, job.asked_per_node, tasks_per_node=1, cpus_per_task=1)

    def resize_waiting(self, job_id: int, size: Size, reservation: str = "") -> None:
        with self._slurm.answering() as slurm:
            job = slurm._owned(job_id, self._user, "change")
            if not job.pending or not job.asked_per_node:
                raise SlurmRefused(f"Slurm refused to change job {job_id}: Job is no longer pending execution")
            slurm.model.change(
                job_id,
                reason="None",
                required_nodes=() if size.anywhere else job.required_nodes,
                num_nodes=size.nodes,
                gpus=size.gpus,
                gpus_per_node=size.gpus_per_node,
                asked_per_node=size.gpus_per_node,
                cpus=size.nodes,
                eligible_time=slurm.now,
                reservation=reservation if reservation in slurm.model.reservations else "",
            )
            slurm._asked[job_id] = slurm._job(job_id)
            slurm.schedule()

    def reserve(self, name: str, nodes: Sequence[str], user: str, minutes: int) -> None:
        with self._slurm.answering() as slurm:
            if self._user != ROOT:
                raise SlurmRefused(f"Slurm refused to make reservation {name}: Invalid user id")
            slurm.model.reservations[name] = tuple(nodes)

    def unreserve(self, name: str, job_id: int = 0) -> None:
        with self._slurm.answering() as slurm:
            if slurm.model.get(job_id):
                slurm.model.change(job_id, reservation="")
            slurm.model.reservations.pop(name, None)
            slurm.schedule()

    def set_comment(self, job_id: int, text: str) -> None:
        if not text.isprintable():
            raise SlurmRefused(f"comment={text[:60]!r} of job {job_id}: accepted are printable characters.")
        with self._slurm.answering() as slurm:
            slurm._owned(job_id, self._user, "change")
            slurm.model.change(job_id, comment=text)
