"""Random resizes with random kills of a real training, and what such a training leaves behind: the short forms of
`make soak-training` and `make soak-growth`."""

from __future__ import annotations

from pathlib import Path

import campaign
import pytest
from growth_ground import ResizedTraining
from training_ground import KilledTraining

SEED = 3


def test_nothing_is_lost_whatever_is_killed_meanwhile(tmp_path: Path) -> None:
    """Ten resizes, three kills: every sample of every epoch counts once, and the parameters are those of a replay."""
    ground = KilledTraining(tmp_path, SEED, resizes=10, kills=3, nap=0.04, grows=0.2)
    assert campaign.run(ground, rounds=10, most=1).total() == 3
    assert ground.proof().restarts


def test_nothing_is_lost_whatever_is_killed_while_batches_change(tmp_path: Path) -> None:
    """The same where the batch alone changes, in place: fourteen times, with four kills of workers and agents."""
    ground = KilledTraining(tmp_path, SEED, resizes=14, kills=4, nap=0.04, grows=0.0)
    assert campaign.run(ground, rounds=14, most=1).total() == 4
    assert ground.proof().restarts


def test_loader_workers_that_are_killed_leave_nothing_behind(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A worker joins with two loader workers and leaves, twice: what they had in TMPDIR goes with it, and they are gone
    themselves. Its log has what it wrote; its agent wrote nothing, and has none."""
    # The loaders' sockets lie in TMPDIR, and a socket's path may have 107 bytes.
    ground = ResizedTraining(tmp_path_factory.mktemp("soak"), loader_workers=2)
    campaign.run(ground, rounds=2)
    assert [name for name in ground.left_in_tmp() if name.startswith("pymp-")] == []
    assert [sample["loader workers: processes"] for sample in ground.samples] == [2, 2]
    assert ground.samples[-1]["left behind: processes"] <= 2, "but for those of the second, which may just be ending"
    logs = sorted(path.name for path in (ground.training.job_dir / "logs").iterdir())
    assert logs == ["0." + ground.node + ".0.log", "1.local1-0.0.log", "2.local2-0.0.log"]


@pytest.mark.parametrize("groups", [{"NEW_GROUPS": "1"}, {}], ids=["new groups", "in place"])
def test_resizes_leave_nothing_behind_in_rank_0(tmp_path: Path, groups: dict[str, str]) -> None:
    """What Python and malloc have given out to a rank that lives on is the same after 32 more resizes: no group, no
    store, no hook of an older world, nor of an older batch. torch's flight recorder, which fills first, is off."""
    ground = ResizedTraining(tmp_path, loader_workers=0, batches=30, TORCH_FR_BUFFER_SIZE="0", **groups)
    campaign.run(ground, rounds=2)
    before, after = ground.samples
    assert after["rank 0: Python objects"] - before["rank 0: Python objects"] < 32
    assert after["rank 0: malloc, kB"] - before["rank 0: malloc, kB"] < 200
