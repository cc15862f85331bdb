"""What a resize costs a job that has not been resized yet: by the size of its state, from the resizes of others here.

    shipped prior -> the cluster's youngest resizes -> the job's own

Promise: nothing is said while no job here was resized; a failure to read leaves what was known. Limit: a job's state is
as large as its last checkpoint, or as that of its program's youngest run; of one that has none, as the median here.
"""

import logging
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.rows import PauseRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.errors import StoreError

from ..derived.table import Derived, one_by_one
from ..optimizer.models.costs import CostModel, CostPrior, Estimate, fit
from .settings import ModelSettings

log = logging.getLogger(__name__)

PER_MB_S, RESTORED_PER_MB_S = 1 / 1000, 1 / 100
"""Seconds believed for each MB of a state that goes over the network, and of one that is written and read again."""
OWN_NOISE = 0.3
YOUNGEST = 500
REFRESH_S = 300.0
FAILURES_S = 30 * 86400.0
"""How far back failures are counted."""
GRID = 0.05
"""Steps of the logarithm in which estimates are told apart, so that a job is the same from round to round."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """MB of state, as far as checkpoints have said it."""

    jobs: dict[int, float] = field(default_factory=dict)
    programs: dict[str, float] = field(default_factory=dict)
    median: float = 0.0

    def of(self, job_id: int, program: str) -> float:
        """Of a job, or what is likely."""
        return self.jobs.get(job_id) or self.programs.get(program) or self.median


class Costs:
    """The cluster's cost models, made again at most every REFRESH_S. Thread-safe: what it knows is replaced."""

    def __init__(self, store: Store, settings: ModelSettings, clock: Callable[[], float] = steady_now) -> None:
        self._store, self._clock = store, clock
        self._priors = {
            False: CostPrior(settings.assumed_pause_s, PER_MB_S),
            True: CostPrior(settings.assumed_requeue_s, RESTORED_PER_MB_S),
        }
        self._read_at = -math.inf
        self._sizes = Sizes()
        self._failures: dict[str, tuple[float, float]] = {}
        self._models: dict[bool, CostModel] = {}
        self._likely = Derived[tuple[int, bool], tuple[int, CostModel, Sizes], float](
            one_by_one(lambda asked: _on_grid(asked[1].at(self._size(asked[0])).seconds)), lambda asked: asked[1:]
        )

    def likely_s(self, job_ids: Iterable[int], requeue: bool) -> dict[int, float]:
        """Seconds that training stands still in a resize of each of these jobs, on a grid; none of any where none was
        measured here."""
        self._refresh()
        model = self._models.get(requeue)
        if model is None:
            return {}
        asked = {(job_id, requeue): (job_id, model, self._sizes) for job_id in job_ids}
        return {job_id: seconds for (job_id, _), seconds in self._likely.of(asked).items()}

    def estimate(self, job_id: int, requeue: bool) -> Estimate | None:
        """The same with an interval, from its own resizes where it has had some."""
        self._refresh()
        model, size = self._models.get(requeue), self._size(job_id)
        own = [(0.0, row.pause_s) for row in self._store.outcomes.pauses(YOUNGEST, job_id) if row.requeue == requeue]
        if not own:
            return None if model is None else model.at(size)
        believed = self._priors[requeue] if model is None else _around(model.at(size))
        return fit(own, believed).at(0.0)

    def node_failure_s(self, partition: str) -> float:
        """How long one node of a partition trains in the mean until its job has to start again; 0: none was seen."""
        now, known = self._clock(), self._failures.get(partition)
        if known is None or abs(now - known[0]) >= REFRESH_S:
            lost, trained_s = self._store.outcomes.node_failures(partition, now - FAILURES_S, now)
            known = self._failures[partition] = now, trained_s / lost if lost else 0.0
        return known[1]

    def _size(self, job_id: int) -> float:
        program = self._store.programs.of(job_id)
        return self._sizes.of(job_id, program[0] if program is not None else "")

    def _refresh(self) -> None:
        now = self._clock()
        if abs(now - self._read_at) < REFRESH_S:
            return
        self._read_at = now
        try:
            pauses = self._store.outcomes.pauses(YOUNGEST)
            self._sizes = sizes(self._store, YOUNGEST * 10)
            programs = {row.job_id: self._size(row.job_id) for row in pauses}
        except StoreError as error:
            log.warning("what resizes cost is not read again this time: %s", error)
            return
        self._models = models(pauses, programs, self._priors)
        self._likely.turn()


def sizes(store: Store, limit: int) -> Sizes:
    """What the youngest checkpoints say."""
    jobs, programs = dict[int, float](), dict[str, float]()
    for row, program in store.outcomes.checkpoints(limit):
        if row.megabytes > 0:
            jobs[row.job_id] = row.megabytes
            programs.setdefault(program, row.megabytes)
    programs.pop("", None)
    return Sizes(jobs, programs, statistics.median(jobs.values()) if jobs else 0.0)


def models(
    pauses: Sequence[PauseRow], megabytes: dict[int, float], priors: dict[bool, CostPrior]
) -> dict[bool, CostModel]:
    """A model for the resizes by requeue (True) and one for all others (False), of those kinds that there were."""
    found = {}
    for requeue, prior in priors.items():
        points = [(megabytes[row.job_id], row.pause_s) for row in pauses if row.requeue == requeue]
        if points:
            found[requeue] = fit(points, prior)
    return found


def _around(estimate: Estimate) -> CostPrior:
    """What others' resizes say, as what is believed of a job's own."""
    doubt = math.log(estimate.high / max(1e-9, estimate.seconds)) / 1.28
    return CostPrior(estimate.seconds, 1e-9, doubt=max(0.1, doubt), noise=OWN_NOISE)


def _on_grid(seconds: float) -> float:
    return math.exp(GRID * round(math.log(seconds) / GRID))
