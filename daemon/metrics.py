"""Prometheus metrics, at /metrics: sums over all jobs, so that anyone may read them; no user, job or node by name.

Gauges are read from the store at each scrape; counters count since the daemon's start.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from slurm_elastic.db.store import Store

from .reasons import Reason

PREFIX = "slurm_elastic_"


class Metrics:
    """One daemon's metrics; `exposition` is what a scrape gets."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, store: Store) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_FromStore(store))
        self.reports = Counter(PREFIX + "reports", "Throughput reports stored", registry=self._registry)
        self.requests = Counter(
            PREFIX + "requests", "Requests to the API, by status", ["status"], registry=self._registry
        )

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format. Reads the database: call it from a thread."""
        return bytes(generate_latest(self._registry))


class _FromStore(Collector):
    """What the store knows now."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing: registering must not read the database."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read the store."""
        jobs = self._store.jobs()
        used = self._store.all_in_use()
        states = GaugeMetricFamily(
            PREFIX + "jobs", "Elastic jobs, by Slurm's state and whether managed", labels=["state", "managed"]
        )
        for (state, managed), count in sorted(Tally((job.state, job.managed) for job in jobs).items()):
            states.add_metric([state, str(managed).lower()], count)
        yield states
        yield GaugeMetricFamily(
            PREFIX + "gpus_training", "GPUs that elastic jobs train on", sum(item.gpus for item in used.values())
        )
        reports = [self._store.last_report(job.job_id) for job in jobs]
        rate = sum(report.samples_per_s for report in reports if report is not None)
        yield GaugeMetricFamily(PREFIX + "samples_per_second", "Throughput of all elastic jobs, as last reported", rate)
        # Every reason is there from the start, so that an alert on one finds a series.
        reasons: Tally[str] = Tally({reason.value: 0 for reason in Reason})
        reasons.update(decision.reason for decision in self._store.current_decisions())
        standing = GaugeMetricFamily(
            PREFIX + "decisions", "Jobs by the reason of their standing decision", labels=["reason"]
        )
        for reason, count in sorted(reasons.items()):
            standing.add_metric([reason], count)
        yield standing
        opened = GaugeMetricFamily(PREFIX + "resizes_open", "Resizes under way, by state", labels=["state"])
        for state, count in sorted(Tally(intent.state for intent in self._store.open_intents()).items()):
            opened.add_metric([state], count)
        yield opened
        size = self._store.size_mb()
        if size is not None:
            yield GaugeMetricFamily(PREFIX + "database_bytes", "Size of the database", size * 1e6)
