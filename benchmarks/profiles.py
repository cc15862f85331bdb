"""Measured profiles, read from a folder given on the command line: step times by placement and batch.

Promise: rows as measured, unreadable ones refused with file and line. Limit: knows the tables of three public
repositories and their kin (adaptdl's OSDI'21 artifact and Sia's: placements*.csv with scalability*.csv beside them;
ElasticFlow: throughputs_*/MODEL.csv; Gavel: simulation_throughputs.json).
"""

from __future__ import annotations

import ast
import csv
import json
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.daemon.optimizer.models.observation import Observation

SAME = {"imagenet": "resnet50", "ResNet-50": "resnet50", "cifar10": "resnet18", "ResNet-18": "resnet18",
        "resnet50_cifar10": "resnet18", "Recommendation": "ncf"}  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """One program on one cluster: step time (s) by (GPUs, nodes, micro batch)."""

    cluster: str
    app: str
    rows: tuple[Observation, ...]
    compute: dict[int, float]
    """Time of one micro batch without synchronisation, where it was measured."""
    micro_known: bool = True
    """False: the table has only the global batch, so a large one may have been accumulated; not learned from."""

    @property
    def program(self) -> str:
        """What it trains, by one name in all tables: a program left out is left out of each."""
        return SAME.get(self.app, self.app)

    @property
    def source(self) -> str:
        """Whose tables it is in, by one name for all of their clusters."""
        return self.cluster.partition("-")[0] if self.cluster.startswith(("gavel", "elasticflow")) else "adaptdl"

    @property
    def per_node(self) -> int:
        """GPUs of one node, as far as the table shows."""
        return max(o.gpus // o.nodes for o in self.rows)


def load(*folders: Path) -> list[Profile]:
    """Every profile found below the folders; of the same program on the same cluster the last."""
    found = {(p.cluster, p.app): p for folder in folders for p in _load(folder)}
    return list(found.values())


def _load(folder: Path) -> list[Profile]:
    tables = [*sorted(folder.rglob("placements.csv")), *sorted(folder.rglob("placements-*.csv"))]
    named = {(p.stem.partition("-")[2] or "aws", p.parent.name): p for p in tables}
    found = [p for p in (_adaptdl(path, cluster) for (cluster, _), path in named.items()) if len(p.rows) >= 12]
    for tables in sorted(folder.rglob("throughputs_*")):
        per_node = 4 if tables.name.endswith("T4") else 8
        found += [p for p in (_elasticflow(t, tables.name, per_node) for t in sorted(tables.glob("*.csv"))) if p]
    for table in sorted(folder.rglob("simulation_throughputs.json")):
        found += _gavel(table)
    return found


def _adaptdl(placements: Path, cluster: str) -> Profile:
    sums: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    syncs: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    compute: dict[int, list[float]] = defaultdict(list)
    for path in (placements, placements.with_name(placements.name.replace("placements", "scalability"))):
        if not path.exists():
            continue
        with path.open(newline="") as file:
            for line, row in enumerate(csv.DictReader(file), 2):
                try:
                    if "placement" in row:
                        gpus, nodes = sum(map(int, row["placement"])), len(row["placement"])
                    else:
                        gpus, nodes = int(float(row["num_replicas"])), int(float(row["num_nodes"]))
                    micro, step, sync = int(float(row["local_bsz"])), float(row["step_time"]), float(row["sync_time"])
                except (KeyError, ValueError) as error:
                    raise SystemExit(f"{path}:{line}: expected numbers in the columns of DATA.md ({error})") from None
                sums[gpus, nodes, micro].append(step)
                syncs[gpus, nodes, micro].append(sync)
                compute[micro].append(step - sync)
    rows = tuple(
        Observation(k, n, k * m, m, 1, sum(times) / len(times), 1.0, _share(k, sum(syncs[k, n, m]), sum(times)))
        for (k, n, m), times in sorted(sums.items())
    )
    return Profile(cluster, placements.parent.name, rows, {m: sorted(t)[len(t) // 2] for m, t in compute.items()})


def _share(gpus: int, sync: float, step: float) -> float:
    """The share of exposed communication, as a supervisor reports it."""
    return min(0.99, max(0.0, sync / step)) if gpus > 1 else 0.0


def _elasticflow(path: Path, cluster: str, per_node: int) -> Profile | None:
    rows = []
    with path.open(newline="") as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            try:
                batch = int(row.pop("global_batch_size"))
                cells = {int(k): float(v) if v else 0.0 for k, v in row.items()}
            except ValueError as error:
                raise SystemExit(f"{path}:{line}: expected numbers ({error})") from None
            for gpus, rate in cells.items():
                if math.isfinite(rate) and rate > 0 and batch % gpus == 0:
                    nodes = max(1, gpus // per_node)
                    rows.append(Observation(gpus, nodes, batch, batch // gpus, 1, 1.0 / rate))
    known = not cluster.endswith("T4")  # no batch of the A100 tables is too large for one of those
    return Profile(f"elasticflow-{cluster[12:]}", path.stem, tuple(rows), {}, known) if len(rows) >= 12 else None


def _gavel(path: Path) -> list[Profile]:
    """Steps/s summed over workers, by kind of GPU: packed on one node, or one GPU of each node (`_unconsolidated`).

    The share of communication is what a step takes longer than that of one GPU at the same micro batch.
    """
    steps: dict[tuple[str, str], dict[tuple[int, int, int], float]] = defaultdict(dict)
    for name, table in json.loads(path.read_text()).items():
        kind, _, spread = name.partition("_")
        for job, rates in table.items():
            what, gpus = ast.literal_eval(job)
            app, _, batch = what.removesuffix(")").partition(" (batch size ")
            if batch and rates["null"] and not (spread and gpus == 1):
                steps[kind, app][gpus, gpus if spread else 1, int(batch)] = gpus / rates["null"]
    found = []
    for (kind, app), times in sorted(steps.items()):
        alone = {m: t for (k, _, m), t in times.items() if k == 1}
        rows = [
            Observation(k, n, k * m, m, 1, t, 1.0, _share(k, t - alone.get(m, t), t))
            for (k, n, m), t in sorted(times.items())
        ]
        found.append(Profile(f"gavel-{kind}", app, tuple(rows), alone))
    return found
