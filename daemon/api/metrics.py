"""Prometheus metrics, at /metrics: how the daemon does, and sums over all jobs; no user, job or node by name.

Gauges are read from the store and the rounds at each scrape; counters count since the daemon's start.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.messages import Happening
from slurm_elastic.protocol.version import version

from ..config.fields import MODES
from ..rounds.loop import Rounds

PREFIX = "slurm_elastic_"
PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
ENDS = ("running", "failed", "withdrawn")
"""Phases with which a supervisor ends a resize."""


class Metrics:
    """One daemon's metrics; `exposition` is what a scrape gets."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, store: Store, rounds: Rounds) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which nobody reads
        own, jobs = self._own, self._jobs = CollectorRegistry(), CollectorRegistry()
        ProcessCollector(registry=own)
        info = Info(PREFIX + "build", "The daemon's version", registry=own)
        info.info({"version": version()})
        own.register(_Lazy(partial(_of_rounds, rounds)))
        own.register(_Lazy(partial(_database_size, store)))
        self.requests = Counter(PREFIX + "requests", "Requests to the API, by status", ["status"], registry=own)
        jobs.register(_Lazy(partial(_of_store, store)))
        jobs.register(_Lazy(partial(_capacity, rounds)))
        self.reports = Counter(PREFIX + "reports", "Throughput reports stored", registry=jobs)
        ended = "Resizes that supervisors have ended, by how"
        self._resizes = Counter(PREFIX + "resizes", ended, ["phase"], registry=jobs)
        for phase in ENDS:
            self._resizes.labels(phase)
        self._pauses = Histogram(PREFIX + "resize_pause_seconds", "Pauses of training", registry=jobs, buckets=PAUSES_S)

    def happened(self, said: Happening) -> None:
        """A supervisor has said how far a resize has come. One said twice counts twice."""
        if said.resize and said.what in ENDS:
            self._resizes.labels(said.what).inc()
            if said.what == "running":
                self._pauses.observe(said.pause_s)

    def exposition(self, of_jobs: bool) -> bytes:
        """How the daemon does, and with `of_jobs` the sums over all jobs, in Prometheus' text format. Reads the
        database: call it from a thread."""
        return b"".join(bytes(generate_latest(part)) for part in (self._own, self._jobs)[: 1 + of_jobs])


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, words, value)


def _gauges(name: str, words: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, words, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family


class _Lazy(Collector):
    """What a function reads at each scrape: registering must not read the database."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return self._read()


def _of_rounds(now: Rounds) -> Iterator[Metric]:
    modes = (([mode], float(mode == now.mode)) for mode in MODES)
    yield _gauges("mode", "1 for the mode that is in force", ["mode"], modes)
    last = "When the last round that went well ended, in unix seconds"
    yield _gauge("last_round_timestamp_seconds", last, now.last_ok)
    yield _gauge("trouble", "1 when the last round failed, or the database takes nothing", float(bool(now.failing)))
    tripped = "1 after too many refused actions in a row: it only reviews for a while, then tries again"
    yield _gauge("tripped", tripped, float(bool(now.tripped)))
    parts = (([part], seconds) for part, seconds in now.seconds.items())
    yield _gauges("round_seconds", "Time of each part of the last round", ["part"], parts)
    rounds = CounterMetricFamily(PREFIX + "rounds", "Rounds, by outcome", labels=["outcome"])
    rounds.add_metric(["well"], now.count)
    rounds.add_metric(["failed"], now.failed)
    yield rounds


def _database_size(store: Store) -> Iterator[Metric]:
    size = store.retention.size_mb()
    if size is not None:
        yield _gauge("database_bytes", "Size of the database", size * 1e6)


def _capacity(now: Rounds) -> Iterator[Metric]:
    """What the last plan had to share out: others' jobs show in it."""
    if now.capacity is not None and now.idle is not None:
        yield _gauge("gpus_capacity", "GPUs that elastic jobs may hold", now.capacity)
        yield _gauge("gpus_idle", "GPUs that nobody holds or waits for", now.idle)


def _of_store(store: Store) -> Iterator[Metric]:
    jobs = store.jobs.all()
    # Those that are always looked for are there without a job, too: a gap in a curve means that nobody knows.
    counts = Tally({(state, True): 0 for state in ("PENDING", "RUNNING")})
    counts.update((job.state, job.managed) for job in jobs)
    states = (([state, str(managed).lower()], count) for (state, managed), count in sorted(counts.items()))
    yield _gauges("jobs", "Elastic jobs, by Slurm's state and whether managed", ["state", "managed"], states)
    used = store.allocations.all_in_use()
    training = sum(item.gpus for item in used.values())
    yield _gauge("gpus_training", "GPUs that elastic jobs train on", training)
    # One of `selastic hold`, whose request has no batch, says so where nothing waits for it.
    trainings = {job.job_id for job in jobs if "batch=" in job.request}
    stalled = {
        number: item.stalled_since for number, item in used.items() if item.stalled_since and number in trainings
    }
    yield _gauge("jobs_stalled", "Jobs whose training does no step", len(stalled))
    longest = max((steady_now() - since for since in stalled.values()), default=0.0)
    yield _gauge(
        "stalled_longest_seconds", "How long the training has done no step that did its last one first", longest
    )
    reports = [store.reports.last(job.job_id) for job in jobs if job.job_id not in stalled]
    rate = sum(report.samples_per_s for report in reports if report is not None)
    yield _gauge("samples_per_second", "Throughput of all elastic jobs, as last reported", rate)
    yield _reasons(store, [job.job_id for job in jobs])
    yield from _resizes(store)


def _reasons(store: Store, jobs: list[int]) -> Metric:
    # Every reason is there from the start, so that an alert on one finds a series.
    reasons: Tally[str] = Tally({reason.value: 0 for reason in Reason})
    reasons.update(decision.reason for decision in store.decisions.standing(jobs).values())
    standing = (([reason], count) for reason, count in sorted(reasons.items()))
    return _gauges("decisions", "Jobs by the reason of their standing decision", ["reason"], standing)


def _resizes(store: Store) -> Iterator[Metric]:
    resizes = store.resizes.under_way()
    states = (([state], count) for state, count in sorted(Tally(resize.state for resize in resizes).items()))
    yield _gauges("resizes_open", "Resizes under way, by state", ["state"], states)
    oldest = max((steady_now() - resize.created for resize in resizes), default=0.0)
    yield _gauge("resize_oldest_seconds", "Age of the oldest resize under way", max(0.0, oldest))
