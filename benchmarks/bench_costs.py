"""CM-DARE's measurements: what a checkpoint costs, and speed at sizes that were not measured, beside the goals.

    python benchmarks/bench_costs.py FOLDER          # holds checkpoint/ and cluster_speed/

A model's checkpoints are predicted from those of the others (leave one model out). Speed on 5..8 workers is predicted
from 1..4 by the product's throughput model; linear: so many times one worker's speed. `make bench-models` prints this
with --data FOLDER.
"""

from __future__ import annotations

import csv
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import _setup  # noqa: F401

from slurm_elastic.daemon.optimizer.models.costs import CostPrior
from slurm_elastic.daemon.optimizer.models.costs import fit as fit_cost
from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.throughput import fit

CHECKPOINT_GOAL, SPEED_GOAL, TIMES_BETTER_GOAL = 0.09, 0.13, 3.0
PUBLISHED_SVM = 0.196
SAVE = CostPrior(1.0, 1 / 200)
"""Believed of writing a checkpoint before any was: a second, and 200 MB/s."""
MICRO = 128
WEIGHT = 16.0
"""Of an observation: the median of thousands of steps."""
KNOWN, ASKED = range(1, 5), range(5, 9)


def checkpoint_errors(folder: Path) -> tuple[list[float], float]:
    """(relative error of each model left out, share of intervals that hold the truth)."""
    with open(folder / "checkpoint" / "aggregated.csv") as file:
        rows = list(csv.DictReader(file))
    points = [(float(row["Checkpoint Size (MB)"]), float(row["Duration mean (s)"])) for row in rows]
    errors, inside = list[float](), 0
    for i, (mb, seconds) in enumerate(points):
        found = fit_cost([*points[:i], *points[i + 1 :]], SAVE).at(mb)
        errors.append(abs(found.seconds / seconds - 1))
        inside += found.low <= seconds <= found.high
    return errors, inside / len(points)


def speeds(folder: Path) -> dict[str, dict[int, float]]:
    """Model and GPU -> workers -> steps/s of the cluster, the median after a fifth of warm-up."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for path in sorted((folder / "cluster_speed").glob("*.csv")):
        name = re.fullmatch(r"(.+)worker(\d)", path.stem)
        with open(path) as file:
            values = [float(row["Value"]) for row in csv.DictReader(file)]
        if name:
            found[name[1]][int(name[2])] = statistics.median(values[len(values) // 5 :])
    return found


def speed_errors(measured: dict[int, float]) -> tuple[list[float], list[float]]:
    """Of one program: relative errors of the model and of linear scaling."""
    model = fit([Observation(k, k, k * MICRO, MICRO, 1, k / measured[k], WEIGHT) for k in KNOWN])
    ours = [abs(model.throughput(k, k, k * MICRO) / MICRO / measured[k] - 1) for k in ASKED]
    return ours, [abs(k * measured[1] / measured[k] - 1) for k in ASKED]


def tables(folder: Path) -> None:
    """Print the figures beside the goals."""
    errors, inside = checkpoint_errors(folder)
    mean, median = statistics.mean(errors), statistics.median(errors)
    print(f"\ncheckpoints of {len(errors)} models, each left out (CM-DARE): seconds against MB, affine")
    print(f"  mean error {mean:.1%}, median {median:.1%}; intervals of 80 % hold {inside:.0%}")
    print(f"  goal <= {CHECKPOINT_GOAL:.0%}; the published support vector machine {PUBLISHED_SVM:.1%}")
    print("\nspeed on 5..8 workers from 1..4 (CM-DARE, parameter servers): mean error")
    ours, linear = list[float](), list[float]()
    for name, measured in speeds(folder).items():
        own, straight = speed_errors(measured)
        print(f"  {name:<14} {statistics.mean(own):6.1%}   linear {statistics.mean(straight):6.1%}")
        ours, linear = ours + own, linear + straight
    print(f"  {'all':<14} {statistics.mean(ours):6.1%}   linear {statistics.mean(linear):6.1%}")
    print(f"  {'median':<14} {statistics.median(ours):6.1%}   linear {statistics.median(linear):6.1%}")
    better = statistics.mean(linear) / statistics.mean(ours)
    print(f"  goal <= {SPEED_GOAL:.0%} in the mean; {better:.1f} times better than linear, goal {TIMES_BETTER_GOAL:g}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "checkpoint").is_dir():
        raise SystemExit(f"{__doc__}\none folder is accepted, with checkpoint/ and cluster_speed/ in it")
    tables(Path(sys.argv[1]))
