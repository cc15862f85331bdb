"""At which size a waiting elastic job is to start: its script's, its smallest, or what the plan would give it. Pure.

Promise: another size than the script's is set only where the GPUs for it are free now and no job before it needs them,
so that Slurm starts the job at its next pass. Where it does not, the job asks for its script's size again. Nobody asks
for more than its script does. Room that elastic jobs have to make is made for the size that the job will get.
Limit: for jobs that have never run, whose nodes and GPUs per node alone say what they ask for, and that wait for
nothing but nodes; which nodes is Slurm's to choose.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_elastic.protocol.records import record

from ...capacity.make_room import Room
from ...capacity.pending_jobs import Kind, Need
from ...capacity.placement import ShapeTemplate, can_restart, whole_sizes
from ...capacity.roster import ElasticJob
from ...slurm.model import Job, Size
from ..settings import SCRIPT, SMALLEST
from ..tables import AcceptedBy

BACK_S = 10.0
"""How long Slurm has to start a job at the size that it was given, if its GPUs are not free any more."""
AGAIN_S = 600.0
"""How long a job that did not start at the size that it was given keeps its script's."""


@record(frozen=True, slots=True)
class Changed:
    """What a waiting job asks for since its size was last changed; its script's size again where it did not start."""

    script: Size
    now: Size
    at: float


@record(frozen=True, slots=True)
class StartingJob:
    """A waiting job whose first size may be chosen."""

    job: ElasticJob
    need: Need
    script: Size
    sizes: Mapping[int, Size]
    """By GPUs, what it may be given: at most its script's."""

    @property
    def smallest(self) -> Size:
        return self.sizes[min(self.sizes)]


@dataclass(frozen=True, slots=True)
class FirstSizes:
    """What waiting jobs are to ask for, where that is not what they ask for now."""

    starts: Mapping[int, Size] = field(default_factory=dict)
    """Sizes to set now, by job id."""
    back: Mapping[int, Size] = field(default_factory=dict)
    """Scripts' sizes to set again, by job id."""
    aims: Mapping[int, Size] = field(default_factory=dict)
    """Sizes that jobs are to start at when elastic jobs have made room, by job id."""
    scripts: Mapping[int, Size] = field(default_factory=dict)
    """What the scripts of those that start ask for."""


NO_FIRST_SIZES = FirstSizes()


MakeRoom = Callable[[Sequence[Need]], Room]
Divide = Callable[[Sequence[StartingJob], Room], Mapping[int, int]]
"""GPUs that a plan would give waiting jobs beside the running ones, by job id; the room is what is made for others."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The waiting jobs of a round, in Slurm's order, with what is known of them."""

    needs: Sequence[Need]
    elastic: Mapping[int, ElasticJob]
    changed: Mapping[int, Changed]
    """Jobs whose sizes were changed before, by job id."""
    passed: Collection[Kind]
    """Of jobs that did not take the room made for them."""
    now: float
    accepted: AcceptedBy

    def standing(self) -> dict[int, Changed]:
        """Jobs that wait at a size of ours; of another than that their owners have asked since."""
        found = {}
        for job_id, one in self.changed.items():
            job = self.elastic.get(job_id)
            if job is None or not job.base.pending or job.base.restarts:
                continue
            if one.now == _asks(job.base) != one.script:
                found[job_id] = one
        return found

    def candidate(self, need: Need) -> StartingJob | None:
        """The job of a need, if its first size is ours to choose and there is a smaller one."""
        job, before = self.elastic.get(need.job_id), self.changed.get(need.job_id)
        if job is None or need.limit or need.unseen or not _asks_simply(job):
            return None
        if need.jobs[0].reason == "BeginTime":  # its owner's wish: with another size it would start at once
            return None
        script = _asks(need.jobs[0])
        if before is not None and before.now == before.script == script and self.now < before.at + AGAIN_S:
            return None
        smaller = {
            k: next(whole_sizes(k, script.gpus_per_node)) for k in self.accepted(job).ascending if k < script.gpus
        }
        return StartingJob(job, need, script, {**smaller, script.gpus: script}) if smaller else None

    def resized(self, needs: Sequence[Need], sizes: Mapping[int, Size]) -> list[Need]:
        """The needs, some at other sizes, but for those at which their like did not start."""
        other = ((need, _resized(need, sizes.get(need.job_id))) for need in needs)
        return [need if sized.kind in self.passed else sized for need, sized in other]


def first_sizes(kind: str, waiting: Waiting, make_room: MakeRoom, divide: Divide) -> tuple[Room, FirstSizes]:
    """The room for waiting jobs at their first sizes, and what is to be set. `kind`: the setting."""
    room = make_room(waiting.needs)
    standing, starting = waiting.standing(), _starting(room)
    late = {i: one.script for i, one in standing.items() if i not in starting and waiting.now >= one.at + BACK_S}
    needs = [_resized(need, late.get(need.job_id)) for need in waiting.needs]
    room = make_room(needs) if late else room
    left_alone = _starting(room) | (standing.keys() - late.keys())
    candidates = [
        one
        for need in (needs if kind != SCRIPT else ())
        if need.job_id not in left_alone
        if (one := waiting.candidate(need)) is not None
    ]
    if not candidates:
        return room, FirstSizes(back=late)
    wanted = {one.need.job_id: one.smallest for one in candidates}
    if kind != SMALLEST:
        shares = divide(candidates, make_room([need for need in needs if need.job_id not in wanted]))
        planned = {one.need.job_id: one.sizes[shares[one.need.job_id]] for one in candidates}
        room = make_room(waiting.resized(needs, planned))
        too_large = {need.job_id for need in room.unserved}
        wanted = {i: wanted[i] if i in too_large else size for i, size in planned.items()}
        if wanted == planned:
            return room, _outcome(room, candidates, late)
    room = make_room(waiting.resized(needs, wanted))
    return room, _outcome(room, candidates, late)


def _outcome(room: Room, candidates: Sequence[StartingJob], late: Mapping[int, Size]) -> FirstSizes:
    scripts = {one.need.job_id: one.script for one in candidates}
    sizes = {served.need.job_id: _asks(served.need.jobs[0]) for served in room.served if served.need.job_id in scripts}
    other = {job_id: size for job_id, size in sizes.items() if size != scripts[job_id]}
    starting = _starting(room)
    return FirstSizes(
        starts={job_id: size for job_id, size in other.items() if job_id in starting},
        back={job_id: size for job_id, size in late.items() if not (job_id in other and job_id in starting)},
        aims={job_id: size for job_id, size in other.items() if job_id not in starting},
        scripts={job_id: scripts[job_id] for job_id in other if job_id in starting},
    )


def _starting(room: Room) -> frozenset[int]:
    """The jobs whose GPUs are free now: Slurm is about to start them."""
    return frozenset(served.need.job_id for served in room.served if not (served.waits or served.givers))


def _asks_simply(job: ElasticJob) -> bool:
    """Whether it asks for nodes and GPUs per node alone, and has never run."""
    base = job.base
    return can_restart(job) and not (base.restarts or base.exclusive or base.required_nodes)


def _asks(base: Job) -> Size:
    return Size(max(1, base.num_nodes), base.asked_per_node)


def _resized(need: Need, size: Size | None) -> Need:
    """What a job would need at another size; what a GPU comes with stays in proportion."""
    base = need.jobs[0]
    if size is None or size == _asks(base):
        return need
    amount = ShapeTemplate.of(base).amount(size.gpus_per_node)
    each, cpus = size.gpus_per_node, amount.cpus * size.nodes
    asking = replace(
        base, num_nodes=size.nodes, gpus=size.gpus, gpus_per_node=each, asked_per_node=each, cpus=cpus,
        mem_mb=amount.mem_mb,
    )  # fmt: skip
    return replace(need, parts=(replace(need.parts[0], nodes=size.nodes, amount=amount),), jobs=(asking,))
