"""Random resizes with random kills of a real training: the short form of `make soak-training`."""

from __future__ import annotations

from pathlib import Path

from training_soak import Soak

SEED = 3


def test_nothing_is_lost_whatever_is_killed_meanwhile(tmp_path: Path) -> None:
    """Ten resizes, three kills: every sample of every epoch counts once, and the parameters are those of a replay."""
    soak = Soak(tmp_path, seed=SEED, nap=0.04, grows=0.2)
    soak.run(resizes=10, kills=3)
    assert soak.proof().restarts
    assert soak.told.kills.total() == 3
