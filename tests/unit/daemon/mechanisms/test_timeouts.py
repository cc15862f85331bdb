"""How long things may take follows from what was probed, where that is longer than the settings say."""

from __future__ import annotations

from slurm_elastic.daemon.mechanisms.settings import Bounds, companion_wait_s
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.protocol.messages import Tried


def probed(name: str, seconds: float) -> dict[str, Tried]:
    return {name: Tried(name, "works", "", seconds)}


def test_a_companion_waits_for_as_long_as_grants_take() -> None:
    """Of whom it concerns, in that partition; the settings and the backfill scheduler's interval stand below it."""
    site = Site(
        bf_interval_s=30.0, probed={("ada", "gpu"): probed("salloc", 100.0), ("", "low"): probed("sbatch", 50.0)}
    )
    settings = Settings(companion_wait_s=40.0)
    who = [("ada", "gpu"), ("bob", "gpu"), ("bob", "low"), ("", "")]
    assert [companion_wait_s(settings, site, *one) for one in who] == [200.0, 60.0, 100.0, 60.0]


def test_a_release_may_take_as_long_as_the_sites_epilog() -> None:
    """As an admin has probed it; what a user has, changes nothing for others."""
    mine = {("ada", "gpu"): probed("epilog", 900.0)}
    assert Bounds().at(Site(probed=mine)) == Bounds()
    site = Site(probed={**mine, ("", "gpu"): probed("epilog", 200.0), ("", "low"): probed("epilog", 5.0)})
    assert Bounds(release_s=60.0).at(site) == Bounds(release_s=400.0)
