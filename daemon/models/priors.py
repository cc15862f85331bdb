"""What is believed of a job before it is measured: learned from the cluster's own history, and kept.

    shipped prior -> all of the cluster -> the same program on the same kind of GPU

Each is learned on top of the one before it, so a short history says little; a job gets the narrowest there is. The
cluster's is learned at night, with all of its programs; a program's also soon after one of its jobs has ended.
Promise: a failure to learn or to read leaves what was there; planning never waits for it. Limit: a program is its
user and its script, whatever its arguments: one script for several models gives a wider prior, not several.
"""

import logging
import posixpath
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.rows import PriorRow, RunRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.errors import ElasticError

from ..optimizer.models.learning import learn
from ..optimizer.models.observation import Observation
from ..optimizer.models.prior import DEFAULT, Prior, from_plain
from .cache import observations

log = logging.getLogger(__name__)

RUNS = 2000
"""Youngest runs that are learned from."""
RUNS_OF_PROGRAM = 40
"""Youngest runs of one program on one kind of GPU: more tell nothing new, and take time."""
CLUSTER_COUNTS = 20.0
"""Programs of its own that a cluster must have seen until they weigh as much as the shipped prior."""
PROGRAM_COUNTS = 1.0
"""Runs of a program that weigh as much as all that is known of others."""
ENDED_EVERY_S = 60.0
"""How often the programs of jobs that have just ended are learned."""
AT_ONCE = 20
"""Most of them each time, about a second of work; what is left over is learned at night."""
DAY_S = 86400.0
Key = tuple[str, str]
CLUSTER: Key = ("", "")


@dataclass(frozen=True, slots=True)
class LearnedPrior:
    """A prior with where it comes from."""

    prior: Prior
    words: str
    """For people: "3 earlier runs of train.py on a100"."""
    runs: int = 0
    learned_at: float | None = None


SHIPPED = LearnedPrior(DEFAULT, "the prior shipped with slurm-elastic, learned from public profiles")


class Priors:
    """The priors in use, in memory and in the store; thread-safe."""

    def __init__(self, store: Store, clock: Callable[[], float] = steady_now) -> None:
        self._store, self._clock = store, clock
        self._learning = threading.Lock()
        self._known: dict[Key, LearnedPrior] = {}
        self._ended_to = clock()
        """Whose programs have been learned: of the jobs that had ended by then."""
        self._read()

    def of_job(self, job_id: int) -> LearnedPrior:
        """What is believed of this job, from its own program's runs where there were some."""
        return self._of_program(self._store.programs.of(job_id))

    def on_type(self, job_id: int, gpu_type: str) -> LearnedPrior:
        """The same of its program on another kind of GPU."""
        program = self._store.programs.of(job_id)
        return self._of_program((program[0], gpu_type) if program is not None else None)

    def cluster(self) -> LearnedPrior:
        """What is believed of a program that has never run."""
        return self._of_program(None)

    def _of_program(self, program: Key | None) -> LearnedPrior:
        known = self._known
        found = known.get(program) if program is not None else None
        return found or known.get(CLUSTER) or SHIPPED

    def summary(self) -> dict[str, object]:
        """What is in use, for `selastic config show` and /v1/health."""
        cluster = self._known.get(CLUSTER, SHIPPED)
        programs = sum(1 for key in self._known if key != CLUSTER)
        return {"prior": cluster.words, "runs": cluster.runs, "programs": programs, "learned_at": cluster.learned_at}

    def due(self) -> bool:
        """Whether nothing was learned for a day."""
        last = self._known.get(CLUSTER, SHIPPED).learned_at
        return last is None or self._clock() - last > DAY_S

    def learn(self) -> bool:
        """Learn from the runs that have ended, store that, use it from now on; whether there was anything to learn."""
        return self._tried(self._learn_all)

    def learn_ended(self) -> bool:
        """The same of the programs of jobs that have ended since this was called last, and of nothing else."""
        return self._tried(self._learn_ended)

    def _tried(self, work: Callable[[], bool]) -> bool:
        with self._learning:
            try:
                return work()
            except ElasticError as error:
                log.warning("no prior is learned this time; what was in use stays: %s", error)
            except Exception:
                log.exception("no prior is learned this time; what was in use stays")
        return False

    def _learn_all(self) -> bool:
        rows = learned(self._store.programs.runs(RUNS), self._clock())
        if rows:
            self._store.priors.save(rows)
            self._known = _in_use(rows)
            log.info("throughput models start from %s", self._known[CLUSTER].words)
        return bool(rows)

    def _learn_ended(self) -> bool:
        began, base = self._clock(), self._known.get(CLUSTER, SHIPPED).prior
        # Twice as far back: the end of a job is noticed a while after it.
        keys = self._store.programs.ended(self._ended_to - 2 * ENDED_EVERY_S)[:AT_ONCE]
        found = [
            row for key in keys for row in learned_of(key, self._store.programs.runs(RUNS_OF_PROGRAM, key), base, began)
        ]
        rows = [
            row for row in found if asdict(self._known.get((row.program, row.gpu_type), SHIPPED).prior) != row.prior
        ]
        self._store.priors.add(rows)
        self._known = {**self._known, **_in_use(rows)}
        self._ended_to = began
        return bool(rows)

    def _read(self) -> None:
        try:
            self._known = _in_use(self._store.priors.all())
        except ElasticError as error:
            log.warning("the shipped prior is used: %s", error)


def _in_use(rows: Sequence[PriorRow]) -> dict[Key, LearnedPrior]:
    return {
        (row.program, row.gpu_type): LearnedPrior(from_plain(row.prior), words(row), row.runs, row.learned_at)
        for row in rows
    }


def learned(runs: Sequence[RunRow], at: float) -> list[PriorRow]:
    """The cluster's prior and one for each program and kind of GPU; none without runs.

    In the cluster's prior every program counts as one run, however often it ran.
    """
    groups: dict[Key, list[list[Observation]]] = defaultdict(list)
    for run in runs:
        seen = list(observations(run.observations))
        if seen and len(groups[run.program, run.gpu_type]) < RUNS_OF_PROGRAM:
            groups[run.program, run.gpu_type].append(seen)
    everything = [(run, 1.0 / len(group)) for group in groups.values() for run in group]
    if not everything:
        return []
    cluster = learn([run for run, _ in everything], [w for _, w in everything], DEFAULT, CLUSTER_COUNTS)
    rows = [PriorRow("", "", at, len(everything), asdict(cluster))]
    for key, group in sorted(groups.items()):
        rows += _of_program(key, group, cluster, at)
    return rows


def learned_of(key: Key, runs: Sequence[RunRow], cluster: Prior, at: float) -> list[PriorRow]:
    """The prior of one program on a kind of GPU from its own runs, on top of the cluster's; none without runs."""
    return _of_program(key, [seen for run in runs if (seen := list(observations(run.observations)))], cluster, at)


def _of_program(key: Key, group: Sequence[Sequence[Observation]], cluster: Prior, at: float) -> list[PriorRow]:
    if not key[0] or not group:
        return []
    return [PriorRow(*key, at, len(group), asdict(learn(group, None, cluster, PROGRAM_COUNTS)))]


def words(row: PriorRow) -> str:
    """Where a stored prior comes from."""
    runs = f"{row.runs} earlier run{'' if row.runs == 1 else 's'}"
    if not row.program:
        return f"{runs} of this cluster"
    script = posixpath.basename(row.program.partition(":")[2] or row.program)
    return f"{runs} of {script} on {row.gpu_type or 'GPUs of no named type'}"


def program_of(user: str, command: str) -> str:
    """A program's name in the history: user and script, without interpreter, options and arguments."""
    parts = command.split()
    if parts and posixpath.basename(parts[0]).startswith("python"):
        parts = parts[1:]
    script = next((part for part in parts if not part.startswith("-")), "")
    return f"{user}:{script}" if script else ""
