"""What models are tried on: the reports that a job of a measured table makes, and the priors without its program."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from profiles import Profile

from slurm_elastic.daemon.models.priors import PROGRAM_COUNTS
from slurm_elastic.daemon.optimizer.models.learning import learn
from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.prior import LINE_SHARE, Prior

NOISE = 0.03
SHOWN = 30
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)


def runs(profile: Profile) -> list[list[Observation]]:
    """The profile as three jobs would have shown it, begun at three of its micro batches: a prior must not hang on one.

    Of each, `SHOWN` configurations drawn at random: all of a table would outweigh what is believed of any other.
    """
    out = []
    micros = sorted({o.micro_batch for o in profile.rows if o.gpus == 1}) or [profile.rows[0].micro_batch]
    for micro in sorted({micros[0], micros[len(micros) // 2], micros[-1]}):
        first = [o for o in profile.rows if (o.gpus, o.micro_batch) == (1, micro)] or [min(profile.rows, key=by_size)]
        rest = [o for o in profile.rows if o not in first and not (o.gpus == 1 and o.micro_batch < micro)]
        rng = random.Random(f"{profile.cluster} {profile.app}")
        out.append(first + (rng.sample(rest, SHOWN) if len(rest) > SHOWN else rest))
    return out


def by_size(o: Observation) -> tuple[int, int, int]:
    return o.gpus, o.nodes, o.micro_batch


def learned(profile: Profile, all_: Sequence[Profile], without: str = "") -> Prior:
    """From every other program whose micro batches are known; three times the weight on the same cluster.

    `without`: also without the tables of that source.
    """
    key = profile.cluster, profile.program, without
    if key not in _priors:
        others = [p for p in all_ if p.program != profile.program and p.source != without]
        _priors[key] = learned_from(others, profile.cluster)
    return _priors[key]


_priors: dict[tuple[str, str, str], Prior] = {}


def ran_before(profile: Profile, all_: Sequence[Profile]) -> Prior:
    """The same when the program itself has run once before, from 1 to 16 GPUs at the user's micro batch."""
    key = profile.cluster, profile.app
    if key not in _again:
        rng = random.Random(f"earlier {profile.cluster} {profile.app}")
        earlier = [noisy(o, rng) for o in order(profile, "growth", rng)[:5]]
        _again[key] = learn([earlier], None, learned(profile, all_), PROGRAM_COUNTS)
    return _again[key]


_again: dict[tuple[str, str], Prior] = {}


def learned_from(profiles: Sequence[Profile], cluster: str = "") -> Prior:
    """A program measured on many clusters counts by the root of their number: they are related, but not the same."""
    known = [profile for profile in profiles if profile.micro_known]
    tables = Counter(profile.program for profile in known)
    found, weights = list[list[Observation]](), list[float]()
    for profile in known:
        own, share = runs(profile), tables[profile.program] ** -0.5
        found += own
        weights += [(3.0 if profile.cluster == cluster else 1.0) * share] * len(own)
    return replace(learn(found, weights), line_share=LINE_SHARE)


def order(profile: Profile, kind: str, rng: random.Random) -> list[Observation]:
    """Six configurations in the order a job would come by them, each at the nearest micro batch measured there.

    Growth: 1, 2, 4, ... GPUs packed. Explore: one GPU, two nodes, a full node at the largest micro batch, two full
    nodes, one GPU at the smallest, 16 GPUs at the largest.
    """
    if kind == "random":
        return rng.sample(list(profile.rows), min(6, len(profile.rows)))
    micros = sorted({o.micro_batch for o in profile.rows})
    alone = sorted({o.micro_batch for o in profile.rows if o.gpus == 1}) or micros
    base, top, full = alone[len(alone) // 2], micros[-1], profile.per_node
    dense = {k: min((o.nodes for o in profile.rows if o.gpus == k), default=0) for k in SIZES}
    if kind == "growth":
        wanted = [(k, dense[k], base) for k in (1, 2, 4, 8, 16, 32)]
    else:
        wanted = [(1, 1, base), (2, 2, base), (full, 1, top), (2 * full, 2, base), (1, 1, micros[0])]
        wanted.append((16, dense[16], top))
    out: list[Observation] = []
    for gpus, nodes, micro in wanted:
        there = [o for o in profile.rows if (o.gpus, o.nodes) == (gpus, nodes) and o not in out]
        if there:
            out.append(min(there, key=lambda o: abs(np.log(o.micro_batch / micro))))
    return out


def noisy(o: Observation, rng: random.Random) -> Observation:
    """A report of it."""
    time_s = o.step_time_s * max(0.5, 1 + rng.gauss(0, NOISE))
    share = o.comm_share * max(0.5, 1 + rng.gauss(0, NOISE)) if o.comm_share else 0.0
    return replace(o, step_time_s=time_s, comm_share=min(0.99, share))


def scored(profiles: Sequence[Profile]) -> list[Profile]:
    """The tables large enough to judge by; of a cluster measured twice (NAME, NAME-ext) the extended ones."""
    clusters = {p.cluster for p in profiles}
    return [p for p in profiles if len(p.rows) >= 100 and f"{p.cluster}-ext" not in clusters]
