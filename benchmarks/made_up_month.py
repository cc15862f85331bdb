"""A month of `sacct`, made up: 2,000 GPU jobs of 40 users in 8 accounts on 128 GPUs, as `selastic simulate` reads it.

    python benchmarks/made_up_month.py [--jobs N] [--seed N] > jobs.txt

Submissions follow the hours of the day and the week, and come in bursts of a user's own; run times are lognormal with
a long tail; sizes are mostly small. Start times are those of a queue with backfill on the cluster named (--cluster).
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from datetime import datetime, timedelta

import _setup  # noqa: F401

from slurm_elastic.daemon.simulator.jobs import SimulationSettings
from slurm_elastic.daemon.simulator.replay import simulate
from slurm_elastic.daemon.simulator.traces.formats import TraceJob

COLUMNS = "JobID|User|Account|JobName|State|Submit|Eligible|Start|ElapsedRaw|AllocTRES|Comment"
BEGIN = datetime(2026, 10, 1)
DAYS, USERS, ACCOUNTS = 30, 40, 8
SIZES = (1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 32)
NAMES = ("pretrain", "finetune", "sweep", "eval", "vit", "llm", "diffusion", "speech")
BY_HOUR = (1, 1, 1, 1, 1, 1, 1, 2, 4, 7, 9, 9, 7, 8, 9, 9, 8, 7, 6, 4, 3, 3, 2, 2)
"""How likely a submission is at each hour of a working day; a fifth of it at weekends."""


@dataclass(frozen=True)
class Submission:
    """A job as its user submits it; times in seconds."""

    user: int
    name: str
    at_s: float
    gpus: int
    runs_s: float
    state: str


def submissions(count: int, gpus: int, load: float, seed: int) -> list[Submission]:
    """Jobs whose GPU time is `load` times the cluster's over the month, in order of their submission."""
    rng, drawn = random.Random(seed), list[Submission]()
    while len(drawn) < count:
        user = rng.choices(range(USERS), [1 / (place + 1) for place in range(USERS)])[0]
        day = rng.randrange(DAYS)
        if (BEGIN + timedelta(days=day)).weekday() > 4 and rng.random() < 0.8:
            continue
        hour = rng.choices(range(24), BY_HOUR)[0]
        at = day * 86400 + hour * 3600 + rng.uniform(0, 3600)
        name, size, typical = rng.choice(NAMES), rng.choice(SIZES), rng.lognormvariate(8.6, 1.3)
        for _ in range(min(rng.choice((1, 1, 1, 2, 5, 12)), count - len(drawn))):
            runs = min(7 * 86400.0, max(60.0, typical * rng.lognormvariate(0, 0.5)))
            state = rng.choices(("COMPLETED", "FAILED", "TIMEOUT", f"CANCELLED by {1000 + user}"), (80, 9, 5, 6))[0]
            drawn.append(Submission(user, name, at, size, runs, state))
            at += rng.uniform(1, 30)
    scale = load * gpus * DAYS * 86400 / sum(job.gpus * job.runs_s for job in drawn)
    drawn = [Submission(j.user, j.name, j.at_s, j.gpus, max(60.0, j.runs_s * scale), j.state) for j in drawn]
    return sorted(drawn, key=lambda job: job.at_s)


def month(count: int = 2000, nodes: int = 16, per_node: int = 8, load: float = 0.8, seed: int = 0) -> str:
    """What `sacct -P` would print, with the starts of a queue with backfill on so many nodes."""
    drawn = submissions(count, nodes * per_node, load, seed)
    trace = [TraceJob(str(i), job.at_s, "rigid", job.gpus, duration_s=job.runs_s) for i, job in enumerate(drawn)]
    starts = {
        job.trace.job_id: job.start_s
        for job in simulate(trace, {}, "backfill", SimulationSettings(nodes * per_node, per_node))[0].jobs
    }
    lines = [COLUMNS]
    for i, job in enumerate(drawn):
        submit, start = (
            (BEGIN + timedelta(seconds=round(at))).isoformat(timespec="seconds") for at in (job.at_s, starts[str(i)])
        )
        owner = f"u{job.user:02}|acc{job.user % ACCOUNTS}"
        tres = f"billing={job.gpus},cpu={8 * job.gpus},gres/gpu={job.gpus},node={-(-job.gpus // per_node)}"
        times = f"{submit}|{submit}|{start}|{round(job.runs_s)}"
        lines.append(f"{10000 + i}|{owner}|{job.name}|{job.state}|{times}|{tres}|")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--cluster", default="16x8", metavar="NODESxGPUS", help="that they ran on")
    parser.add_argument("--load", type=float, default=0.8, help="GPU time of the jobs by that of the cluster")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    nodes, per_node = (int(part) for part in args.cluster.split("x"))
    print(month(args.jobs, nodes, per_node, args.load, args.seed), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
