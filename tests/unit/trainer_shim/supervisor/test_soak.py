"""Random resizes with random kills of a real training, and what such a training leaves behind: the short forms of
`make soak-training` and `make soak-growth`."""

from __future__ import annotations

from pathlib import Path

from growth_soak import GrowthSoak
from training_soak import Soak

SEED = 3


def test_nothing_is_lost_whatever_is_killed_meanwhile(tmp_path: Path) -> None:
    """Ten resizes, three kills: every sample of every epoch counts once, and the parameters are those of a replay."""
    soak = Soak(tmp_path, seed=SEED, nap=0.04, grows=0.2)
    soak.run(resizes=10, kills=3)
    assert soak.proof().restarts
    assert soak.told.kills.total() == 3


def test_loader_workers_that_are_killed_leave_nothing_in_tmpdir(tmp_path: Path) -> None:
    """A worker joins with two loader workers and leaves, twice: what they had in TMPDIR goes with it. Its log has
    what it wrote; its agent wrote nothing, and has none."""
    soak = GrowthSoak(tmp_path, loader_workers=2)
    soak.run(cycles=2)
    assert [name for name in soak.left_in_tmp() if name.startswith("pymp-")] == []
    assert [sample["loader workers: processes"] for sample in soak.samples] == [2, 2]
    logs = sorted(path.name for path in (soak.process.job_dir / "logs").iterdir())
    assert logs == ["0." + soak.node() + ".0.log", "1.local1-0.0.log", "2.local2-0.0.log"]
