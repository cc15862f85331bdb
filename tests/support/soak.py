"""The long campaigns that need no Slurm: `make soak-training`, `make soak-growth`."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import campaign
import stand_in
from growth import print_slopes, slopes


def training(folder: Path, args: argparse.Namespace) -> None:
    from training_ground import KilledTraining

    gpus = stand_in.environment(STANDIN_FORM_S=str(args.forming_s)) if args.gpus else None
    print(
        f"seed {args.seed}: {args.resizes} resizes, {args.kills} kills", "on stand-ins for GPUs" * args.gpus, flush=True
    )
    ground = KilledTraining(folder, args.seed, args.resizes, args.kills, gpus=gpus)
    campaign.run(ground, args.resizes, most=1)
    result = ground.proof()
    print(
        f"{result.epochs_seen} epochs, {result.steps} steps, {result.worlds} worlds, {result.restarts} restarts: every "
        "sample of every epoch once, parameters as in a replay"
    )


def growth(folder: Path, args: argparse.Namespace) -> None:
    from growth_ground import ResizedTraining

    groups = {} if args.in_place else {"NEW_GROUPS": "1"}
    ground = ResizedTraining(folder, args.loader_workers, args.batches, **groups)
    campaign.run(ground, args.resizes // ground.resizes_in_one, minutes=args.minutes)
    print(f"{len(ground.samples) * ground.resizes_in_one} resizes of one training\n")
    print_slopes(slopes(ground.samples, ground.resizes_in_one), "per resize")
    print(f"\nleft in TMPDIR at the end: {', '.join(ground.left_in_tmp()) or 'nothing'}")


def jobs(folder: Path, args: argparse.Namespace) -> None:
    from daemon_ground import ShortJobs

    ground = ShortJobs(folder)
    campaign.run(ground, args.jobs // ground.at_once, minutes=args.minutes)
    of_a_sample = ground.at_once * ground.every
    print(f"{ground.rounds * ground.at_once} jobs with {ground.resizes} resizes through one daemon\n")
    print_slopes(slopes(ground.samples, of_a_sample, ground.fills), "per job")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(required=True)
    parsers = {run: kinds.add_parser(run.__name__) for run in (training, growth, jobs)}
    for run, one in parsers.items():
        one.set_defaults(run=run)
        one.add_argument("--minutes", type=float, default=math.inf, help="end after these, however many there were")
    parsers[training].add_argument("--resizes", type=int, default=100)
    parsers[training].add_argument("--kills", type=int, default=40)
    parsers[training].add_argument("--seed", type=int, default=int(time.time()))
    parsers[training].add_argument("--gpus", action="store_true", help="on the stand-in for a GPU and NCCL")
    parsers[training].add_argument("--forming-s", type=float, default=3.0, help="what a communicator takes there")
    parsers[growth].add_argument("--resizes", type=int, default=10_000)
    parsers[growth].add_argument("--batches", type=int, default=48, help="changed between a grow and a shrink")
    parsers[growth].add_argument("--in-place", action="store_true", help="the batch changes in the group as it is")
    parsers[growth].add_argument("--loader-workers", type=int, default=2)
    parsers[jobs].add_argument("--jobs", type=int, default=10_000)
    args = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="selastic-soak-") as folder:
        args.run(Path(folder), args)
    print(f"{time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
